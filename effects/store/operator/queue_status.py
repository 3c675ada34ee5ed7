"""The state of the whole, for `effects status`: what waits, what failed, what is paused, who works."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import msgspec
from sqlalchemy import Connection, Row

from effects.store.db.records import Moment, shown_moment, shown_moment_or_none
from effects.store.db.sql import Sql
from effects.store.db.store import Store
from effects.store.limits.queue_pauses import QueuePause, paused_queues
from effects.store.operator.counts import FAILED_SECONDS, count_due, does_nothing
from effects.store.operator.dead_letters import count_causes

ERRORS_SECONDS = 86_400
DEAD_SECONDS = 3_600
ENDED_MAX = 10_000  # ids of ended jobs that are counted
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
    until: Moment
    reason: str | None
    waiting: int


class WorkerState(msgspec.Struct, frozen=True):
    """`state`: alive, draining (asked to end in order), idle (it lives and has not worked for a lease),
    silent (for a lease), or failed (by a fault).

    The seconds say how long ago it last looked for work, wrote outcomes and looked at the schedules; None: not yet, or
    not heard of. `reason`: which fault, of a failed one. Failed ones are shown for an hour.
    """

    id: str
    host: str
    version: str
    queues: str
    started_at: Moment
    silent_seconds: float
    alive: bool
    running: int
    state: str
    claimed_seconds: float | None
    settled_seconds: float | None
    fired_seconds: float | None
    oldest_unsettled_seconds: float | None
    exit_code: int | None
    reason: str | None
    drain_requested_by: str | None
    drain_reason: str | None

    @property
    def shown_state(self) -> str:
        """The state with its details: the fault, or who requested the drain, and why."""
        if self.state == "failed":
            return f"failed ({self.exit_code}): {self.reason}"
        if self.drain_requested_by is None:
            return self.state
        why = f" ({self.drain_reason})" if self.drain_reason else ""
        return f"{self.state}, drain requested by {self.drain_requested_by}{why}"


class Status(msgspec.Struct, frozen=True, kw_only=True):
    """Jobs by type and status; how long the oldest due job has waited; jobs that died in the last hour; what waits for
    a person, and how many effects of these may have happened.

    `counts`: every live job; of the ended ones those among the newest 10,000 jobs, of which the oldest was created at
    `ended_since` (None: none has ended). `errors`: the codes of the jobs that failed and wait, or died within a day,
    most frequent first, at most 20.
    """

    counts: list[TypeCount]
    ended_since: Moment | None
    oldest_due_seconds: float | None
    dead_last_hour: int
    unresolved: int
    unknown: int
    errors: list[ErrorCount]
    paused: list[PausedKey]
    paused_queues: list[QueuePause]
    workers: list[WorkerState]


def read_status(store: Store, lease_seconds: float) -> Status:
    """Read every live job once, and a bounded number of ended ones: the same after a year as on the first day.

    Raises:
        StoreUnavailable: the database is unavailable.
    """
    with store.read() as connection:
        causes = count_causes(store, connection)
        live = store.all(connection, _live)
        ended = store.all(connection, _ended)
        died = store.all(connection, _died, seconds=ERRORS_SECONDS)
        return Status(
            counts=_counts([*live, *ended]),
            ended_since=shown_moment_or_none(min((row.since for row in ended), default=None)),
            oldest_due_seconds=max((row.oldest_due for row in live if row.oldest_due is not None), default=None),
            dead_last_hour=store.value(connection, _dead, seconds=DEAD_SECONDS),
            unresolved=sum(cause.jobs for cause in causes),
            unknown=sum(cause.jobs for cause in causes if cause.unknown),
            errors=_errors([*(row for row in live if row.status == "failed"), *died]),
            paused=[
                PausedKey(row.limit_key, shown_moment(row.until), row.pause_reason, row.waiting)
                for row in store.all(connection, _paused)
            ],
            paused_queues=paused_queues(store, connection),
            workers=read_workers(store, connection, lease_seconds),
        )


def _counts(rows: Sequence[Row[Any]]) -> list[TypeCount]:
    jobs: Counter[tuple[str, str]] = Counter()
    for row in rows:
        jobs[row.job_type, row.status] += row.jobs
    return [TypeCount(job_type, status, count) for (job_type, status), count in sorted(jobs.items(), key=str)]


def _errors(rows: Sequence[Row[Any]]) -> list[ErrorCount]:
    jobs: Counter[tuple[str, str]] = Counter()
    for row in rows:
        if row.error_code is not None:
            jobs[row.job_type, row.error_code] += row.jobs
    frequent_first = sorted(jobs.items(), key=lambda counted: (-counted[1], str(counted[0])))
    return [ErrorCount(job_type, code, count) for (job_type, code), count in frequent_first[:SHOWN_MAX]]


def read_workers(store: Store, connection: Connection, lease_seconds: float) -> list[WorkerState]:
    """All that are registered, and those that ended by a fault within the hour, by their start."""
    return [
        WorkerState(
            id=row.id,
            host=row.host,
            version=row.version,
            queues=row.queues,
            started_at=shown_moment(row.started_at),
            silent_seconds=row.silent,
            alive=row.silent <= lease_seconds and not row.ended,
            running=row.running,
            state=_state(row, lease_seconds),
            claimed_seconds=row.claimed,
            settled_seconds=row.settled,
            fired_seconds=row.fired,
            oldest_unsettled_seconds=row.oldest_unsettled_seconds,
            exit_code=row.exit_code,
            reason=row.end_reason,
            drain_requested_by=row.drain_requested_by,
            drain_reason=row.drain_reason,
        )
        for row in store.all(connection, _workers, lease=lease_seconds, seconds=FAILED_SECONDS)
    ]


def _state(row: Any, lease_seconds: float) -> str:
    if row.ended:
        return "failed"
    if row.silent > lease_seconds:
        return "silent"
    if row.idle:
        return "idle"
    return "alive" if row.drain_requested_by is None else "draining"


def _live(sql: Sql) -> str:
    due = f"CASE WHEN status <> 'running' AND run_at <= {sql.now} THEN run_at END"
    return f"""
    SELECT job_type, status, error_code, count(*) AS jobs, {sql.seconds(f"min({due})")} AS oldest_due
    FROM {sql.jobs} GROUP BY job_type, status, error_code"""


def _ended(sql: Sql) -> str:
    return f"""
    SELECT job_type, status, count(*) AS jobs, {sql.epoch("min(created_at)")} AS since FROM {sql.job_history}
    WHERE id > (SELECT max(id) FROM {sql.job_history}) - {ENDED_MAX} GROUP BY job_type, status"""


def _ago(sql: Sql) -> str:
    return sql.after("-CAST(:seconds AS double precision)")


def _died_since(sql: Sql) -> str:
    """The first condition is that of the index on what did not succeed."""
    return f"status <> 'succeeded' AND status = 'dead' AND finished_at >= {_ago(sql)}"


def _dead(sql: Sql) -> str:
    return f"SELECT count(*) FROM {sql.job_history} WHERE {_died_since(sql)}"


def _died(sql: Sql) -> str:
    return f"""
    SELECT job_type, error_code, count(*) AS jobs FROM {sql.job_history}
    WHERE {_died_since(sql)} GROUP BY job_type, error_code"""


def _paused(sql: Sql) -> str:
    return f"""
    SELECT l.limit_key, {sql.epoch("l.paused_until")} AS until, l.pause_reason,
        (SELECT count(*) FROM {sql.jobs} AS j WHERE j.limit_key = l.limit_key AND j.status <> 'running') AS waiting
    FROM {sql.limits} AS l WHERE l.paused_until > {sql.now} ORDER BY l.limit_key LIMIT {SHOWN_MAX}"""


def _workers(sql: Sql) -> str:
    return f"""
    SELECT w.id, w.host, w.version, w.queues, w.drain_requested_by, w.drain_reason,
        {sql.epoch("w.started_at")} AS started_at, {sql.seconds("w.seen_at")} AS silent,
        w.ended_at IS NOT NULL AS ended, {does_nothing(sql)} AS idle, {sql.seconds("w.claimed_at")} AS claimed,
        {sql.seconds("w.settled_at")} AS settled, {sql.seconds("w.fired_at")} AS fired, w.oldest_unsettled_seconds,
        w.exit_code, w.end_reason,
        (SELECT count(*) FROM {sql.jobs} AS j WHERE j.status = 'running' AND j.locked_by = w.id) AS running
    FROM {sql.workers} AS w WHERE w.ended_at IS NULL OR w.ended_at >= {_ago(sql)} ORDER BY w.started_at, w.id"""


def due_jobs(store: Store) -> int:
    """How many jobs could start now, for a progress bar."""
    with store.read() as connection:
        return count_due(store, connection).jobs
