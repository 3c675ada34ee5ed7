"""The state of the whole, for `effects status`: what waits, what failed, what is paused, who works."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import msgspec
from sqlalchemy import Connection, Row

from effects.model.job_type import WAITS_FOR_OPERATOR
from effects.store.db.records import Moment, shown_moment, shown_moment_or_none
from effects.store.db.sql import Sql
from effects.store.db.store import Store
from effects.store.limits.capacity import with_parents
from effects.store.limits.queue_pauses import QueuePause, paused_queues
from effects.store.operator.counts import (
    FAILED_SECONDS,
    HOUR_SECONDS,
    OperatorWait,
    count_due,
    died_since,
    does_nothing,
    is_stopped,
    read_operator_waits,
)
from effects.store.operator.dead_letters import count_unresolved

ERRORS_SECONDS = 86_400
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
    silent (it missed heartbeats), or failed (by a fault). `alive`: it was heard of within a lease of the reader.

    The seconds say how long ago it last looked for work, wrote outcomes and looked at the schedules; None: not yet, or
    not heard of. `reason`: which fault, of a failed one. Failed ones are shown for an hour.
    """

    id: str
    host: str
    version: str
    queues: str
    heartbeat_seconds: float
    lease_seconds: float
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


class BulkProgress(msgspec.Struct, frozen=True):
    """A bulk action that has not ended, and how far it is. `status`: running; or stopped, where no job works on it."""

    id: int
    action: str
    status: str
    done: int
    refused: int
    expected: int


class Status(msgspec.Struct, frozen=True, kw_only=True):
    """Jobs by type and status; how long the oldest due job has waited; jobs that died in the last hour; what waits for
    a person, and how many effects of these may have happened.

    `counts`: every live job; of the ended ones those among the newest 10,000 jobs, of which the oldest was created at
    `ended_since` (None: none has ended). `errors`: codes of jobs that failed, were put off, or died in a day,
    most frequent first, at most 20. `operator_waits`: what the workers lack, and the jobs that wait for it.
    """

    counts: list[TypeCount]
    ended_since: Moment | None
    oldest_due_seconds: float | None
    dead_last_hour: int
    unresolved: int
    unknown: int
    errors: list[ErrorCount]
    operator_waits: list[OperatorWait]
    paused: list[PausedKey]
    paused_queues: list[QueuePause]
    bulks: list[BulkProgress]
    workers: list[WorkerState]


def read_status(store: Store, lease_seconds: float) -> Status:
    """Read every live job once, and a bounded number of ended ones: the same after a year as on the first day.

    Raises:
        StoreUnavailable: the database is unavailable.
    """
    with store.read() as connection:
        unresolved = count_unresolved(store, connection)
        live = store.all(connection, _live)
        ended = _newest_ended(store, connection)
        lacking = any(row.error_code == WAITS_FOR_OPERATOR for row in live)
        died = store.all(connection, _died, seconds=ERRORS_SECONDS, hour=HOUR_SECONDS)
        return Status(
            counts=_counts([*live, *ended]),
            ended_since=shown_moment_or_none(min((row.since for row in ended), default=None)),
            oldest_due_seconds=max((row.oldest_due for row in live if row.oldest_due is not None), default=None),
            dead_last_hour=sum(row.last_hour for row in died),
            unresolved=unresolved.jobs,
            unknown=unresolved.unknown,
            errors=_errors([*(row for row in live if _waits_with_error(row)), *died]),
            operator_waits=read_operator_waits(store, connection) if lacking else [],
            paused=paused_keys(store, connection),
            paused_queues=paused_queues(store, connection),
            bulks=[
                BulkProgress(
                    row.id, row.action, "stopped" if row.stopped else "running", row.done, row.refused, row.expected
                )
                for row in store.all(connection, _bulks)
            ],
            workers=read_workers(store, connection, lease_seconds),
        )


def paused_keys(store: Store, connection: Connection) -> list[PausedKey]:
    """The limit keys that are paused, with the jobs that wait for each; at most 20, those with the most jobs."""
    return [
        PausedKey(row.limit_key, shown_moment(row.until), row.pause_reason, row.waiting)
        for row in store.all(connection, _paused)
    ]


def _newest_ended(store: Store, connection: Connection) -> Sequence[Row[Any]]:
    """By a bound id: beside a subquery PostgreSQL expects a third of the history, and starts processes for it."""
    newest = store.value(connection, _newest)
    return [] if newest is None else store.all(connection, _ended, after=newest - ENDED_MAX)


def _counts(rows: Sequence[Row[Any]]) -> list[TypeCount]:
    jobs: Counter[tuple[str, str]] = Counter()
    for row in rows:
        jobs[row.job_type, row.status] += row.jobs
    return [TypeCount(job_type, status, count) for (job_type, status), count in sorted(jobs.items(), key=str)]


def _waits_with_error(row: Row[Any]) -> bool:
    """It failed, or a pause put it off, which may have lapsed since; not what waits for an operator, listed apart."""
    return bool(row.status != "running" and row.error_code != WAITS_FOR_OPERATOR)


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
            heartbeat_seconds=row.heartbeat_seconds,
            lease_seconds=row.lease_seconds,
            started_at=shown_moment(row.started_at),
            silent_seconds=row.silent,
            alive=bool(row.alive),
            running=row.running,
            state=_state(row),
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


def _state(row: Any) -> str:
    if row.ended:
        return "failed"
    if row.silent_now or not row.alive:
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
    WHERE id > :after GROUP BY job_type, status"""


def _newest(sql: Sql) -> str:
    return f"SELECT max(id) FROM {sql.job_history}"


def _ago(sql: Sql) -> str:
    return sql.after("-CAST(:seconds AS double precision)")


def _died(sql: Sql) -> str:
    recent = f"finished_at >= {sql.after('-' + sql.number('hour'))}"
    return f"""
    SELECT job_type, error_code, count(*) AS jobs, sum(CASE WHEN {recent} THEN 1 ELSE 0 END) AS last_hour
    FROM {sql.job_history} WHERE {died_since(sql)} GROUP BY job_type, error_code"""


def _paused(sql: Sql) -> str:
    """Waiting jobs are counted by one grouping, whatever the number of keys; a key's children wait for it too."""
    return f"""
    WITH paused AS (
        SELECT limit_key, paused_until, pause_reason FROM {sql.limits} WHERE paused_until > {sql.now}
    ), held AS (
        SELECT limit_key FROM paused
        UNION SELECT limit_key FROM {sql.limits} WHERE parent_key {sql.among("paused", "limit_key")}
    ), own(k, n) AS (
        SELECT limit_key, count(*) FROM {sql.jobs}
        WHERE limit_key {sql.among("held", "limit_key")} AND status <> 'running' GROUP BY limit_key
    ), counted(k, n) AS ({with_parents(sql, "own")}
    )
    SELECT paused.limit_key, {sql.epoch("paused_until")} AS until, pause_reason,
        CAST(COALESCE(counted.n, 0) AS bigint) AS waiting
    FROM paused LEFT JOIN counted ON counted.k = paused.limit_key
    ORDER BY waiting DESC, paused.limit_key LIMIT {SHOWN_MAX}"""


def _bulks(sql: Sql) -> str:
    return f"""
    SELECT b.id, b.action, b.done, b.refused, b.expected, {is_stopped(sql)} AS stopped
    FROM {sql.bulk_actions} AS b WHERE b.status = 'running' ORDER BY b.id DESC LIMIT {SHOWN_MAX}"""


def _workers(sql: Sql) -> str:
    return f"""
    SELECT w.id, w.host, w.version, w.queues, w.heartbeat_seconds, w.lease_seconds,
        w.drain_requested_by, w.drain_reason,
        {sql.epoch("w.started_at")} AS started_at, {sql.seconds("w.seen_at")} AS silent,
        {sql.is_silent("w.")} AS silent_now, w.ended_at IS NOT NULL AS ended,
        {sql.is_alive("w.")} AS alive, {does_nothing(sql)} AS idle,
        {sql.seconds("w.claimed_at")} AS claimed,
        {sql.seconds("w.settled_at")} AS settled, {sql.seconds("w.fired_at")} AS fired, w.oldest_unsettled_seconds,
        w.exit_code, w.end_reason,
        (SELECT count(*) FROM {sql.jobs} AS j WHERE j.status = 'running' AND j.locked_by = w.id) AS running
    FROM {sql.workers} AS w WHERE w.ended_at IS NULL OR w.ended_at >= {_ago(sql)} ORDER BY w.started_at, w.id"""


def due_jobs(store: Store) -> int:
    """How many jobs could start now, for a progress bar."""
    with store.read() as connection:
        return count_due(store, connection).jobs
