"""Bulk actions: one action on all jobs that filters select, previewed first.

At most 100 jobs are acted on at once. More become a row of `effects_bulk_actions` and one job of type `effects.bulk`,
which works through them in chunks of 200, oldest first: it survives crashes, shows its progress and can be cancelled.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any

import msgspec

from effects import arguments
from effects.api import enqueue
from effects.app import Effects
from effects.arguments import optional, require
from effects.bulk_job import BulkJob, BulkPayload
from effects.default_app import app_of
from effects.errors import EnqueueError
from effects.model.job import LIVE
from effects.model.job_type import JobType
from effects.store.bulk import records
from effects.store.bulk.operation import BulkAction, InlineResult, Operation, act_inline
from effects.store.bulk.records import BulkRecord
from effects.store.bulk.selection import (
    Counted,
    SelectedTable,
    Selection,
    count_selected,
    freeze,
    frozen_at,
    select_ids,
)
from effects.store.operator.dead_letters import DeadFilters
from effects.store.operator.job_list import Filters

INLINE_MAX = 100  # jobs that are acted on at once

_ACTIONS_OF_LIST: dict[type, frozenset[str]] = {
    DeadFilters: frozenset({"requeue", "ignore", "resolve_requeue", "mark_done", "give_up"}),
    Filters: frozenset({"requeue", "cancel", "run_now"}),
}


class BulkPreview(msgspec.Struct, frozen=True, kw_only=True):
    """What an action would be carried out on; `carry_out` takes it as it is, however much later.

    Args:
        counted: how many jobs match.
        job_ids: all of them, oldest first, where they are at most 100; else None.
    """

    action: BulkAction
    selection: Selection
    counted: Counted
    job_ids: tuple[int, ...] | None

    @property
    def as_of(self) -> datetime:
        """The time that it is frozen at."""
        return frozen_at(self.selection)


class BulkStarted(msgspec.Struct, frozen=True):
    """More than 100 jobs match: a job carries the action out. They are at least `expected`, unless `counted_all`."""

    bulk_id: int
    job_id: int
    expected: int
    counted_all: bool


def preview(action: BulkAction, filters: DeadFilters | Filters, *, effects: Effects | None = None) -> BulkPreview:
    """Freeze what the filters select, and count it. Writes nothing.

    Args:
        filters: of the list of unresolved jobs (requeue, ignore, resolve_requeue, mark_done, give_up), or of the list
            of jobs (requeue: ended ones; cancel, run_now: live ones). `limit` means nothing here. With `as_of`, as
            they were at that time.
        effects: the Effects to use; default the process's.

    Raises:
        EnqueueError: the list does not have this action, or the filters name a key or resolved jobs.
        StoreUnavailable: the database is unavailable.
    """
    app = app_of(effects)
    table = _table_of(action, filters)
    with app.store.read() as connection:
        selection = freeze(app.store, connection, table, filters)
        counted = count_selected(app.store, connection, selection)
        job_ids = None
        if counted.all and counted.jobs <= INLINE_MAX:
            selected = select_ids(app.store, connection, selection, selection.after_id, INLINE_MAX)
            job_ids = tuple(selected.ids)
    return BulkPreview(action=action, selection=selection, counted=counted, job_ids=job_ids)


def carry_out(
    previewed: BulkPreview, *, actor: str, reason: str | None = None, effects: Effects | None = None
) -> InlineResult | BulkStarted:
    """Act on what a preview has frozen: at once on at most 100 jobs, else by a job.

    What is refused by now (another person was faster, the effect may have happened) stops nothing; it is counted.

    Args:
        actor: who acts, such as `web:ann`.
        reason: why, at most 1,000 characters; `ignore` needs one.
        effects: the Effects to use; default the process's.

    Raises:
        EnqueueError: the actor or the reason is malformed.
        StoreUnavailable: the database is unavailable. Of at most 100 jobs some may have been acted on: a new preview
            has the others. A bulk action was started whole or not at all: see `find_bulks`.
    """
    if previewed.job_ids is not None:
        return act_on(previewed.action, previewed.job_ids, actor=actor, reason=reason, effects=effects)
    app = _checked(effects, previewed.action, actor, reason)
    with app.writing(None, {BulkJob.queue}) as connection:
        bulk_id = records.start_bulk(
            app.store, connection, previewed.action, previewed.selection, previewed.counted, actor=actor, reason=reason
        )
        payload = BulkPayload(bulk_id)
        job_id = enqueue(BulkJob.name, payload, key=f"bulk:{bulk_id}", session=connection, effects=app).job_id
        records.set_job(app.store, connection, bulk_id, job_id)
    return BulkStarted(bulk_id, job_id, previewed.counted.jobs, previewed.counted.all)


def act_on(
    action: BulkAction,
    job_ids: Sequence[int],
    *,
    actor: str,
    reason: str | None = None,
    effects: Effects | None = None,
) -> InlineResult:
    """Act on these jobs now, each in a transaction of its own. A crash leaves those that were acted on by then.

    Args:
        job_ids: at most 100.
        actor, reason, effects: as for `carry_out`.

    Raises:
        EnqueueError: more than 100 jobs, or the actor or the reason is malformed.
        StoreUnavailable: the database is unavailable.
    """
    app = _checked(effects, action, actor, reason)
    if len(job_ids) > INLINE_MAX:
        raise EnqueueError(f"{len(job_ids)} jobs are too many at once; give at most {INLINE_MAX}, or filters")
    operation = Operation(
        store=app.store, job_types=app.job_types, ledgers=app.ledgers, action=action, actor=actor, reason=reason
    )
    result, queues = act_inline(operation, job_ids)
    app.notifier.send(queues)
    return result


def find_bulk(bulk_id: int, *, effects: Effects | None = None) -> BulkRecord:
    """Look up a bulk action, with its progress.

    Raises:
        BulkNotFound: no bulk action has this id.
        StoreUnavailable: the database is unavailable.
    """
    app = app_of(effects)
    with app.store.read() as connection:
        return records.read_bulk(app.store, connection, bulk_id)


def find_bulks(
    *, status: str | None = None, before: int | None = None, limit: int = 50, effects: Effects | None = None
) -> list[BulkRecord]:
    """List bulk actions, newest first.

    Args:
        status: running (stopped ones too), done or cancelled. Default all.
        before: only those with a smaller id: the next page.
        limit: at most so many.
        effects: the Effects to use; default the process's.

    Raises:
        StoreUnavailable: the database is unavailable.
    """
    app = app_of(effects)
    with app.store.read() as connection:
        return records.list_bulks(app.store, connection, status=status, before=before, limit=limit)


def cancel_bulk(bulk_id: int, *, actor: str, reason: str | None = None, effects: Effects | None = None) -> BulkRecord:
    """End a bulk action before its next chunk. What it has done stays done.

    Raises:
        BulkNotFound: no bulk action has this id.
        JobStateError: it has ended.
        EnqueueError: the actor or the reason is malformed.
        StoreUnavailable: the database is unavailable. Calling again is safe.
    """
    app = _checked(effects, None, actor, reason)
    return records.cancel_bulk(app.store, bulk_id, actor=actor, reason=reason)


def _table_of(action: BulkAction, filters: DeadFilters | Filters) -> SelectedTable:
    if action.name not in _ACTIONS_OF_LIST[type(filters)]:
        which = "unresolved jobs" if isinstance(filters, DeadFilters) else "jobs"
        raise EnqueueError(f"{action.name} is no action on the list of {which}")
    if isinstance(filters, DeadFilters):
        if filters.closed:
            raise EnqueueError("resolved jobs cannot be acted on in bulk; leave out `closed`")
        return "unresolved"
    if filters.key is not None:
        raise EnqueueError("a key names one effect: act on its job")
    table: SelectedTable = "job_history" if action.name == "requeue" else "jobs"
    if filters.status is not None and (filters.status in LIVE) != (table == "jobs"):
        which = "live" if table == "jobs" else "ended"
        raise EnqueueError(f"status {filters.status}: {action.name} acts on {which} jobs only")
    return table


def _checked(effects: Effects | None, action: BulkAction | None, actor: str, reason: str | None) -> Effects:
    require("actor", actor, arguments.printable(), EnqueueError)
    require("reason", reason, optional(arguments.printable(1000)), EnqueueError)
    if action is not None and action.name == "ignore" and not reason:
        raise EnqueueError("ignore needs a reason")
    return app_of(effects)


def job_types(app: Effects) -> Sequence[JobType[Any]]:
    """The entry point `effects.job_types`."""
    return [BulkJob(app)]
