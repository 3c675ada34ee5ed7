"""Operators' actions: cancel a job, run it now, drain or forget a worker. Requeuing is
`effects.store.operator.requeue`.

Each is one transaction that also writes who did it and why into the audit log, and what decides a job's state into
`effects_job_actions`; a crash before its commit leaves nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, TypeAlias

from sqlalchemy import Connection

from effects.errors import JobNotFound, JobStateError, WorkerNotFound
from effects.model.ledger import Ledger
from effects.model.settlement import Settlement
from effects.store.audit_log.notes import AuditAction, note, note_all, of_bulk
from effects.store.db.sql import Sql
from effects.store.db.store import Store
from effects.store.queue.job_rows import job_columns, job_of
from effects.store.queue.settle import write_settlements
from effects.store.queue.table_ledger import CORE_LEDGER
from effects.store.queue.unresolved import CLOSING, remove_unresolved
from effects.text.nearest import nearest
from effects.text.wording import shown_status

Cancelling: TypeAlias = Literal["cancelled", "cancel_requested"]

# Words of `effects_job_actions.action`, beside those that resolve a job.
CANCEL, RUN_NOW = "cancel", "run_now"

_CANCEL_JOB, _RUN_JOB_NOW = AuditAction("job", CANCEL), AuditAction("job", RUN_NOW)
_DRAIN_WORKER, _FORGET_WORKER = AuditAction("worker", "drain"), AuditAction("worker", "forget")


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


def run_now(
    store: Store,
    job_id: int,
    *,
    actor: str,
    reason: str | None = None,
    bulk_id: int | None = None,
    connection: Connection | None = None,
) -> str:
    """Make a waiting job due now; pauses, caps and the order of its group still hold.

    Args:
        bulk_id, connection: as for `cancel`.

    Returns:
        Its queue.

    Raises:
        JobNotFound: there is no such job.
        JobStateError: it is running or has ended; the message tells which.
    """
    with store.joined(connection) as joined:
        row = store.row(joined, _make_due, id=job_id)
        if row is None:
            raise wrong_state(store, joined, job_id, "only a waiting job can be run now")
        record_action(store, joined, job_id, RUN_NOW, actor, reason)
        note(store, joined, _RUN_JOB_NOW, job_id, actor=actor, reason=reason, detail=of_bulk(bulk_id))
        return str(row.queue)


def request_drain(store: Store, worker: str | None, *, actor: str, reason: str | None = None) -> list[str]:
    """Ask one worker or all to end as after SIGTERM; each reads the request with its next heartbeat.

    The first request stays: repeating it is harmless.

    Returns:
        The ids of the workers that were asked.

    Raises:
        WorkerNotFound: no worker of this id is registered, or it has ended; names the nearest that there is.
    """
    with store.begin() as connection:
        worker_ids = [
            row.id for row in store.all(connection, _request_drain, worker=worker, actor=actor, reason=reason)
        ]
        if worker is not None and not worker_ids:
            ids = [row.id for row in store.all(connection, _worker_ids)]
            raise WorkerNotFound(f"worker {worker} not found{nearest(worker, ids)}")
        note_all(store, connection, _DRAIN_WORKER, {name: {} for name in worker_ids}, actor=actor, reason=reason)
    return sorted(worker_ids)


def forget_worker(store: Store, worker: str, *, actor: str, reason: str | None = None) -> None:
    """Delete the row of a worker that ended by a fault, once that was looked into: `doctor` and the metrics count it
    for an hour. Repeated, or after a crash behind the commit, it is not found.

    Raises:
        WorkerNotFound: no worker of this id has ended by a fault, or jobs that it held are not taken back yet; names
            the nearest that may be forgotten.
    """
    with store.begin() as connection:
        if not store.write(connection, _forget_worker, worker=worker):
            ids = [row.id for row in store.all(connection, _ended_ids)]
            raise WorkerNotFound(f"no ended worker {worker} without jobs{nearest(worker, ids)}")
        note(store, connection, _FORGET_WORKER, worker, actor=actor, reason=reason)


def wrong_state(store: Store, connection: Connection, job_id: int, rule: str) -> JobNotFound | JobStateError:
    """The error for a job that is not in the state that an action needs, or that does not exist."""
    status = store.value(connection, _status, id=job_id)
    if status is None:
        return JobNotFound(f"job {job_id} not found")
    return JobStateError(f"job {job_id} is {shown_status(status)}: {rule}", code=status)


def record_action(
    store: Store, connection: Connection, job_id: int, action: str, actor: str, reason: str | None
) -> None:
    """Write who did what to this job, and why: the record that decides its state, and goes with it.

    A resolution ends the job's wait for a person.
    """
    if action in CLOSING:
        remove_unresolved(store, connection, [job_id])
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


def _request_drain(sql: Sql) -> str:
    actor, reason, worker = (f"CAST(:{name} AS text)" for name in ("actor", "reason", "worker"))
    first = "drain_requested_at IS NULL"
    return f"""
    UPDATE {sql.workers} SET drain_requested_by = CASE WHEN {first} THEN {actor} ELSE drain_requested_by END,
        drain_reason = CASE WHEN {first} THEN {reason} ELSE drain_reason END,
        drain_requested_at = COALESCE(drain_requested_at, {sql.now})
    WHERE ended_at IS NULL AND id = COALESCE({worker}, id) RETURNING id"""


def _forget_worker(sql: Sql) -> str:
    return f"DELETE FROM {sql.workers} WHERE id = :worker AND {_may_be_forgotten(sql)}"


def _ended_ids(sql: Sql) -> str:
    return f"SELECT id FROM {sql.workers} WHERE {_may_be_forgotten(sql)}"


def _may_be_forgotten(sql: Sql) -> str:
    return f"""ended_at IS NOT NULL AND NOT EXISTS (
        SELECT 1 FROM {sql.jobs} AS j WHERE j.status = 'running' AND j.locked_by = {sql.workers}.id)"""


def _worker_ids(sql: Sql) -> str:
    return f"SELECT id FROM {sql.workers} WHERE ended_at IS NULL"


def _status(sql: Sql) -> str:
    return f"""
    SELECT status FROM {sql.jobs} WHERE id = :id
    UNION ALL SELECT status FROM {sql.job_history} WHERE id = :id"""
