"""What an operator does to one job: cancel it, run it now, requeue it.

Each is one transaction that also writes who did it and why into `effects_job_actions`; a crash before its
commit leaves nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any, Literal, TypeAlias

import msgspec
from sqlalchemy import Connection, Row

from effects.errors import JobNotFound
from effects.settlement import Settlement
from effects.store.enqueue import JobRow, insert_jobs, reserve_ids
from effects.store.job_rows import job_columns, job_of
from effects.store.ledger import CORE_LEDGER, Ledger
from effects.store.settle import write_settlements
from effects.store.sql import Sql
from effects.store.store import Statement, Store

Cancelling: TypeAlias = Literal["cancelled", "cancel_requested"]

# Words of `effects_job_actions.action`. `send_again` stands at the new job and starts its effect anew: the
# ledger's fold looks at no job before it.
CANCEL, RUN_NOW, REQUEUE, SEND_AGAIN = "cancel", "run_now", "requeue", "send_again"
# What a person may say to a dead letter or an unknown outcome; each of them, and a requeue, closes it.
IGNORE, MARK_DONE, GIVE_UP = "ignore", "mark_done", "give_up"
CLOSING = (REQUEUE, IGNORE, MARK_DONE, GIVE_UP)


class Requeued(msgspec.Struct, frozen=True):
    """The new job of a requeue, and the lane whose workers should hear of it."""

    job_id: int
    queue: str


def cancel(
    store: Store, ledgers: Mapping[str, Ledger], job_id: int, *, actor: str, reason: str | None = None
) -> Cancelling:
    """End a waiting job `cancelled` at once; ask a running one to stop.

    A running attempt is not interrupted: its handler may see the wish and answer `Cancelled()`. What it
    answers stands (an effect that happened is recorded as done), but it is not tried again.

    Raises:
        JobNotFound: there is no such job, or it has ended; says how.
        StoreUnavailable: the database is away; calling again is safe.
    """
    with store.begin() as connection:
        row = store.one(connection, _lock_live, id=job_id)
        if row is None:
            raise not_there(store, connection, job_id, "only a live job can be cancelled")
        note(store, connection, job_id, CANCEL, actor, reason)
        if row.status == "running":
            store.write(connection, _request_cancel, id=job_id)
            return "cancel_requested"
        ended = Settlement(
            job=job_of(row),
            status="cancelled",
            outcome="",
            error_code="cancelled",
            message=f"cancelled by {actor}",
        )
        # A type that is not registered here has its effects, if any, in the core's ledger.
        write_settlements(store, connection, [ended], {row.job_type: CORE_LEDGER, **ledgers})
        return "cancelled"


def run_now(store: Store, job_id: int, *, actor: str, reason: str | None = None) -> str:
    """Make a waiting job due now; pauses, caps and the order of its group still hold.

    Returns:
        Its queue.

    Raises:
        JobNotFound: there is no such job, it is running, or it has ended; says which.
    """
    with store.begin() as connection:
        row = store.one(connection, _make_due, id=job_id)
        if row is None:
            raise not_there(store, connection, job_id, "only a waiting job can be run now")
        note(store, connection, job_id, RUN_NOW, actor, reason)
        return str(row.queue)


def requeue(
    store: Store,
    ledgers: Mapping[str, Ledger],
    job_id: int,
    *,
    actor: str,
    reason: str | None = None,
    again: bool = False,
) -> Requeued:
    """Try an ended job again as a new job; the old row stays as it is.

    The effect's ledger row moves to the new job: refused or abandoned becomes intended, unknown stays
    unknown until an attempt is done. Expiry is not taken over: the operator's word is newer.

    Args:
        again: carry out an effect that is done once more. It is recorded as `send_again` beside `requeue`.

    Raises:
        JobNotFound: there is no such ended job, a live job was requeued from it already, another job
            holds its key by now, or its effect is done and `again` was not given.
    """
    with store.begin() as connection:
        return requeue_within(store, connection, ledgers, job_id, actor=actor, reason=reason, again=again)


def requeue_within(
    store: Store,
    connection: Connection,
    ledgers: Mapping[str, Ledger],
    job_id: int,
    *,
    actor: str,
    reason: str | None = None,
    again: bool = False,
) -> Requeued:
    """`requeue` in a transaction that has more to do."""
    row = store.one(connection, _lock_ended, id=job_id)
    if row is None:
        raise not_there(store, connection, job_id, "only an ended job can be requeued")
    ledger = ledgers.get(row.job_type, CORE_LEDGER)
    done = _check_requeue(store, connection, row, ledger, again)
    new_id = _insert_again(store, connection, row)
    if row.idempotency_key is not None:
        store.write(connection, _move(ledger.table), old=job_id, new=new_id)
    note(store, connection, job_id, REQUEUE, actor, reason)
    if done:
        note(store, connection, new_id, SEND_AGAIN, actor, reason)
    return Requeued(new_id, row.queue)


def _check_requeue(store: Store, connection: Connection, row: Row[Any], ledger: Ledger, again: bool) -> bool:
    """Refuse what must not be requeued; whether the effect is done (and is to be done again)."""
    heir = store.one(connection, _heir, id=row.id)
    if heir is not None:
        raise JobNotFound(f"job {row.id} was requeued already: job {heir.id} is {heir.status}")
    done = bool(row.status == "succeeded")
    if row.idempotency_key is not None:
        state = store.value(connection, _lock_state(ledger.table), id=row.id)
        if state is None:
            raise JobNotFound(
                f"job {row.id} no longer holds the key {row.idempotency_key!r}: a newer job does "
                f"(see `effects why {row.idempotency_key}`)"
            )
        done = done or state == "done"
    if done and not again:
        raise JobNotFound(f"the effect of job {row.id} is done; only --again carries it out once more")
    return done


def _insert_again(store: Store, connection: Connection, row: Row[Any]) -> int:
    new_id = reserve_ids(store, connection, 1, groups=[row.group_key] if row.group_key is not None else [])[0]
    job = JobRow(
        n=0,
        id=new_id,
        job_type=row.job_type,
        queue=row.queue,
        priority=row.priority,
        payload=msgspec.Raw(row.payload.encode()),
        run_at=None,
        expires_at=None,
        max_attempts=row.max_attempts,
        group_key=row.group_key,
        limit_key=row.limit_key,
        key=row.idempotency_key,
        digest=None,
        trace_context=row.trace_context,
        on_unknown=row.on_unknown,
        requeued_from=row.id,
    )
    insert_jobs(store, connection, [job])
    if row.definition_id is not None:  # it is still that schedule's job, at that slot
        store.write(connection, _inherit, old=row.id, new=new_id)
    return new_id


def not_there(store: Store, connection: Connection, job_id: int, rule: str) -> JobNotFound:
    """The error for a job that is not in the state which an action needs."""
    status = store.value(connection, _status, id=job_id)
    return JobNotFound(f"there is no job {job_id}" if status is None else f"job {job_id} is {status}: {rule}")


def note(store: Store, connection: Connection, job_id: int, action: str, actor: str, reason: str | None) -> None:
    """Write who did what to this job, and why."""
    store.write(connection, _act, id=job_id, action=action, actor=actor, reason=reason)


# -- the statements --------------------------------------------------------------------------------------


def _act(sql: Sql) -> str:
    return f"""
    INSERT INTO {sql.job_actions} (job_id, action, actor, reason, created_at)
    VALUES (:id, :action, :actor, :reason, {sql.now})"""


def _lock_live(sql: Sql) -> str:
    return f"""
    SELECT {job_columns(sql)}, status
    FROM {sql.jobs} WHERE id = :id {sql.lock(skip=False)}"""


def _request_cancel(sql: Sql) -> str:
    return f"UPDATE {sql.jobs} SET cancel_requested = true, updated_at = {sql.now} WHERE id = :id"


def _make_due(sql: Sql) -> str:
    """A job that is due already keeps its place in the line."""
    return f"""
    UPDATE {sql.jobs} SET run_at = CASE WHEN run_at > {sql.now} THEN {sql.now} ELSE run_at END, updated_at = {sql.now}
    WHERE id = :id AND status <> 'running' RETURNING queue"""


def _lock_ended(sql: Sql) -> str:
    """Two requeues of one job wait here for each other."""
    return f"""
    SELECT id, job_type, status, {sql.json_text("payload")} AS payload, queue, priority, max_attempts, group_key,
        limit_key, idempotency_key, definition_id, trace_context, on_unknown
    FROM {sql.job_history} WHERE id = :id {sql.lock(skip=False)}"""


def _inherit(sql: Sql) -> str:
    old = f"FROM {sql.job_history} WHERE id = :old"
    return f"""
    UPDATE {sql.jobs} SET definition_id = (SELECT definition_id {old}), slot = (SELECT slot {old}) WHERE id = :new"""


def _heir(sql: Sql) -> str:
    return f"SELECT id, status FROM {sql.jobs} WHERE requeued_from = :id"


def _status(sql: Sql) -> str:
    return f"""
    SELECT status FROM {sql.jobs} WHERE id = :id
    UNION ALL SELECT status FROM {sql.job_history} WHERE id = :id"""


@cache
def _lock_state(table: str) -> Statement:
    def build(sql: Sql) -> str:
        return f"SELECT state FROM {getattr(sql, table)} WHERE job_id = :id {sql.lock(skip=False)}"

    return build


@cache
def _move(table: str) -> Statement:
    def build(sql: Sql) -> str:
        return f"""
        UPDATE {getattr(sql, table)} SET job_id = :new, updated_at = {sql.now},
            state = CASE WHEN state IN ('refused', 'abandoned', 'done') THEN 'intended' ELSE state END
        WHERE job_id = :old"""

    return build
