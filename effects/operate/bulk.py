"""Bulk actions: one action on all jobs that filters select, previewed first.

At most 100 jobs are acted on at once, at a terminal 1,000. More become a row of `effects_bulk_actions` and one job of
type `effects.bulk`, which works through them in chunks of 200, oldest first: it survives crashes, shows its progress
and can be cancelled.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from datetime import datetime

import msgspec
from sqlalchemy.exc import DBAPIError

from effects.app.default import app_of
from effects.app.effects import Effects
from effects.app.late_jobs import BulkJob, BulkPayload
from effects.calls.enqueue import enqueue
from effects.errors import BulkNotFound, EnqueueError, StoreUnavailable
from effects.kit import arguments
from effects.kit.arguments import optional, require
from effects.model.job import ENDED, LIVE_SHOWN, Attempt
from effects.model.outcome import Cancelled, Done, Outcome, Refused, Snooze
from effects.operate.tables import bulk_rows
from effects.operate.tables.bulk_rows import CHUNK, BulkChunk, BulkRecord, ChunkActor
from effects.operate.tables.bulk_selection import (
    BulkAction,
    Counted,
    InlineResult,
    Operation,
    SelectedTable,
    Selection,
    act_inline,
    count_selected,
    freeze,
    frozen_at,
    select_ids,
)
from effects.operate.tables.dead_letters import DeadFilters
from effects.operate.tables.job_list import Filters
from effects.store.db.faults import is_lost
from effects.store.db.walk import Page, walk
from effects.store.sessions.asynchronous import ALONE

INLINE_MAX = 100  # jobs that are acted on at once
ACT_ON_MAX = 1_000  # that a caller may ask for

_ACTIONS_OF_LIST: dict[type, frozenset[str]] = {
    DeadFilters: frozenset({"requeue", "ignore", "resolve_requeue", "mark_done", "give_up"}),
    Filters: frozenset({"requeue", "cancel", "run_now"}),
}


class BulkPreview(msgspec.Struct, frozen=True, kw_only=True):
    """What an action would be carried out on; `carry_out` takes it as it is, however much later.

    Args:
        counted: how many jobs match.
        job_ids: all of them, oldest first, where they are at most `at_once`; else None.
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
    """More jobs match than are acted on at once: a job acts. They are at least `expected`, unless `counted_all`."""

    bulk_id: int
    job_id: int
    expected: int
    counted_all: bool


def preview(
    action: BulkAction,
    filters: DeadFilters | Filters,
    *,
    at_once: int | None = None,
    effects: Effects | None = None,
) -> BulkPreview:
    """Freeze what the filters select, and count it. Writes nothing.

    Args:
        filters: of the list of unresolved jobs (requeue, ignore, resolve_requeue, mark_done, give_up), or of the list
            of jobs (requeue: ended ones; cancel, run_now: live ones). `limit` means nothing here. With `as_of`, as
            they were at that time.
        at_once: act on so many jobs without a job of its own, at most 1,000; default 100.
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
        inline_max = INLINE_MAX if at_once is None else min(at_once, ACT_ON_MAX)
        if counted.all and counted.jobs <= inline_max:
            selected = select_ids(app.store, connection, selection, selection.after_id, inline_max)
            job_ids = tuple(selected.ids)
    return BulkPreview(action=action, selection=selection, counted=counted, job_ids=job_ids)


def carry_out(
    previewed: BulkPreview, *, actor: str, reason: str | None = None, effects: Effects | None = None
) -> InlineResult | BulkStarted:
    """Act on what a preview has frozen: at once on few jobs, else by a job.

    What is refused by now (another person was faster, the effect may have happened) stops nothing; it is counted.

    Args:
        actor: who acts, such as `web:ann`.
        reason: why, at most 1,000 characters; `ignore` needs one.
        effects: the Effects to use; default the process's.

    Raises:
        EnqueueError: the actor or the reason is malformed.
        StoreUnavailable: the database is unavailable. Of few jobs some may have been acted on: a new preview
            has the others. A bulk action was started whole or not at all: see `find_bulks`.
    """
    if previewed.job_ids is not None:
        return act_on(previewed.action, previewed.job_ids, actor=actor, reason=reason, effects=effects)
    app = _checked(effects, previewed.action, actor, reason)
    with app.writing(ALONE, {BulkJob.queue}) as connection:
        bulk_id = bulk_rows.start_bulk(
            app.store, connection, previewed.action, previewed.selection, previewed.counted, actor=actor, reason=reason
        )
        payload = BulkPayload(bulk_id)
        job_id = enqueue(BulkJob.name, payload, key=f"bulk:{bulk_id}", session=connection, effects=app).job_id
        bulk_rows.set_job(app.store, connection, bulk_id, job_id)
    return BulkStarted(bulk_id, job_id, previewed.counted.jobs, previewed.counted.all)


def act_on(
    action: BulkAction,
    job_ids: Sequence[int],
    *,
    actor: str,
    reason: str | None = None,
    effects: Effects | None = None,
) -> InlineResult:
    """Act on these jobs now, each in its own transaction. A crash leaves those that were acted on by then.

    Args:
        job_ids: at most 1,000.
        actor, reason, effects: as for `carry_out`.

    Raises:
        EnqueueError: more than 1,000 jobs, or the actor or the reason is malformed.
        StoreUnavailable: the database is unavailable.
    """
    app = _checked(effects, action, actor, reason)
    if len(job_ids) > ACT_ON_MAX:
        raise EnqueueError(f"{len(job_ids)} jobs are too many at once; give at most {ACT_ON_MAX:,}, or filters")
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
        return bulk_rows.read_bulk(app.store, connection, bulk_id)


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
        return bulk_rows.list_bulks(app.store, connection, status=status, before=before, limit=limit)


def cancel_bulk(bulk_id: int, *, actor: str, reason: str | None = None, effects: Effects | None = None) -> BulkRecord:
    """End a bulk action before its next chunk. What it has done stays done.

    Raises:
        BulkNotFound: no bulk action has this id.
        JobStateError: it has ended.
        EnqueueError: the actor or the reason is malformed.
        StoreUnavailable: the database is unavailable. Calling again is safe.
    """
    app = _checked(effects, None, actor, reason)
    return bulk_rows.cancel_bulk(app.store, bulk_id, actor=actor, reason=reason)


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
    if filters.status not in (None, *LIVE_SHOWN, *ENDED):
        raise EnqueueError(f"status {filters.status!r}: jobs have {', '.join((*LIVE_SHOWN, *ENDED))}")
    if filters.status is not None and (filters.status in LIVE_SHOWN) != (table == "jobs"):
        which = "live" if table == "jobs" else "ended"
        raise EnqueueError(f"status {filters.status}: {action.name} acts on {which} jobs only")
    return table


def _checked(effects: Effects | None, action: BulkAction | None, actor: str, reason: str | None) -> Effects:
    require("actor", actor, arguments.printable(), EnqueueError)
    require("reason", reason, optional(arguments.printable(1000)), EnqueueError)
    if action is not None and action.name == "ignore" and not reason:
        raise EnqueueError("ignore needs a reason")
    return app_of(effects)


SLICE_SECONDS = 5.0  # of one attempt of the job; then others have their turn
BUSY_SECONDS = 2.0  # before a look at a row that another attempt has
OUTAGE_SECONDS = 5.0


def carry_out_chunks(app: Effects, payload: BulkPayload, attempt: Attempt) -> Outcome:
    """One attempt of the job of a bulk action: chunk after chunk, for five seconds."""
    if attempt.cancel_requested:
        return Cancelled("its job was cancelled")
    until = time.monotonic() + SLICE_SECONDS
    work = _Slice(app, payload.bulk_id, attempt.job.id)
    try:
        walk(work.step, go_on=lambda: (work.is_due or time.monotonic() < until) and not attempt.cancel_requested)
    except StoreUnavailable:
        return Snooze(OUTAGE_SECONDS, "the database was unavailable, or another transaction in the way")
    if work.is_over:
        return _ended(app, payload.bulk_id)
    return Snooze(0.0, "there is more to do")


def _ended(app: Effects, bulk_id: int) -> Outcome:
    """Read what the row says: that there was no chunk has three reasons."""
    try:
        with app.store.read() as connection:
            bulk = bulk_rows.read_bulk(app.store, connection, bulk_id)
    except BulkNotFound as error:
        return Refused(str(error), code="not_found")
    if bulk.status == "cancelled":
        return Cancelled(f"bulk {bulk_id} was cancelled")
    if bulk.status == "done":
        counts = {"done": bulk.done, "refused": bulk.refused, "no_longer_match": bulk.no_longer_match}
        return Done(detail={"bulk": bulk_id, **counts})
    return Snooze(BUSY_SECONDS, f"another attempt works on bulk {bulk_id}")


class _Slice:
    """The steps of one attempt. `is_over`: there was no further chunk for it. `is_due`: it owes a chunk, however late:
    the next slice would begin to narrow down at full size again.
    """

    def __init__(self, app: Effects, bulk_id: int, job_id: int) -> None:
        self._app = app
        self._actor = ChunkActor(app.store, app.job_types, app.ledgers, bulk_id=bulk_id, job_id=job_id)
        self.is_over, self.is_due, self._lost = False, True, False

    def step(self, size: int | None) -> Page:
        """Act on a chunk. After one that the database refuses, on fewer, until the one job that it refuses is alone."""
        size = size or CHUNK
        try:
            chunk = self._actor.act(size)
        except (DBAPIError, StoreUnavailable) as error:  # about a row: all others are translated
            if isinstance(error, StoreUnavailable) and not is_lost(error):
                raise
            if size > 1 or (is_lost(error) and not self._lost):
                self.is_due, self._lost = True, is_lost(error)
                return Page(0, max(1, size // 2))
            chunk = self._actor.pass_over()
        self.is_due = False
        return self._page(chunk)

    def _page(self, chunk: BulkChunk | None) -> Page:
        if chunk is None:
            self.is_over = True
            return Page(0)
        self._app.notifier.send(chunk.queues)
        self.is_over = chunk.ended
        return Page(chunk.done, None if chunk.ended else CHUNK)
