"""The rows of bulk actions, what each is about and how far it is, and the chunks that its job acts on.

`last_id` is the fence: a chunk moves it by a comparison with what it began from, in the transaction of its actions.
"""

from __future__ import annotations

import datetime as dt
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

import msgspec
from sqlalchemy import Connection, Row

from effects.errors import BulkNotFound, JobNotFound, JobStateError, StoreConflict
from effects.kit.crashpoints import point
from effects.kit.moments import moment, moment_or_none
from effects.model.ledger import Ledger
from effects.model.registry import Registry
from effects.operate.tables.bulk_selection import (
    REJECTED,
    BulkAction,
    Counted,
    Operation,
    Selection,
    count_selected,
    groups_of,
    refusal_code,
    select_ids,
)
from effects.operate.tables.counts import is_stopped
from effects.store.audit_log import AuditAction, note
from effects.store.db.records import shown_json
from effects.store.db.sql import Sql, and_each, set_filters
from effects.store.db.store import Statement, Store, as_json
from effects.store.enqueue.insert import lock_groups

_START_BULK, _CANCEL_BULK, _END_BULK = (AuditAction("bulk", word) for word in ("start", "cancel", "end"))


class BulkRecord(msgspec.Struct, frozen=True, kw_only=True):
    """A bulk action as people and scripts are shown it.

    Args:
        status: running, done or cancelled; `stopped`, where it runs and no job works on it any more.
        expected: how many jobs the preview counted; at least so many, unless `counted_all`.
        done, refused: jobs that it has acted on, and that it could not.
        refusals: reason → jobs.
        left: jobs that it has not come to and that still match, counted to 10,000. None: its filters cannot be read, or
            the count, which looks at the newest part of the history, does not reach back to where it is.
        no_longer_match: of the expected jobs those that had changed before it came to them, as by a worker that was
            faster. None: it cannot be told, because not all were counted.
        job_id: the newest job that works on it.
    """

    id: int
    action: str
    status: str
    expected: int
    counted_all: bool
    done: int
    refused: int
    refusals: Any
    left: int | None
    no_longer_match: int | None
    actor: str
    reason: str | None
    job_id: int | None
    last_id: int
    max_id: int
    options: Any
    filters: Any
    created_at: dt.datetime
    updated_at: dt.datetime
    ended_at: dt.datetime | None


class RunningBulk(msgspec.Struct, frozen=True, kw_only=True):
    """One that runs, under the lock of its row."""

    id: int
    action: BulkAction
    selection: Selection
    last_id: int
    expected: Counted
    done: int
    refused: int
    refusals: dict[str, int]
    actor: str
    reason: str | None


class BulkCounts(msgspec.Struct, frozen=True, kw_only=True):
    """What a chunk came to."""

    last_id: int
    done: int
    refusals: dict[str, int]
    ended: bool


def start_bulk(
    store: Store,
    connection: Connection,
    action: BulkAction,
    selection: Selection,
    expected: Counted,
    *,
    actor: str,
    reason: str | None,
) -> int:
    """Write a bulk action and that it was started; its job follows in the same transaction."""
    bulk_id = int(
        store.value(
            connection, _insert, action=action.name, options=as_json(_options(action)), filters=as_json(selection),
            last_id=selection.after_id, max_id=selection.max_id, expected=expected.jobs, counted_all=expected.all,
            actor=actor, reason=reason,
        )
    )  # fmt: skip
    detail = {"action": action.name, **_options(action), "expected": expected.jobs}
    note(store, connection, _START_BULK, bulk_id, actor=actor, reason=reason, detail=detail)
    return bulk_id


def set_job(store: Store, connection: Connection, bulk_id: int, job_id: int) -> None:
    """Say which job works on it."""
    store.write(connection, _set_job, id=bulk_id, job_id=job_id)


def lock_running(store: Store, connection: Connection, bulk_id: int) -> RunningBulk | None:
    """Take the row until the transaction ends; None where it has ended, or another transaction has it."""
    row = store.row(connection, _lock, id=bulk_id)
    if row is None:
        return None
    options = msgspec.json.decode(row.options)
    return RunningBulk(
        id=bulk_id,
        action=msgspec.convert({"name": row.action, **options}, BulkAction),
        selection=msgspec.json.decode(row.filters, type=Selection),
        last_id=row.last_id,
        expected=Counted(row.expected, bool(row.counted_all)),
        done=row.done,
        refused=row.refused,
        refusals=msgspec.json.decode(row.refusals),
        actor=row.actor,
        reason=row.reason,
    )


def advance(
    store: Store,
    connection: Connection,
    bulk: RunningBulk,
    chunk: BulkCounts,
    *,
    job_id: int,
    actor: str,
    reason: str | None,
) -> None:
    """Record what a chunk came to, and the end with it, in its own transaction.

    Raises:
        StoreConflict: another attempt has recorded this chunk. Nothing of this one may be committed.
    """
    refusals = {code: bulk.refusals.get(code, 0) + chunk.refusals.get(code, 0)
                for code in sorted({*bulk.refusals, *chunk.refusals})}  # fmt: skip
    done, refused = bulk.done + chunk.done, sum(refusals.values())
    moved = store.write(
        connection, _advance, id=bulk.id, before=bulk.last_id, last_id=chunk.last_id, done=done, refused=refused,
        refusals=as_json(refusals), status="done" if chunk.ended else "running", job_id=job_id,
    )  # fmt: skip
    if moved != 1:
        raise StoreConflict(f"bulk {bulk.id} has moved on meanwhile")
    if chunk.ended:
        gone = _no_longer_match(bulk.expected, done + refused, Counted(0, all=True))
        detail = {"done": done, "refused": refused, "refusals": refusals, "no_longer_match": gone}
        note(store, connection, _END_BULK, bulk.id, actor=actor, reason=reason, detail=detail)


def cancel_bulk(store: Store, bulk_id: int, *, actor: str, reason: str | None) -> BulkRecord:
    """Let no further chunk begin. One that is under way is waited for, and counts.

    Raises:
        BulkNotFound: there is no such bulk action.
        JobStateError: it has ended.
    """
    with store.begin() as connection:
        row = store.row(connection, _cancel, id=bulk_id)
        if row is None:
            ended = read_bulk(store, connection, bulk_id)
            raise JobStateError(f"bulk {bulk_id} is {ended.status}: only a running one can be cancelled")
        detail = {"done": row.done, "refused": row.refused}
        note(store, connection, _CANCEL_BULK, bulk_id, actor=actor, reason=reason, detail=detail)
        return read_bulk(store, connection, bulk_id)


def read_bulk(store: Store, connection: Connection, bulk_id: int) -> BulkRecord:
    """One of them.

    Raises:
        BulkNotFound: there is no such bulk action.
    """
    row = store.row(connection, _read(frozenset({"id"})), id=bulk_id, limit=1)
    if row is None:
        raise BulkNotFound(f"bulk {bulk_id} not found")
    return _record(store, connection, row)


def list_bulks(
    store: Store, connection: Connection, *, status: str | None, before: int | None, limit: int
) -> list[BulkRecord]:
    """The newest first."""
    parameters = set_filters({"status": status, "before": before})
    rows = store.all(connection, _read(frozenset(parameters)), limit=limit, **parameters)
    return [_record(store, connection, row) for row in rows]


def _record(store: Store, connection: Connection, row: Row[Any]) -> BulkRecord:
    left = _count_left(store, connection, row)
    expected = Counted(row.expected, bool(row.counted_all))
    gone = None if left is None else _no_longer_match(expected, row.done + row.refused, left)
    return BulkRecord(
        id=row.id, action=row.action, status="stopped" if row.stopped else row.status, expected=row.expected,
        counted_all=bool(row.counted_all), done=row.done, refused=row.refused, refusals=shown_json(row.refusals),
        left=left.jobs if left is not None and left.reached_oldest else None, no_longer_match=gone, actor=row.actor,
        reason=row.reason, job_id=row.job_id, last_id=row.last_id, max_id=row.max_id, options=shown_json(row.options),
        filters=shown_json(row.filters), created_at=moment(row.created_at),
        updated_at=moment(row.updated_at), ended_at=moment_or_none(row.ended_at),
    )  # fmt: skip


def _count_left(store: Store, connection: Connection, row: Row[Any]) -> Counted | None:
    """None where another program has written filters that cannot be read."""
    if row.status == "done":
        return Counted(0, all=True)
    try:
        selection = msgspec.json.decode(row.filters, type=Selection)
    except msgspec.MsgspecError:
        return None
    return count_selected(store, connection, msgspec.structs.replace(selection, after_id=row.last_id))


def _no_longer_match(expected: Counted, came_to: int, left: Counted) -> int | None:
    """None where not all were counted. Jobs whose transactions committed late may be more than were expected."""
    return max(0, expected.jobs - came_to - left.jobs) if expected.all and left.all else None


def _options(action: BulkAction) -> dict[str, bool]:
    """The overrides that were given."""
    overrides = {"even_if_unknown": action.even_if_unknown, "even_if_done": action.even_if_done}
    return {name: True for name, is_set in overrides.items() if is_set}


# -- the statements --------------------------------------------------------------------------------------


def _insert(sql: Sql) -> str:
    json = ("options", "filters")
    columns = ("action", *json, "last_id", "max_id", "expected", "counted_all", "actor", "reason")
    values = ", ".join(f"CAST(:{name} AS jsonb)" if name in json and sql.postgresql else f":{name}" for name in columns)
    return f"""
    INSERT INTO {sql.bulk_actions} ({", ".join(columns)}, created_at, updated_at)
    VALUES ({values}, {sql.now}, {sql.now}) RETURNING id"""


def _set_job(sql: Sql) -> str:
    return f"UPDATE {sql.bulk_actions} SET job_id = :job_id WHERE id = :id"


def _lock(sql: Sql) -> str:
    return f"""
    SELECT action, {sql.json_text("options")} AS options, {sql.json_text("filters")} AS filters, last_id, expected,
        counted_all, done, refused, {sql.json_text("refusals")} AS refusals, actor, reason
    FROM {sql.bulk_actions} WHERE id = :id AND status = 'running' {sql.lock()}"""


def _advance(sql: Sql) -> str:
    refusals = "CAST(:refusals AS jsonb)" if sql.postgresql else ":refusals"
    return f"""
    UPDATE {sql.bulk_actions} SET last_id = :last_id, done = :done, refused = :refused, refusals = {refusals},
        status = CAST(:status AS text), job_id = :job_id, updated_at = {sql.now},
        ended_at = CASE WHEN CAST(:status AS text) = 'running' THEN NULL ELSE {sql.now} END
    WHERE id = :id AND status = 'running' AND last_id = :before"""


def _cancel(sql: Sql) -> str:
    return f"""
    UPDATE {sql.bulk_actions} SET status = 'cancelled', updated_at = {sql.now}, ended_at = {sql.now}
    WHERE id = :id AND status = 'running' RETURNING done, refused"""


@cache
def _read(names: frozenset[str]) -> Statement:
    def build(sql: Sql) -> str:
        times = ", ".join(f"{sql.epoch(f'b.{name}')} AS {name}" for name in ("created_at", "updated_at", "ended_at"))
        json = ", ".join(f"{sql.json_text(f'b.{name}')} AS {name}" for name in ("options", "filters", "refusals"))
        by_filter = {"id": "b.id = :id", "before": "b.id < :before", "status": "b.status = :status"}
        return f"""
        SELECT b.id, b.action, b.status, b.expected, b.counted_all, b.done, b.refused, b.actor, b.reason, b.job_id,
            b.last_id, b.max_id, {times}, {json},
            {is_stopped(sql)} AS stopped
        FROM {sql.bulk_actions} AS b WHERE true{and_each(by_filter, names)} ORDER BY b.id DESC LIMIT :limit"""

    return build


CHUNK = 200


class BulkChunk(msgspec.Struct, frozen=True):
    """What was done: jobs acted on, the queues to hint, and whether the bulk action has ended with it."""

    done: int
    queues: set[str]
    ended: bool


class ChunkActor:
    """Acts on chunks of one bulk action, for one of its jobs."""

    def __init__(
        self, store: Store, job_types: Registry, ledgers: Mapping[str, Ledger], *, bulk_id: int, job_id: int
    ) -> None:
        self._store, self._job_types, self._ledgers = store, job_types, ledgers
        self._bulk_id, self._job_id = bulk_id, job_id

    def act(self, size: int = CHUNK) -> BulkChunk | None:
        """Act on the next jobs, at most `size`. A job that refuses is counted by its reason, and stops nothing.

        Returns:
            None where the bulk action does not run, or another attempt has its row.

        Raises:
            DBAPIError: the database refuses one of them; nothing was done. Try fewer, or pass over a single one.
            StoreConflict: another transaction was in the way; nothing was done.
            StoreUnavailable: the database is unavailable. What was committed stays.
        """
        return self._work(size, pass_over=False)

    def pass_over(self) -> BulkChunk | None:
        """Count the next job as refused by the database, without an attempt at it."""
        return self._work(1, pass_over=True)

    def _work(self, size: int, *, pass_over: bool) -> BulkChunk | None:
        store = self._store
        with store.begin() as connection:
            bulk = lock_running(store, connection, self._bulk_id)
            if bulk is None:
                return None
            selected = select_ids(store, connection, bulk.selection, bulk.last_id, size)
            if pass_over:
                done, queues, refusals = 0, set[str](), Counter({REJECTED: len(selected.ids)})
            else:
                done, queues, refusals = self._act_on(connection, bulk, selected.ids)
            ended = selected.last_id >= bulk.selection.max_id
            counts = BulkCounts(last_id=selected.last_id, done=done, refusals=dict(+refusals), ended=ended)
            advance(store, connection, bulk, counts, job_id=self._job_id, actor=bulk.actor, reason=bulk.reason)
            point("bulk.before_commit")
        point("bulk.committed")
        return BulkChunk(done, queues, ended)

    def _act_on(
        self, connection: Connection, bulk: RunningBulk, job_ids: Sequence[int]
    ) -> tuple[int, set[str], Counter[str]]:
        operation = Operation(
            store=self._store, job_types=self._job_types, ledgers=self._ledgers, action=bulk.action, actor=bulk.actor,
            reason=bulk.reason, bulk_id=bulk.id,
        )  # fmt: skip
        # In their order, as an enqueue of many takes them: job by job, two transactions could wait for each other.
        lock_groups(self._store, connection, groups_of(self._store, connection, job_ids))
        done, queues, refusals = 0, set[str](), Counter[str]()
        for job_id in job_ids:
            try:
                acted = operation.act(job_id, connection)
            except (JobNotFound, JobStateError) as error:
                refusals[refusal_code(error)] += 1
            else:
                done += 1
                queues.update({acted.queue} if acted.queue is not None else ())
        return done, queues, refusals
