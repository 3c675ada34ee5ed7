"""The numbers behind `effects metrics`: live jobs, what is due, what died, who works. Ended jobs are not counted
over, so that asking every 15 seconds costs the same after a year.
"""

from __future__ import annotations

import msgspec

from effects.store.counts import Workers, count_workers
from effects.store.sql import Sql
from effects.store.store import Store

HOUR_SECONDS = 3_600


class LiveCount(msgspec.Struct, frozen=True):
    job_type: str
    queue: str
    status: str
    jobs: int


class DueCount(msgspec.Struct, frozen=True):
    queue: str
    jobs: int
    oldest_seconds: float


class DeadCount(msgspec.Struct, frozen=True):
    job_type: str
    jobs: int
    last_hour: int


class Numbers(msgspec.Struct, frozen=True, kw_only=True):
    """One reading. Lists are empty where there is nothing to count."""

    live: list[LiveCount]
    due: list[DueCount]
    dead: list[DeadCount]
    paused_limits: int
    workers: Workers


def read_numbers(store: Store, lease_seconds: float) -> Numbers:
    """Read them, in one snapshot on SQLite; a few scans of the live table and of the dead jobs' index.

    Raises:
        StoreUnavailable: the database is away.
    """
    with store.read() as connection:
        return Numbers(
            live=[LiveCount(row.job_type, row.queue, row.status, row.jobs) for row in store.all(connection, _live)],
            due=[DueCount(row.queue, row.jobs, max(0.0, row.oldest)) for row in store.all(connection, _due)],
            dead=[
                DeadCount(row.job_type, row.jobs, row.last_hour)
                for row in store.all(connection, _dead, seconds=HOUR_SECONDS)
            ],
            paused_limits=store.value(connection, _paused),
            workers=count_workers(store, connection, lease_seconds),
        )


def _live(sql: Sql) -> str:
    return f"""
    SELECT job_type, queue, status, count(*) AS jobs FROM {sql.jobs}
    GROUP BY job_type, queue, status ORDER BY job_type, queue, status"""


def _due(sql: Sql) -> str:
    return f"""
    SELECT queue, count(*) AS jobs, {sql.seconds("min(run_at)")} AS oldest FROM {sql.jobs}
    WHERE status <> 'running' AND run_at <= {sql.now} GROUP BY queue ORDER BY queue"""


def _dead(sql: Sql) -> str:
    recent = f"finished_at >= {sql.after('-CAST(:seconds AS double precision)')}"
    return f"""
    SELECT job_type, count(*) AS jobs, sum(CASE WHEN {recent} THEN 1 ELSE 0 END) AS last_hour
    FROM {sql.job_history} WHERE status = 'dead' GROUP BY job_type ORDER BY job_type"""


def _paused(sql: Sql) -> str:
    return f"SELECT count(*) FROM {sql.limits} WHERE paused_until > {sql.now}"
