"""Releases, and the rescue of jobs whose worker is gone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

import msgspec
from sqlalchemy import Connection

from effects.kit.crashpoints import point
from effects.kit.moments import moment
from effects.kit.text.wording import moment_text
from effects.model.decision import decide
from effects.model.job import AttemptId, Job
from effects.model.ledger import Ledger
from effects.model.registry import Registry, Unregistered
from effects.model.settlement import Execution, Settlement, WorkerLost
from effects.store.db.sql import Sql
from effects.store.db.store import Statement, Store, as_json
from effects.store.queue.job_rows import job_columns, job_of
from effects.store.queue.settle import Settled, write_settlements
from effects.store.queue.table_ledger import CORE_LEDGER
from effects.store.workers import dead_workers, delete_dead_workers, seconds_since_failover

RESCUE_BATCH = 100
UNREGISTERED_SECONDS = 3600


def _leased_to(sql: Sql) -> str:
    """None that was released: it has begun, whatever the worker knows of it."""
    return f"""
    SELECT {job_columns(sql)} FROM {sql.jobs} WHERE status = 'running' AND locked_by = :worker AND released_at IS NULL
    AND job_type {sql.any_of("types")} AND NOT (id {sql.any_of("held", "int")}) ORDER BY id"""


def leased_to(store: Store, connection: Connection, worker: str, registry: Registry, held: set[int]) -> list[Job]:
    """The jobs that are leased to this worker, but those that it knows of."""
    rows = store.all(connection, _leased_to, worker=worker, types=as_json(registry.names()), held=as_json(sorted(held)))
    return [job_of(row) for row in rows]


def _running_of(sql: Sql) -> str:
    return f"""
    SELECT 1 FROM {sql.jobs} AS j JOIN {sql.workers} AS w ON w.id = j.locked_by
    WHERE j.status = 'running' AND j.job_type {sql.any_of("types")} AND {sql.is_alive("w.")} LIMIT 1"""


def is_running_elsewhere(store: Store, types: Sequence[str], lease_seconds: float) -> bool:
    """Whether a worker that is alive runs a job of one of these types.

    Raises:
        StoreUnavailable, StoreRejected: the database does not say.
    """
    with store.read() as connection:
        return store.row(connection, _running_of, types=as_json(types), lease=lease_seconds) is not None


# -- release -----------------------------------------------------------------------------------------------------


_ATTEMPT = {"id": "int", "token": "int", "data": "text"}


def _mark_jobs(sql: Sql) -> str:
    """Not an attempt that was cancelled before its release; one that is marked already is marked again."""
    return f"""
    UPDATE {sql.jobs} AS j SET released_at = {sql.now}
    FROM r WHERE j.id {sql.among("r")} AND j.id = r.id AND j.lease_token = r.token
    AND NOT (j.cancel_requested AND j.released_at IS NULL)"""


def _release(sql: Sql) -> str:
    marked = f"{sql.own('j', 'id')}, {sql.own('j', 'lease_token')}"
    return f"WITH r AS {sql.rows('rows', _ATTEMPT)} {_mark_jobs(sql)} RETURNING {marked}"


@cache
def _release_both(mark: Statement) -> Statement:
    """Jobs and effects in one statement, on PostgreSQL: an attempt waits for it on its way to the peer."""

    def build(sql: Sql) -> str:
        return f"""
        WITH r AS {sql.rows("rows", _ATTEMPT)}, m AS ({_mark_jobs(sql)} RETURNING j.id, j.lease_token, r.data),
            e AS ({mark(sql)})
        SELECT id, lease_token FROM m"""

    return build


@cache
def _mark_effects(mark: Statement) -> Statement:
    """Release the effects alone, for SQLite, where a WITH cannot write."""

    def build(sql: Sql) -> str:
        return f"WITH m AS {sql.rows('rows', _ATTEMPT)} {mark(sql)}"

    return build


def release(store: Store, executions: Sequence[Execution], ledgers: Mapping[str, Ledger]) -> set[AttemptId]:
    """Record the release of these attempts and their effects, all or none.

    Returns:
        The attempts that are marked. One that is missing lost its job, or was cancelled, and must not act.
    """
    point("release.before")
    groups: dict[Ledger | None, list[Execution]] = {}
    for execution in sorted(executions, key=lambda execution: execution.job.id):
        job = execution.job
        groups.setdefault(ledgers.get(job.job_type) if job.key is not None else None, []).append(execution)
    with store.single() if len(groups) == 1 else store.begin() as connection:
        marked = {attempt for group in groups.items() for attempt in _mark_group(store, connection, *group)}
    point("release.committed")
    return marked


def _mark_group(
    store: Store, connection: Connection, ledger: Ledger | None, executions: Sequence[Execution]
) -> set[AttemptId]:
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
    marked = {(row.id, row.lease_token) for row in store.all(connection, statement, rows=as_json(rows))}
    if ledger is not None and not store.is_postgresql:
        released_rows = [row for row in rows if (row["id"], row["token"]) in marked]
        store.write(connection, _mark_effects(ledger.mark_released()), rows=as_json(released_rows))
    return marked


# -- rescue ------------------------------------------------------------------------------------------------------


def _lost(sql: Sql) -> str:
    """Running jobs whose worker is silent or unknown, or whose deadline has passed.

    Of unregistered types only those overdue for an hour, which no worker that knows them has taken. Where no worker of
    the last hour is named, an hour after the row was written: its deadline may be anything.
    """
    hour_ago, hour_ahead = (sql.after(str(seconds)) for seconds in (-UNREGISTERED_SECONDS, UNREGISTERED_SECONDS))
    return f"""
    FROM {sql.jobs} AS j
    WHERE j.status = 'running' AND (j.locked_until < {sql.now} OR NOT EXISTS (
        SELECT 1 FROM {sql.workers} AS w WHERE w.id = j.locked_by AND {sql.is_alive("w.")}))
    AND (j.job_type {sql.any_of("types")}
        OR COALESCE(j.locked_until, j.updated_at) < {hour_ago}
        OR (j.updated_at < {hour_ago} OR j.updated_at > {hour_ahead}) AND NOT EXISTS (
            SELECT 1 FROM {sql.workers} AS w WHERE w.id = j.locked_by AND w.seen_at > {hour_ago}))"""


def _lost_jobs(sql: Sql) -> str:
    worker = f"FROM {sql.workers} AS w WHERE w.id = j.locked_by"
    return f"""
    SELECT {job_columns(sql, "j.")}, (j.released_at IS NOT NULL OR {_may_have_lost_its_release(sql)}) AS released,
        j.locked_until < {sql.now} AS overdue,
        (SELECT {sql.epoch("w.seen_at")} {worker}) AS seen_at,
        COALESCE((SELECT {sql.is_silent("w.")} {worker}), true) AS silent
    {_lost(sql)} AND (CAST(:only AS bigint) IS NULL OR j.id = CAST(:only AS bigint))
    ORDER BY j.id LIMIT {RESCUE_BATCH} {sql.lock(of="j")}"""


def _may_have_lost_its_release(sql: Sql) -> str:
    """Of a worker that has not told what it remembers since a failover that lost commits: a release may be among them.

    Where no worker has seen a loss, none is supposed.
    """
    return f"""EXISTS (SELECT 1 FROM {sql.failovers} AS f JOIN {sql.workers} AS w ON w.id = j.locked_by
            WHERE f.sign <> 'first' AND f.recorded + f.unknowns + f.orphans > 0
            AND j.started_at < f.noticed_at AND COALESCE(w.compared, 0) < f.id)"""


def _lost_ids(sql: Sql) -> str:
    return f"SELECT j.id {_lost(sql)} AND j.id > :after ORDER BY j.id LIMIT {RESCUE_BATCH}"


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
            delete_dead_workers(store, connection, lease_seconds)
    point("rescue.committed")
    return settled


def lost_ids(store: Store, connection: Connection, registry: Registry, lease_seconds: float, after: int) -> list[int]:
    """The jobs that `rescue` would take back next, by their ids alone: at most 100, of those after this id."""
    parameters = {"lease": lease_seconds, "types": as_json(registry.names()), "after": after}
    return [row.id for row in store.all(connection, _lost_ids, **parameters)]


def _lost_settlement(row: Any, registry: Registry) -> Settlement:
    job_type = registry.get(row.job_type) if row.job_type in registry else Unregistered(row.job_type)
    released = bool(row.released) or job_type.is_released_by_claim
    return decide(job_of(row), job_type, WorkerLost(_why_lost(row)), released=released)


def _why_lost(row: Any) -> str:
    """A deadline is the cause only where the worker was heard of: one that died lets all its deadlines pass."""
    if row.overdue and not row.silent:
        return "its time limit passed without an outcome from its worker"
    if row.seen_at is None:
        return "its worker stopped answering, and is no longer registered"
    return f"its worker stopped answering (last heard of at {moment_text(moment(row.seen_at))})"


class RescueLook(msgspec.Struct, frozen=True):
    """What a worker sees before it rescues.

    `seconds_up`: since the database server started, or was promoted, after which every worker looks silent; endless on
    SQLite.
    `is_due`: a job is lost, or a worker's row is no longer needed.
    """

    seconds_up: float
    is_due: bool


def _look(sql: Sql) -> str:
    up = sql.seconds("pg_postmaster_start_time()") if sql.postgresql else "NULL"
    return f"""
    SELECT {up} AS seconds_up, {seconds_since_failover(sql)} AS seconds_since,
        {sql.exists(_lost(sql))} OR {sql.exists(dead_workers(sql))} AS is_due"""


def look_for_lost(store: Store, registry: Registry, lease_seconds: float) -> RescueLook:
    """Look, by one statement that locks nothing, whether there is anything for `rescue`.

    Raises:
        StoreUnavailable: the database is unavailable.
    """
    with store.read() as connection:
        row = store.row(connection, _look, lease=lease_seconds, types=as_json(registry.names()))
    assert row is not None
    ages = (float(age) for age in (row.seconds_up, row.seconds_since) if age is not None)
    return RescueLook(min(ages, default=float("inf")), bool(row.is_due))
