"""Workers' heartbeats, the point of no return, and the rescue of jobs whose worker is gone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

import msgspec
from sqlalchemy import Connection

from effects.crashpoints import point
from effects.job import Job
from effects.registry import Registry
from effects.settlement import Lost, Settlement, decide
from effects.store.job_rows import job_columns, job_of
from effects.store.ledger import Ledger
from effects.store.settle import Settled, write_settlements
from effects.store.sql import Sql
from effects.store.store import Statement, Store, as_json

RESCUE_BATCH = 100


class WorkerIdentity(msgspec.Struct, frozen=True):
    """Who a worker is. The id is new with every start, and after every lost lease."""

    id: str
    host: str
    pid: int
    version: str
    lanes: str


def _register(sql: Sql) -> str:
    return f"""
    INSERT INTO {sql.workers} (id, host, pid, version, lanes, started_at, seen_at)
    VALUES (:id, :host, :pid, :version, :lanes, {sql.now}, {sql.now})
    ON CONFLICT (id) DO UPDATE SET seen_at = excluded.seen_at"""


def register(store: Store, worker: WorkerIdentity) -> None:
    """Write the worker's row; without it none of its leases would hold. Repeating it is harmless."""
    with store.single() as connection:
        store.write(connection, _register, **msgspec.structs.asdict(worker))


def _beat(sql: Sql) -> str:
    return f"UPDATE {sql.workers} SET seen_at = {sql.now} WHERE id = :worker"


def _cancels(sql: Sql) -> str:
    return f"SELECT id FROM {sql.jobs} WHERE status = 'running' AND locked_by = :worker AND cancel_requested"


def heartbeat(store: Store, worker: str) -> tuple[bool, set[int]]:
    """Say that the worker lives.

    Returns:
        Whether it is still registered (if not, it was declared dead and owns nothing), and which of its
        running jobs somebody asked to cancel.
    """
    point("heartbeat.before")
    with store.single() as connection:
        alive = store.write(connection, _beat, worker=worker) == 1
    point("heartbeat.committed")
    with store.read() as connection:
        return alive, {row.id for row in store.all(connection, _cancels, worker=worker)}


def _leased_to(sql: Sql) -> str:
    return f"""
    SELECT {job_columns(sql)} FROM {sql.jobs} WHERE status = 'running' AND locked_by = :worker
    AND job_type {sql.any_of("types")} AND NOT (id {sql.any_of("held", "int")}) ORDER BY id"""


def leased_to(store: Store, connection: Connection, worker: str, registry: Registry, held: set[int]) -> list[Job]:
    """The jobs that are leased to this worker, but those that it knows of."""
    found = store.all(
        connection, _leased_to, worker=worker, types=as_json(registry.names()), held=as_json(sorted(held))
    )
    return [job_of(row) for row in found]


def _leave(sql: Sql) -> str:
    return f"""
    DELETE FROM {sql.workers} WHERE id = :worker
    AND NOT EXISTS (SELECT 1 FROM {sql.jobs} WHERE status = 'running' AND locked_by = :worker)"""


def leave(store: Store, worker: str) -> None:
    """Remove the row of a worker that ended in order; one that left jobs behind stays, to be found."""
    with store.single() as connection:
        store.write(connection, _leave, worker=worker)


# -- release -----------------------------------------------------------------------------------------------------


_ATTEMPT = {"id": "int", "token": "int", "note": "text"}


def _mark_jobs(sql: Sql) -> str:
    return f"""
    UPDATE {sql.jobs} AS j SET released_at = {sql.now}
    FROM r WHERE j.id {sql.among("r")} AND j.id = r.id AND j.lease_token = r.token"""


def _release(sql: Sql) -> str:
    return f"WITH r AS {sql.rows('rows', _ATTEMPT)} {_mark_jobs(sql)} RETURNING {sql.own('j', 'id')}"


@cache
def _release_both(mark: Statement) -> Statement:
    """Jobs and effects in one statement, on PostgreSQL: an attempt waits for it on its way to the peer."""

    def build(sql: Sql) -> str:
        return f"""
        WITH r AS {sql.rows("rows", _ATTEMPT)}, m AS ({_mark_jobs(sql)} RETURNING j.id, r.note), e AS ({mark(sql)})
        SELECT id FROM m"""

    return build


@cache
def _mark_effects(mark: Statement) -> Statement:
    """The effects alone, where a WITH can write nothing."""

    def build(sql: Sql) -> str:
        return f"WITH m AS {sql.rows('rows', _ATTEMPT)} {mark(sql)}"

    return build


def release(store: Store, jobs: Sequence[Job], ledgers: Mapping[str, Ledger]) -> set[int]:
    """Mark the point of no return of these attempts and their effects: all of it, or nothing.

    Returns:
        The job ids that are marked. An attempt that is missing lost its job and must not act.
    """
    point("release.before")
    groups: dict[Ledger | None, list[Job]] = {}
    for job in sorted(jobs, key=lambda job: job.id):
        groups.setdefault(ledgers.get(job.job_type) if job.key is not None else None, []).append(job)
    with store.single() if len(groups) == 1 else store.begin() as connection:
        marked = {job_id for group in groups.items() for job_id in _mark_group(store, connection, *group)}
    point("release.committed")
    return marked


def _mark_group(store: Store, connection: Connection, ledger: Ledger | None, jobs: Sequence[Job]) -> set[int]:
    """Attempts whose effects are in one ledger, or in none."""
    rows = [
        {"id": job.id, "token": job.lease_token, "note": ledger.note(job.id) if ledger is not None else None}
        for job in jobs
    ]
    one = _release_both(ledger.mark_released()) if ledger is not None and store.is_postgresql else _release
    marked = {row.id for row in store.all(connection, one, rows=as_json(rows))}
    if ledger is not None and not store.is_postgresql:
        mine = [row for row in rows if row["id"] in marked]
        store.write(connection, _mark_effects(ledger.mark_released()), rows=as_json(mine))
    return marked


# -- rescue ------------------------------------------------------------------------------------------------------


def _lost_jobs(sql: Sql) -> str:
    """Running jobs whose worker is silent or unknown, or whose deadline has passed."""
    silent = sql.after("-CAST(:lease AS double precision)" if sql.postgresql else "-:lease")
    return f"""
    SELECT {job_columns(sql, "j.")}, j.released_at IS NOT NULL AS released, j.locked_until < {sql.now} AS overdue
    FROM {sql.jobs} AS j
    WHERE j.status = 'running' AND j.job_type {sql.any_of("types")} AND (j.locked_until < {sql.now} OR NOT EXISTS (
        SELECT 1 FROM {sql.workers} AS w WHERE w.id = j.locked_by AND w.seen_at >= {silent}))
    ORDER BY j.id LIMIT {RESCUE_BATCH} {sql.lock(of="j")}"""


def _bury_workers(sql: Sql) -> str:
    silent = sql.after("-CAST(:lease AS double precision)" if sql.postgresql else "-:lease")
    return f"""
    DELETE FROM {sql.workers} WHERE seen_at < {silent} AND NOT EXISTS (
        SELECT 1 FROM {sql.jobs} AS j WHERE j.status = 'running' AND j.locked_by = {sql.workers}.id)"""


def rescue(store: Store, registry: Registry, ledgers: Mapping[str, Ledger], lease_seconds: float) -> Settled:
    """Take back one batch (≤ 100) of jobs that nobody works on, each decided from the row that is locked.

    A job that was never released is a plain retry; a released one is *unknown* and goes by its type's
    policy. Both run next in quarantine; after 5 losses a job is dead-lettered as poison.
    """
    with store.begin() as connection:
        lost = store.all(connection, _lost_jobs, lease=lease_seconds, types=as_json(registry.names()))
        point("rescue.selected")
        settlements = [_lost_settlement(row, registry) for row in lost]
        settled = write_settlements(store, connection, settlements, ledgers)
        if len(lost) < RESCUE_BATCH:
            store.write(connection, _bury_workers, lease=lease_seconds)
    point("rescue.committed")
    return settled


def _lost_settlement(row: Any, registry: Registry) -> Settlement:
    job_type = registry.get(row.job_type)
    released = bool(row.released) or job_type.on_unknown == "repeat"
    reason = "its time limit passed and its worker did not say so" if row.overdue else "its worker stopped answering"
    return decide(job_of(row), job_type, Lost(reason), released=released)


def _last_contact(sql: Sql) -> str:
    """How long the server has been up: after a restart every worker looks silent."""
    return f"SELECT {sql.seconds('pg_postmaster_start_time()')}"


def seconds_up(store: Store, connection: Connection) -> float:
    """Seconds since the database server started; endless on SQLite."""
    if not store.is_postgresql:
        return float("inf")
    return float(store.value(connection, _last_contact))
