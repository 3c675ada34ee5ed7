"""Rollups: what workers did in each minute, by job type and queue."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import msgspec
from sqlalchemy import Connection

from effects import histogram
from effects.store.db.sql import Sql
from effects.store.db.store import Store, as_json
from effects.store.schema.operator_tables import HOUR, MINUTE, ROLLUP_COUNTS


class Rollup(msgspec.Struct):
    """What attempts of one job type and queue came to that ended in one minute, or in one hour.

    `begins_at`: seconds since 1970. `done` to `snoozed` count attempts by outcome (a pause is a snooze); of their jobs,
    `dead` ended dead. The histograms (`effects.histogram`) and sums are about attempts that ran: how long they had been
    due when they started, and how long they took.
    """

    begins_at: float
    seconds: int
    job_type: str
    queue: str
    done: int = 0
    failed: int = 0
    refused: int = 0
    unknown: int = 0
    timed_out: int = 0
    lost: int = 0
    cancelled: int = 0
    snoozed: int = 0
    dead: int = 0
    wait_seconds: float = 0.0
    run_seconds: float = 0.0
    wait_counts: list[int] = msgspec.field(default_factory=histogram.empty)
    run_counts: list[int] = msgspec.field(default_factory=histogram.empty)

    def add(self, rollup: Rollup) -> None:
        for name in (*ROLLUP_COUNTS, "wait_seconds", "run_seconds"):
            setattr(self, name, getattr(self, name) + getattr(rollup, name))
        histogram.add(self.wait_counts, rollup.wait_counts)
        histogram.add(self.run_counts, rollup.run_counts)


class WorkerRollup(Rollup, kw_only=True):
    """As it is written: by one worker, or folded (an empty text)."""

    worker: str


_KEY = "seconds, begins_at, job_type, queue, worker"
_TOTALS = (*ROLLUP_COUNTS, "wait_seconds", "run_seconds", "wait_counts", "run_counts")


# -- writing ---------------------------------------------------------------------------------------------


def write_rollups(store: Store, rollups: Sequence[WorkerRollup], connection: Connection | None = None) -> None:
    """Write these rows as they are: repeating it changes nothing. No other worker writes the same ones."""
    if connection is not None:
        store.write(connection, _write_rollups, rows=as_json(rollups))
        return
    with store.single() as own:
        store.write(own, _write_rollups, rows=as_json(rollups))


def _write_rollups(sql: Sql) -> str:
    totals = ", ".join(_TOTALS)
    return f"""
    INSERT INTO {sql.rollups} ({_KEY}, {totals})
    SELECT seconds, {sql.time("begins_at")}, job_type, queue, worker, {totals}
    FROM {sql.rows("rows", WorkerRollup)} AS r WHERE true
    ON CONFLICT ({_KEY}) DO UPDATE SET {", ".join(f"{name} = excluded.{name}" for name in _TOTALS)}"""


# -- reading ---------------------------------------------------------------------------------------------


def read_rollups(
    store: Store,
    connection: Connection,
    since: float,
    until: float,
    *,
    queue: str | None = None,
) -> list[Rollup]:
    """The rollups that begin within these times (seconds since 1970), oldest first; each worker has its own."""
    rows = store.all(connection, _rollups, since=since, until=until, queue=queue)
    return [rollup_of(row) for row in rows]


def rollup_of(row: Any) -> Rollup:
    """A rollup of a row with all columns. An unreadable histogram counts as an empty one."""
    rollup = Rollup(float(row.begins), int(row.seconds), row.job_type, row.queue)
    for name in ROLLUP_COUNTS:
        setattr(rollup, name, int(getattr(row, name)))
    rollup.wait_seconds, rollup.run_seconds = finite_seconds(row.wait_seconds), finite_seconds(row.run_seconds)
    histogram.add(rollup.wait_counts, _counts(row.wait_text))
    histogram.add(rollup.run_counts, _counts(row.run_text))
    return rollup


def finite_seconds(value: object) -> float:
    """A stored number of seconds; 0 for what cannot be added up."""
    return float(value) if isinstance(value, int | float) and math.isfinite(value) else 0.0


def _counts(text: str) -> list[int]:
    try:
        counts = msgspec.json.decode(text, type=list[int])
    except (msgspec.MsgspecError, UnicodeError):
        return []
    return counts if len(counts) <= histogram.BUCKETS else []


def rollup_columns(sql: Sql) -> str:
    """What `rollup_of` reads."""
    histograms = f"{sql.json_text('wait_counts')} AS wait_text, {sql.json_text('run_counts')} AS run_text"
    totals = ", ".join((*ROLLUP_COUNTS, "wait_seconds", "run_seconds"))
    return f"{sql.epoch('begins_at')} AS begins, seconds, job_type, queue, {totals}, {histograms}"


def within_times(sql: Sql) -> str:
    """Condition: a row begins from `since` on and before `until`. By both lengths, for the index."""
    since, until = (sql.time(sql.number(name)) for name in ("since", "until"))
    return f"seconds IN ({MINUTE}, {HOUR}) AND begins_at >= {since} AND begins_at < {until}"


def _rollups(sql: Sql) -> str:
    return f"""
    SELECT {rollup_columns(sql)} FROM {sql.rollups}
    WHERE {within_times(sql)} AND {sql.matches("queue", "queue")}
    ORDER BY begins_at, job_type, queue, worker"""
