"""Operators' actions: run a job now, drain or forget a worker. Requeuing is `requeue`; cancelling, which apps do too,
`effects.store.queue.cancellation`. And the audit log, which all actions are noted in: reading it, newest first; and
noting looks at what may be personal, before it is shown.

Each is one transaction that also writes who did it and why into the audit log, and what decides a job's state into
`effects_job_actions`; a crash before its commit leaves nothing.
"""

from __future__ import annotations

import datetime as dt
from functools import cache
from typing import Any

import msgspec
from sqlalchemy import Connection

from effects.errors import WorkerNotFound
from effects.kit.text.unsafe import nearest
from effects.store.audit_log import AuditAction, note, note_all, of_bulk
from effects.store.db.records import record, shown_json
from effects.store.db.sql import ANY_TIME, Sql, Window, and_each, set_filters
from effects.store.db.store import Statement, Store
from effects.store.queue.cancellation import wrong_state
from effects.store.queue.unresolved import record_action

# Of `effects_job_actions.action`, beside those that cancel or resolve a job.
RUN_NOW = "run_now"

_EQUAL = ("actor", "action", "subject_kind", "subject")  # filters of the audit log
_RUN_JOB_NOW = AuditAction("job", RUN_NOW)
LOOK_UP, REVEAL_JOB = AuditAction("address", "look_up"), AuditAction("job", "reveal")
_DRAIN_WORKER, _FORGET_WORKER = AuditAction("worker", "drain"), AuditAction("worker", "forget")


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


# -- the audit log --------------------------------------------------------------------------------------


class AuditEntry(msgspec.Struct, frozen=True, kw_only=True):
    """One action: by whom, through what, on what, why and when.

    Args:
        via: `cli`, `web`, `api` or `schedule`.
        detail: what was changed; an object, if our own code wrote it.
    """

    id: int
    created_at: dt.datetime
    actor: str
    via: str
    action: str
    subject_kind: str
    subject: str
    tenant: str | None
    reason: str | None
    detail: Any


class LogFilters(msgspec.Struct, frozen=True, kw_only=True):
    """What `list_entries` shows; None is no filter.

    Args:
        before: only entries older than the one with this id: the last id of a page continues with the next.
        window: when they were written.
    """

    actor: str | None = None
    action: str | None = None
    subject_kind: str | None = None
    subject: str | None = None
    before: int | None = None
    window: Window = ANY_TIME
    limit: int = 50


def list_entries(store: Store, filters: LogFilters) -> list[AuditEntry]:
    """Entries that match, newest first, at most `filters.limit`.

    Raises:
        StoreUnavailable: the database is unavailable.
    """
    values = {name: getattr(filters, name) for name in _EQUAL} | {"before": filters.before}
    parameters = set_filters(values | filters.window.parameters())
    with store.read() as connection:
        rows = store.all(connection, _list(frozenset(parameters)), limit=filters.limit, **parameters)
        return [
            record(AuditEntry, row, detail=shown_json(row.detail))
            for row in rows
        ]  # fmt: skip


def note_look(store: Store, action: AuditAction, subject: str | int, *, actor: str, reason: str | None = None) -> None:
    """What may be personal is about to be shown.

    Args:
        subject: whose; an address by its digest, so that the log holds none.
    """
    with store.begin() as connection:
        note(store, connection, action, subject, actor=actor, reason=reason)


# -- the statements --------------------------------------------------------------------------------------


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


@cache
def _list(filters: frozenset[str]) -> Statement:
    """A statement for each set of filters, with their conditions alone, so that each may use its index."""

    def build(sql: Sql) -> str:
        equal = {name: f"{name} = :{name}" for name in _EQUAL}
        # By time alone in the order of its index: PostgreSQL might otherwise walk down the ids to an old time.
        by_time = not filters & {*_EQUAL} and not filters <= {"before"}
        order = "audit_log.created_at DESC, id DESC" if by_time else "id DESC"
        last = f"SELECT b.created_at, b.id FROM {sql.audit_log} AS b WHERE b.id = :before"
        before = f"(created_at, id) < ({last})" if by_time else "id < :before"  # an id may be older than one before it
        conditions = and_each({**equal, "before": before, **sql.bounds("created_at")}, filters)
        return f"""
        SELECT id, {sql.epoch("created_at")} AS created_at, actor, via, action, subject_kind, subject, tenant, reason,
            {sql.json_text("detail")} AS detail
        FROM {sql.audit_log} AS audit_log WHERE true{conditions} ORDER BY {order} LIMIT :limit"""

    return build
