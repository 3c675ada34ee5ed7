"""Workers' heartbeats, releases, and the rescue of jobs whose worker is gone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

import msgspec
from sqlalchemy import Connection

from effects.crashpoints import point
from effects.decision import decide
from effects.job import Job
from effects.ledger import Ledger
from effects.registry import Registry, Unregistered
from effects.settlement import Execution, Settlement, WorkerLost
from effects.store.db.sql import Sql
from effects.store.db.store import Statement, Store, as_json
from effects.store.queue.job_rows import job_columns, job_of
from effects.store.queue.settle import Settled, write_settlements
from effects.store.queue.table_ledger import CORE_LEDGER

RESCUE_BATCH = 100
UNREGISTERED_SECONDS = 3600
ENDED_KEPT_SECONDS = 86_400  # the rows of workers that ended by a fault
ENDED_KEPT = 50  # of them, however many there were: one that fails at each start leaves thousands a day


class WorkerIdentity(msgspec.Struct, frozen=True):
    """Who a worker is. The id is new with every start, and after every lost lease."""

    id: str
    host: str
    pid: int
    version: str
    queues: str


class Activity(msgspec.Struct, frozen=True):
    """How long ago a worker last looked for work, wrote outcomes and looked at the schedules; None if it has not yet.

    `oldest_unsettled_seconds`: the age of its oldest outcome that is not written.
    """

    claimed: float | None = None
    settled: float | None = None
    fired: float | None = None
    oldest_unsettled_seconds: float | None = None


class HeartbeatAnswer(msgspec.Struct, frozen=True):
    """A worker's row at its heartbeat.

    `alive`: it is still registered; if not, it was declared dead and owns nothing. `cancelled`: which of its running
    jobs someone asked to cancel. `drain_requested_by`: who asked it to end in order. `now`: the database's time, in
    seconds since 1970; None where it is not registered.
    """

    alive: bool
    cancelled: set[int]
    drain_requested_by: str | None = None
    now: float | None = None


def _register(sql: Sql) -> str:
    return f"""
    INSERT INTO {sql.workers} (id, host, pid, version, queues, started_at, seen_at)
    VALUES (:id, :host, :pid, :version, :queues, {sql.now}, {sql.now})
    ON CONFLICT (id) DO UPDATE SET seen_at = excluded.seen_at RETURNING {sql.epoch(sql.now)} AS now"""


def register(store: Store, worker: WorkerIdentity) -> float:
    """Write the worker's row, on which all its leases depend; the database's time. Repeating it is harmless."""
    with store.single() as connection:
        return float(store.value(connection, _register, **msgspec.structs.asdict(worker)))


def _beat(sql: Sql) -> str:
    ago = {name: sql.after(f"-CAST(:{name} AS double precision)") for name in ("claimed", "settled", "fired")}
    return f"""
    UPDATE {sql.workers} SET seen_at = {sql.now}, claimed_at = {ago["claimed"]}, settled_at = {ago["settled"]},
        fired_at = {ago["fired"]}, oldest_unsettled_seconds = :oldest_unsettled_seconds
    WHERE id = :worker RETURNING drain_requested_by, {sql.epoch(sql.now)} AS now"""


def _cancels(sql: Sql) -> str:
    return f"SELECT id FROM {sql.jobs} WHERE status = 'running' AND locked_by = :worker AND cancel_requested"


def heartbeat(store: Store, worker: str, activity: Activity | None = None) -> HeartbeatAnswer:
    """Renew the worker's row with its latest activity, and return what was requested of it."""
    point("heartbeat.before")
    with store.single() as connection:
        row = store.one(connection, _beat, worker=worker, **msgspec.structs.asdict(activity or Activity()))
    point("heartbeat.committed")
    with store.read() as connection:
        cancelled = {job.id for job in store.all(connection, _cancels, worker=worker)}
    if row is None:
        return HeartbeatAnswer(False, cancelled)
    return HeartbeatAnswer(True, cancelled, row.drain_requested_by, float(row.now))


def _leased_to(sql: Sql) -> str:
    return f"""
    SELECT {job_columns(sql)} FROM {sql.jobs} WHERE status = 'running' AND locked_by = :worker
    AND job_type {sql.any_of("types")} AND NOT (id {sql.any_of("held", "int")}) ORDER BY id"""


def leased_to(store: Store, connection: Connection, worker: str, registry: Registry, held: set[int]) -> list[Job]:
    """The jobs that are leased to this worker, but those that it knows of."""
    rows = store.all(connection, _leased_to, worker=worker, types=as_json(registry.names()), held=as_json(sorted(held)))
    return [job_of(row) for row in rows]


def _deregister(sql: Sql) -> str:
    return f"""
    DELETE FROM {sql.workers} WHERE id = :worker
    AND NOT EXISTS (SELECT 1 FROM {sql.jobs} WHERE status = 'running' AND locked_by = :worker)"""


def deregister(store: Store, worker: str) -> None:
    """Remove the row of a worker that ended in order; one that left jobs behind stays, to be found."""
    with store.single() as connection:
        store.write(connection, _deregister, worker=worker)


def _end(sql: Sql) -> str:
    return f"""
    UPDATE {sql.workers} SET ended_at = {sql.now}, exit_code = :exit_code, end_reason = :reason WHERE id = :worker"""


def end(store: Store, worker: str, exit_code: int, reason: str) -> None:
    """Record that a worker ended by a fault. What it left behind may be rescued at once; its row is kept for a day."""
    with store.single() as connection:
        store.write(connection, _end, worker=worker, exit_code=exit_code, reason=reason)


# -- release -----------------------------------------------------------------------------------------------------


_ATTEMPT = {"id": "int", "token": "int", "data": "text"}


def _mark_jobs(sql: Sql) -> str:
    """Not an attempt that was cancelled before its release; one that is marked already is marked again."""
    return f"""
    UPDATE {sql.jobs} AS j SET released_at = {sql.now}
    FROM r WHERE j.id {sql.among("r")} AND j.id = r.id AND j.lease_token = r.token
    AND NOT (j.cancel_requested AND j.released_at IS NULL)"""


def _release(sql: Sql) -> str:
    return f"WITH r AS {sql.rows('rows', _ATTEMPT)} {_mark_jobs(sql)} RETURNING {sql.own('j', 'id')}"


@cache
def _release_both(mark: Statement) -> Statement:
    """Jobs and effects in one statement, on PostgreSQL: an attempt waits for it on its way to the peer."""

    def build(sql: Sql) -> str:
        return f"""
        WITH r AS {sql.rows("rows", _ATTEMPT)}, m AS ({_mark_jobs(sql)} RETURNING j.id, r.data), e AS ({mark(sql)})
        SELECT id FROM m"""

    return build


@cache
def _mark_effects(mark: Statement) -> Statement:
    """Release the effects alone, for SQLite, where a WITH cannot write."""

    def build(sql: Sql) -> str:
        return f"WITH m AS {sql.rows('rows', _ATTEMPT)} {mark(sql)}"

    return build


def release(store: Store, executions: Sequence[Execution], ledgers: Mapping[str, Ledger]) -> set[int]:
    """Record the release of these attempts and their effects, all or none.

    Returns:
        The job ids that are marked. An attempt that is missing lost its job, or was cancelled, and must not act.
    """
    point("release.before")
    groups: dict[Ledger | None, list[Execution]] = {}
    for execution in sorted(executions, key=lambda execution: execution.job.id):
        job = execution.job
        groups.setdefault(ledgers.get(job.job_type) if job.key is not None else None, []).append(execution)
    with store.single() if len(groups) == 1 else store.begin() as connection:
        marked = {job_id for group in groups.items() for job_id in _mark_group(store, connection, *group)}
    point("release.committed")
    return marked


def _mark_group(
    store: Store, connection: Connection, ledger: Ledger | None, executions: Sequence[Execution]
) -> set[int]:
    """Attempts that share a ledger, or have no ledger."""
    rows = [
        {
            "id": execution.job.id,
            "token": execution.job.lease_token,
            "data": ledger.release_data(execution) if ledger is not None else None,
        }
        for execution in executions
    ]
    statement = _release_both(ledger.mark_released()) if ledger is not None and store.is_postgresql else _release
    marked = {row.id for row in store.all(connection, statement, rows=as_json(rows))}
    if ledger is not None and not store.is_postgresql:
        released_rows = [row for row in rows if row["id"] in marked]
        store.write(connection, _mark_effects(ledger.mark_released()), rows=as_json(released_rows))
    return marked


# -- rescue ------------------------------------------------------------------------------------------------------


def _lost(sql: Sql) -> str:
    """Running jobs whose worker is silent or unknown, or whose deadline has passed.

    Of unregistered types only those overdue for an hour, which no worker that knows them has taken.
    """
    return f"""
    FROM {sql.jobs} AS j
    WHERE j.status = 'running' AND (j.locked_until < {sql.now} OR NOT EXISTS (
        SELECT 1 FROM {sql.workers} AS w WHERE w.id = j.locked_by AND {sql.is_alive("w.")}))
    AND (j.job_type {sql.any_of("types")}
        OR COALESCE(j.locked_until, j.updated_at) < {sql.after(str(-UNREGISTERED_SECONDS))})"""


def _lost_jobs(sql: Sql) -> str:
    return f"""
    SELECT {job_columns(sql, "j.")}, j.released_at IS NOT NULL AS released, j.locked_until < {sql.now} AS overdue
    {_lost(sql)} AND (CAST(:only AS bigint) IS NULL OR j.id = CAST(:only AS bigint))
    ORDER BY j.id LIMIT {RESCUE_BATCH} {sql.lock(of="j")}"""


def _lost_ids(sql: Sql) -> str:
    return f"SELECT j.id {_lost(sql)} ORDER BY j.id LIMIT {RESCUE_BATCH}"


def _delete_dead_workers(sql: Sql) -> str:
    return f"""
    DELETE FROM {sql.workers} WHERE (ended_at IS NULL AND NOT {sql.is_alive()}
        OR ended_at < {sql.after(str(-ENDED_KEPT_SECONDS))} OR ended_at IS NOT NULL AND id NOT IN (
            SELECT id FROM {sql.workers} WHERE ended_at IS NOT NULL ORDER BY ended_at DESC, id LIMIT {ENDED_KEPT}))
    AND NOT EXISTS (
        SELECT 1 FROM {sql.jobs} AS j WHERE j.status = 'running' AND j.locked_by = {sql.workers}.id)"""


def rescue(
    store: Store, registry: Registry, ledgers: Mapping[str, Ledger], lease_seconds: float, *, only: int | None = None
) -> Settled:
    """Take back one batch (at most 100) of lost jobs, each decided from its locked row.

    A job that was never released is a plain retry; a released one is *unknown* and goes by its type's
    policy. Both run next in quarantine; after 5 losses a job is dead-lettered as poison.

    A job of a type that is not registered here is left to those who know it for an hour. Then it goes back to wait
    for them where it was not marked as released (types that repeat mark nothing: they would repeat it); else it is
    held for an operator.

    Args:
        only: this job and no other.
    """
    with store.begin() as connection:
        lost = store.all(connection, _lost_jobs, lease=lease_seconds, types=as_json(registry.names()), only=only)
        point("rescue.selected")
        settlements = [_lost_settlement(row, registry) for row in lost]
        # As for a cancel: a type that is not registered here has its effects, if any, in the core's ledger.
        unregistered = dict.fromkeys((row.job_type for row in lost), CORE_LEDGER)
        settled = write_settlements(store, connection, settlements, {**unregistered, **ledgers})
        if len(lost) < RESCUE_BATCH:
            store.write(connection, _delete_dead_workers, lease=lease_seconds)
    point("rescue.committed")
    return settled


def lost_ids(store: Store, connection: Connection, registry: Registry, lease_seconds: float) -> list[int]:
    """The jobs that `rescue` would take back next, by their ids alone."""
    parameters = {"lease": lease_seconds, "types": as_json(registry.names())}
    return [row.id for row in store.all(connection, _lost_ids, **parameters)]


def _lost_settlement(row: Any, registry: Registry) -> Settlement:
    job_type = registry.get(row.job_type) if row.job_type in registry else Unregistered(row.job_type)
    released = bool(row.released) or job_type.is_released_by_claim
    reason = (
        "its time limit passed without an outcome from its worker" if row.overdue else "its worker stopped answering"
    )
    return decide(job_of(row), job_type, WorkerLost(reason), released=released)


def _server_uptime(sql: Sql) -> str:
    """How long the server has been up: after a restart every worker looks silent."""
    return f"SELECT {sql.seconds('pg_postmaster_start_time()')}"


def seconds_up(store: Store, connection: Connection) -> float:
    """Seconds since the database server started; endless on SQLite."""
    if not store.is_postgresql:
        return float("inf")
    return float(store.value(connection, _server_uptime))
