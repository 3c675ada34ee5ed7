"""The state of the whole, for `effects status`: what waits, what failed, what is paused, who works."""

from __future__ import annotations

import datetime as dt
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from typing import Any

import msgspec
from sqlalchemy import Connection, Row

from effects.kit.moments import moment_or_none
from effects.kit.text.wording import shown_status
from effects.model.job_type import WAITS_FOR_OPERATOR
from effects.model.registry import Registry
from effects.operate.tables.counts import (
    FAILED_SECONDS,
    HOUR_SECONDS,
    count_due,
    died_since,
    does_nothing,
    is_stopped,
)
from effects.operate.tables.dead_letters import Cause, count_causes
from effects.operate.tables.held_up import SHOWN_MAX, HeldUp, read_held_up
from effects.operate.tables.job_list import UNSUCCESSFUL
from effects.store.db.records import record
from effects.store.db.sql import Sql
from effects.store.db.store import Store
from effects.store.db.urls import describe_database

ERRORS_SECONDS = 86_400
ENDED_MAX = 10_000  # ended jobs that are counted: the newest ids, and of those that did not succeed the newest


class TypeCount(msgspec.Struct, frozen=True):
    job_type: str
    status: str
    jobs: int


class ErrorCount(msgspec.Struct, frozen=True):
    job_type: str
    error_code: str
    jobs: int


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
    started_at: dt.datetime
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

    `database`: which one, without its user and password.
    `counts`: every live job; the newest 10,000 that are dead, and that were cancelled; and of those that succeeded the
    ones among the newest 10,000 jobs, of which the oldest was created at `succeeded_since` (None: none succeeded).
    `errors`: codes of jobs that failed, were put off, or died in a day, most frequent first, at most 20.
    `held_up`: what holds jobs up, and what ends it.
    """

    database: str
    counts: list[TypeCount]
    succeeded_since: dt.datetime | None
    oldest_due_seconds: float | None
    dead_last_hour: int
    unresolved: int
    unknown: int
    causes: list[Cause]
    errors: list[ErrorCount]
    held_up: list[HeldUp]
    bulks: list[BulkProgress]
    workers: list[WorkerState]


def read_status(store: Store, lease_seconds: float, job_types: Registry, queues: Collection[str]) -> Status:
    """Read every live job once, and a bounded number of ended ones: the same after a year as on the first day.

    All of it is of one snapshot.

    Args:
        job_types, queues: those that the reader's app names.

    Raises:
        StoreUnavailable: the database is unavailable.
    """
    with store.snapshot() as connection:
        causes = count_causes(store, connection)
        workers = read_workers(store, connection, lease_seconds)
        live = store.all(connection, _live)
        ended = _newest_ended(store, connection)
        died = store.all(connection, _died, seconds=ERRORS_SECONDS, hour=HOUR_SECONDS)
        return Status(
            database=describe_database(store.engine.url),
            counts=_counts([*live, *ended]),
            succeeded_since=moment_or_none(min((row.since for row in ended if row.since is not None), default=None)),
            oldest_due_seconds=max((row.oldest_due for row in live if row.oldest_due is not None), default=None),
            dead_last_hour=sum(row.last_hour for row in died),
            unresolved=sum(cause.jobs for cause in causes),
            unknown=sum(cause.jobs for cause in causes if cause.unknown),
            causes=causes,
            errors=_errors([*(row for row in live if _waits_with_error(row)), *died]),
            held_up=read_held_up(store, connection, job_types=job_types, queues=queues, served=served_queues(workers)),
            bulks=[
                BulkProgress(
                    row.id, row.action, "stopped" if row.stopped else "running", row.done, row.refused, row.expected
                )
                for row in store.all(connection, _bulks)
            ],
            workers=workers,
        )


def _newest_ended(store: Store, connection: Connection) -> Sequence[Row[Any]]:
    """By a bound id: beside a subquery PostgreSQL expects a third of the history, and starts processes for it."""
    newest = store.value(connection, _newest)
    return [] if newest is None else store.all(connection, _ended, after=newest - ENDED_MAX)


def _counts(rows: Sequence[Row[Any]]) -> list[TypeCount]:
    jobs: Counter[tuple[str, str]] = Counter()
    for row in rows:
        jobs[row.job_type, shown_status(row.status)] += row.jobs
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
        record(
            WorkerState,
            row,
            silent_seconds=row.silent,
            state=_state(row),
            claimed_seconds=row.claimed,
            settled_seconds=row.settled,
            fired_seconds=row.fired,
            reason=row.end_reason,
        )
        for row in store.all(connection, _workers, lease=lease_seconds, seconds=FAILED_SECONDS)
    ]


def served_queues(workers: Iterable[WorkerState]) -> list[list[str]]:
    """The queues of each that is alive and takes new work."""
    takers = [worker for worker in workers if worker.alive and worker.drain_requested_by is None]
    return [worker.queues.split(",") for worker in takers if worker.state != "failed"]


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
    """What did not succeed by its index: however many newer jobs succeeded."""
    newest = " UNION ALL ".join(
        f"SELECT * FROM (SELECT job_type, status FROM {sql.job_history} WHERE status <> 'succeeded' "
        f"AND status = '{status}' ORDER BY finished_at DESC, id DESC LIMIT {ENDED_MAX}) AS {status}_jobs"
        for status in UNSUCCESSFUL
    )
    return f"""
    SELECT job_type, status, count(*) AS jobs, {sql.epoch("min(created_at)")} AS since FROM {sql.job_history}
    WHERE id > :after AND status = 'succeeded' GROUP BY job_type, status
    UNION ALL
    SELECT job_type, status, count(*) AS jobs, NULL AS since FROM ({newest}) AS newest GROUP BY job_type, status"""


def _newest(sql: Sql) -> str:
    return f"SELECT max(id) FROM {sql.job_history}"


def _ago(sql: Sql) -> str:
    return sql.after("-CAST(:seconds AS double precision)")


def _died(sql: Sql) -> str:
    recent = f"finished_at >= {sql.after('-' + sql.number('hour'))}"
    return f"""
    SELECT job_type, error_code, count(*) AS jobs, sum(CASE WHEN {recent} THEN 1 ELSE 0 END) AS last_hour
    FROM {sql.job_history} WHERE {died_since(sql)} GROUP BY job_type, error_code"""


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
