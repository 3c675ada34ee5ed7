"""Numbers that several readers give: how many workers there are, and what is due."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import msgspec
from sqlalchemy import Connection, Row

from effects.kit.text.wording import shown_status
from effects.operate.tables.failovers import FailoverCount, count_failovers
from effects.store.db.records import record
from effects.store.db.sql import Sql
from effects.store.db.store import Store, as_json
from effects.store.limits.holds import read_worker_queues
from effects.store.limits.queue_pauses import is_paused

FAILED_SECONDS = HOUR_SECONDS = 3_600


class Workers(msgspec.Struct, frozen=True):
    """Registered workers. A silent one has sent no heartbeat for a lease.

    `idle` ones are alive and do not work: they have not looked for work, or written an outcome, for a lease. `failed`
    ones ended by a fault within the last hour, most often with `reason`.
    """

    alive: int
    silent: int
    idle: int = 0
    failed: int = 0
    reason: str | None = None
    oldest_unsettled_seconds: float = 0.0


class Due(msgspec.Struct, frozen=True):
    """Jobs that could start now, pauses and limits apart; `oldest_seconds` is None if there are no such jobs."""

    jobs: int
    oldest_seconds: float | None


def count_workers(store: Store, connection: Connection, lease_seconds: float) -> Workers:
    row = store.row(connection, _workers, lease=lease_seconds)
    assert row is not None
    failed = store.row(connection, _failed, seconds=FAILED_SECONDS)
    ends = {"failed": failed.ends, "reason": failed.end_reason} if failed is not None else {"failed": 0, "reason": None}
    return record(Workers, row, silent=row.known - row.alive, oldest_unsettled_seconds=row.oldest_unsettled, **ends)


def count_due(store: Store, connection: Connection) -> Due:
    row = store.row(connection, _due)
    assert row is not None
    return Due(row.jobs, row.oldest)


class DueFailures(msgspec.Struct, frozen=True):
    """Due jobs whose last attempt failed, and why most of them did."""

    jobs: int
    error_code: str
    error: str | None


def read_due_failures(store: Store, connection: Connection) -> DueFailures | None:
    """None if no due job has failed."""
    row = store.row(connection, _due_failures)
    return None if row is None else DueFailures(row.jobs, row.error_code, row.error)


def count_unknown_due(store: Store, connection: Connection, job_types: Sequence[str], queues: Sequence[str]) -> int:
    """Count due jobs of other types in these queues; in every queue if `queues` is empty.

    Jobs of paused queues do not count, because they could not start.
    """
    types, names = as_json(list(job_types)), as_json(list(queues))
    return int(store.value(connection, _unknown_due, types=types, queues=names, every=int(not queues)))


def _unknown_due(sql: Sql) -> str:
    every = "CAST(:every AS integer)" if sql.postgresql else ":every"
    return f"""
    SELECT count(*) FROM {sql.jobs} AS u
    WHERE status <> 'running' AND run_at <= {sql.now} AND NOT (job_type {sql.any_of("types")})
    AND NOT {is_paused(sql, "u.queue")} AND ({every} = 1 OR queue {sql.any_of("queues")})"""


def _workers(sql: Sql) -> str:
    alive = sql.is_alive()
    return f"""
    SELECT count(*) AS known, COALESCE(sum(CASE WHEN {alive} THEN 1 ELSE 0 END), 0) AS alive,
        COALESCE(sum(CASE WHEN {alive} AND {does_nothing(sql)} THEN 1 ELSE 0 END), 0) AS idle,
        COALESCE(max(CASE WHEN {alive} THEN oldest_unsettled_seconds END), 0) AS oldest_unsettled
    FROM {sql.workers} WHERE ended_at IS NULL"""


def does_nothing(sql: Sql) -> str:
    """Condition: the worker sends heartbeats but has not worked for a lease."""
    long_ago = sql.after("-CAST(:lease AS double precision)")
    return f"(claimed_at < {long_ago} OR oldest_unsettled_seconds > CAST(:lease AS double precision))"


def _failed(sql: Sql) -> str:
    since = sql.after("-CAST(:seconds AS double precision)")
    return f"""
    SELECT end_reason, sum(count(*)) OVER () AS ends FROM {sql.workers} WHERE ended_at >= {since}
    GROUP BY end_reason ORDER BY count(*) DESC, end_reason LIMIT 1"""


def _due(sql: Sql) -> str:
    return f"""
    SELECT count(*) AS jobs, {sql.seconds("min(run_at)")} AS oldest FROM {sql.jobs}
    WHERE status <> 'running' AND run_at <= {sql.now}"""


def _due_failures(sql: Sql) -> str:
    return f"""
    SELECT error_code, count(*) AS jobs, max(last_error) AS error FROM {sql.jobs}
    WHERE status <> 'running' AND run_at <= {sql.now} AND error_code IS NOT NULL
    GROUP BY error_code ORDER BY jobs DESC, error_code LIMIT 1"""


# -- for `effects metrics` --------------------------------------------------------------------------------
# Ended jobs are not counted over, so that asking every 15 seconds costs the same after a year.


class LiveCount(msgspec.Struct, frozen=True):
    job_type: str
    queue: str
    status: str
    jobs: int


class DueCount(msgspec.Struct, frozen=True):
    queue: str
    jobs: int
    oldest_seconds: float


class UnresolvedCount(msgspec.Struct, frozen=True):
    """Unresolved jobs of one type. `unknown`: their effects may have happened."""

    job_type: str
    unknown: bool
    jobs: int


class DeadCount(msgspec.Struct, frozen=True):
    """Jobs of one type that died within the last hour."""

    job_type: str
    jobs: int


class BulkCount(msgspec.Struct, frozen=True):
    """Bulk actions of one status that have not ended (running or stopped), and the jobs that they are about."""

    status: str
    bulks: int
    expected: int
    done: int
    refused: int


class Numbers(msgspec.Struct, frozen=True, kw_only=True):
    """One reading. Lists are empty if there is nothing to count. `served`: the queues of workers that take new work."""

    live: list[LiveCount]
    due: list[DueCount]
    served: set[str]
    unresolved: list[UnresolvedCount]
    dead: list[DeadCount]
    bulks: list[BulkCount]
    paused_limits: int
    paused_queues: int
    workers: Workers
    failovers: FailoverCount


def read_numbers(store: Store, lease_seconds: float) -> Numbers:
    """Read them, in one snapshot on SQLite; a few scans of the live table and of the unresolved jobs.

    Raises:
        StoreUnavailable: the database is unavailable.
    """
    with store.read() as connection:
        live = store.all(connection, _live)
        return Numbers(
            live=[LiveCount(row.job_type, row.queue, shown_status(row.status), row.jobs) for row in live],
            due=_due_by_queue(live),
            served=set[str]().union(*read_worker_queues(store, connection, lease_seconds)),
            unresolved=[
                UnresolvedCount(row.job_type, bool(row.unknown), row.jobs) for row in store.all(connection, _unresolved)
            ],
            dead=[DeadCount(row.job_type, row.jobs) for row in store.all(connection, _dead, seconds=HOUR_SECONDS)],
            bulks=[
                BulkCount("stopped" if row.stopped else "running", row.bulks, row.expected, row.done, row.refused)
                for row in store.all(connection, _bulks)
            ],
            paused_limits=store.value(connection, _paused_limits),
            paused_queues=store.value(connection, _paused_queues),
            workers=count_workers(store, connection, lease_seconds),
            failovers=count_failovers(store, connection),
        )


def _due_by_queue(live: Sequence[Row[Any]]) -> list[DueCount]:
    jobs: Counter[str] = Counter()
    oldest: dict[str, float] = {}
    for row in live:
        if row.due:
            jobs[row.queue] += row.due
            oldest[row.queue] = max(oldest.get(row.queue, 0.0), row.oldest_due)
    return [DueCount(queue, count, oldest[queue]) for queue, count in sorted(jobs.items())]


def _live(sql: Sql) -> str:
    """Every live job is read once, for what is due as well."""
    due = f"CASE WHEN status <> 'running' AND run_at <= {sql.now} THEN run_at END"
    return f"""
    SELECT job_type, queue, status, count(*) AS jobs, count({due}) AS due, {sql.seconds(f"min({due})")} AS oldest_due
    FROM {sql.jobs} GROUP BY job_type, queue, status ORDER BY job_type, queue, status"""


def _unresolved(sql: Sql) -> str:
    return f"""
    SELECT job_type, unknown, count(*) AS jobs FROM {sql.unresolved}
    GROUP BY job_type, unknown ORDER BY job_type, unknown"""


def died_since(sql: Sql) -> str:
    """Condition: an ended job died within `seconds`. The first part is that of the index on what did not succeed."""
    return f"status <> 'succeeded' AND status = 'dead' AND finished_at >= {sql.after('-' + sql.number('seconds'))}"


def _dead(sql: Sql) -> str:
    return f"""
    SELECT job_type, count(*) AS jobs FROM {sql.job_history} WHERE {died_since(sql)}
    GROUP BY job_type ORDER BY job_type"""


def is_stopped(sql: Sql) -> str:
    """Condition: the bulk action `b` runs, and no job works on it any more."""
    works = " OR ".join(f"j.{column} = b.job_id" for column in ("id", "requeued_from"))
    return f"b.status = 'running' AND NOT {sql.exists(f'FROM {sql.jobs} AS j WHERE {works}')}"


def _bulks(sql: Sql) -> str:
    return f"""
    SELECT stopped, count(*) AS bulks, sum(expected) AS expected, sum(done) AS done, sum(refused) AS refused
    FROM (SELECT expected, done, refused, {is_stopped(sql)} AS stopped FROM {sql.bulk_actions} AS b
        WHERE b.status = 'running') AS unended
    GROUP BY stopped ORDER BY stopped"""


def _paused_limits(sql: Sql) -> str:
    return f"SELECT count(*) FROM {sql.limits} WHERE paused_until > {sql.now}"


def _paused_queues(sql: Sql) -> str:
    return f"SELECT count(*) FROM {sql.queues} WHERE paused_until > {sql.now}"
