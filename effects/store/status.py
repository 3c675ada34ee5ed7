"""The state of the whole, for `effects status`: what waits, what failed, what is paused, who works."""

from __future__ import annotations

import datetime as dt

import msgspec
from sqlalchemy import Connection

from effects.store.counts import count_due
from effects.store.records import moment
from effects.store.sql import Sql
from effects.store.store import Store

ERRORS_SECONDS = 86_400
DEAD_SECONDS = 3_600
SHOWN_MAX = 20


class TypeCount(msgspec.Struct, frozen=True):
    job_type: str
    status: str
    jobs: int


class ErrorCount(msgspec.Struct, frozen=True):
    job_type: str
    error_code: str
    jobs: int


class PausedKey(msgspec.Struct, frozen=True):
    limit_key: str
    until: dt.datetime
    reason: str | None
    waiting: int


class WorkerState(msgspec.Struct, frozen=True):
    """`alive` is False when the worker has been silent for longer than a lease."""

    id: str
    version: str
    lanes: str
    started_at: dt.datetime
    silent_seconds: float
    alive: bool
    running: int


class Status(msgspec.Struct, frozen=True, kw_only=True):
    """Jobs by type and status; how long the oldest due job has waited; jobs that died in the last hour.

    `errors`: the codes of the jobs that failed and wait, or died within a day, most frequent first, at most 20.
    """

    counts: list[TypeCount]
    oldest_due_seconds: float | None
    dead_last_hour: int
    errors: list[ErrorCount]
    paused: list[PausedKey]
    workers: list[WorkerState]


def read_status(store: Store, lease_seconds: float) -> Status:
    """Counts every job, ended ones included: a second or so for some millions of them.

    Raises:
        StoreUnavailable: the database is away.
    """
    with store.read() as connection:
        return Status(
            counts=[TypeCount(row.job_type, row.status, row.jobs) for row in store.all(connection, _counts)],
            oldest_due_seconds=count_due(store, connection).oldest_seconds,
            dead_last_hour=store.value(connection, _dead, seconds=DEAD_SECONDS),
            errors=[
                ErrorCount(row.job_type, row.error_code, row.jobs)
                for row in store.all(connection, _errors, seconds=ERRORS_SECONDS)
            ],
            paused=[
                PausedKey(row.limit_key, moment(row.until), row.pause_reason, row.waiting)
                for row in store.all(connection, _paused)
            ],
            workers=_read_workers(store, connection, lease_seconds),
        )


def _read_workers(store: Store, connection: Connection, lease_seconds: float) -> list[WorkerState]:
    return [
        WorkerState(
            id=row.id,
            version=row.version,
            lanes=row.lanes,
            started_at=moment(row.started_at),
            silent_seconds=row.silent,
            alive=row.silent <= lease_seconds,
            running=row.running,
        )
        for row in store.all(connection, _workers)
    ]


def _counts(sql: Sql) -> str:
    return f"""
    SELECT job_type, status, count(*) AS jobs FROM {sql.jobs} GROUP BY job_type, status
    UNION ALL
    SELECT job_type, status, count(*) AS jobs FROM {sql.job_history} GROUP BY job_type, status
    ORDER BY job_type, status"""


def _ago(sql: Sql) -> str:
    return sql.after("-CAST(:seconds AS double precision)")


def _dead(sql: Sql) -> str:
    return f"SELECT count(*) FROM {sql.job_history} WHERE status = 'dead' AND finished_at >= {_ago(sql)}"


def _errors(sql: Sql) -> str:
    return f"""
    SELECT job_type, error_code, count(*) AS jobs FROM (
        SELECT job_type, error_code FROM {sql.jobs} WHERE status = 'failed'
        UNION ALL
        SELECT job_type, error_code FROM {sql.job_history} WHERE status = 'dead' AND finished_at >= {_ago(sql)}
    ) AS troubled WHERE error_code IS NOT NULL
    GROUP BY job_type, error_code ORDER BY jobs DESC, job_type, error_code LIMIT {SHOWN_MAX}"""


def _paused(sql: Sql) -> str:
    return f"""
    SELECT l.limit_key, {sql.epoch("l.paused_until")} AS until, l.pause_reason,
        (SELECT count(*) FROM {sql.jobs} AS j WHERE j.limit_key = l.limit_key AND j.status <> 'running') AS waiting
    FROM {sql.limits} AS l WHERE l.paused_until > {sql.now} ORDER BY l.limit_key LIMIT {SHOWN_MAX}"""


def _workers(sql: Sql) -> str:
    return f"""
    SELECT w.id, w.version, w.lanes, {sql.epoch("w.started_at")} AS started_at, {sql.seconds("w.seen_at")} AS silent,
        (SELECT count(*) FROM {sql.jobs} AS j WHERE j.status = 'running' AND j.locked_by = w.id) AS running
    FROM {sql.workers} AS w ORDER BY w.started_at"""


def due_jobs(store: Store) -> int:
    """How many jobs could start now, for a progress bar."""
    with store.read() as connection:
        return count_due(store, connection).jobs
