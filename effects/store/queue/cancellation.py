"""Cancelling a job."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, TypeAlias

from sqlalchemy import Connection

from effects.errors import JobNotFound, JobStateError
from effects.kit.text.wording import shown_status
from effects.model.ledger import Ledger
from effects.model.settlement import Settlement
from effects.store.audit_log import AuditAction, note, of_bulk
from effects.store.db.sql import Sql
from effects.store.db.store import Store
from effects.store.queue.job_rows import job_columns, job_of
from effects.store.queue.settle import write_settlements
from effects.store.queue.table_ledger import CORE_LEDGER
from effects.store.queue.unresolved import record_action

Cancelling: TypeAlias = Literal["cancelled", "cancel_requested"]

CANCEL = "cancel"  # of `effects_job_actions.action`
_CANCEL_JOB = AuditAction("job", CANCEL)


def cancel(
    store: Store,
    ledgers: Mapping[str, Ledger],
    job_id: int,
    *,
    actor: str,
    reason: str | None = None,
    bulk_id: int | None = None,
    connection: Connection | None = None,
) -> Cancelling:
    """End a waiting job `cancelled` at once; ask a running one to stop.

    A running attempt is not interrupted: its handler may see the wish and answer `Cancelled()`. What it
    answers stands (an effect that happened is recorded as done), but it is not tried again. One that has not been
    released by then never is.

    Args:
        bulk_id: the bulk action that this is a part of, for the audit log.
        connection: the caller's transaction; default one of our own.

    Raises:
        JobNotFound: there is no such job.
        JobStateError: it has ended; the message tells how.
        StoreUnavailable: the database is unavailable; calling again is safe.
    """
    with store.joined(connection) as joined:
        return _cancel(store, joined, ledgers, job_id, actor, reason, bulk_id)


def _cancel(
    store: Store,
    connection: Connection,
    ledgers: Mapping[str, Ledger],
    job_id: int,
    actor: str,
    reason: str | None,
    bulk_id: int | None,
) -> Cancelling:
    row = store.row(connection, _lock_live, id=job_id)
    if row is None:
        raise wrong_state(store, connection, job_id, "only a live job can be cancelled")
    record_action(store, connection, job_id, CANCEL, actor, reason)
    result: Cancelling = "cancel_requested" if row.status == "running" else "cancelled"
    detail = {"result": result, **of_bulk(bulk_id)}
    note(store, connection, _CANCEL_JOB, job_id, actor=actor, reason=reason, detail=detail)
    if result == "cancel_requested":
        store.write(connection, _request_cancel, id=job_id)
        return result
    ended = Settlement(
        job=job_of(row),
        status="cancelled",
        outcome="",
        error_code="cancelled",
        message=f"cancelled by {actor}",
    )
    # A type that is not registered here has its effects, if any, in the core's ledger.
    write_settlements(store, connection, [ended], {row.job_type: CORE_LEDGER, **ledgers})
    return result


def wrong_state(store: Store, connection: Connection, job_id: int, rule: str) -> JobNotFound | JobStateError:
    """The error for a job that is not in the state that an action needs, or that does not exist."""
    status = store.value(connection, _status, id=job_id)
    if status is None:
        return JobNotFound(f"job {job_id} not found")
    word = shown_status(status)
    return JobStateError(f"job {job_id} is {word}: {rule}", code=word)


# -- the statements --------------------------------------------------------------------------------------


def _lock_live(sql: Sql) -> str:
    return f"""
    SELECT {job_columns(sql)}, status
    FROM {sql.jobs} WHERE id = :id {sql.lock(skip=False)}"""


def _request_cancel(sql: Sql) -> str:
    return f"UPDATE {sql.jobs} SET cancel_requested = true, updated_at = {sql.now} WHERE id = :id"


def _status(sql: Sql) -> str:
    return f"""
    SELECT status FROM {sql.jobs} WHERE id = :id
    UNION ALL SELECT status FROM {sql.job_history} WHERE id = :id"""
