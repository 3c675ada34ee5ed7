"""Numbers are kept for a month, in few rows: those of all workers in one, and the longest time ago in long ones only.

A fold of workers' rows deletes them and adds their sums to the rows of every length, in one transaction. Samples of an
hour become one. Folds follow one another: each holds a row.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, TypeAlias

from sqlalchemy import Connection

from effects.crashpoints import point
from effects.store.db.old_rows import OldRows, delete_page, old_rows
from effects.store.db.sql import Sql
from effects.store.db.store import Store
from effects.store.numbers.rows import (
    ROLLUP_KEY,
    Rollup,
    WorkerRollup,
    rollup_columns,
    rollup_of,
    within_times,
    write_rollups,
)
from effects.store.schema.operator_tables import FOLDED_NUMBERS, HOUR, LENGTHS, MINUTE, SAMPLE_COUNTS, TEN_MINUTES
from effects.walk import Page

WORKERS_SECONDS = 900.0  # then the rows of a minute's workers become one of each length
MINUTES_SECONDS = 90_000.0  # a day and an hour; then the rows of an hour and more are kept alone
SPAN_SECONDS = TEN_MINUTES  # of minutes whose workers are folded at once

_Key: TypeAlias = tuple[float, str, str]


def fold_workers(store: Store, *, cursor: float | None, dry_run: bool) -> Page:
    """Fold ten minutes of workers' rows into one of each length for each type and queue."""
    with store.read() as connection:
        first = store.value(connection, _first, age=WORKERS_SECONDS, cursor=cursor or 0.0)
    if first is None or dry_run:
        return Page(0)
    since = float(first) // SPAN_SECONDS * SPAN_SECONDS
    return Page(_fold(store, since), since + SPAN_SECONDS)


def _fold(store: Store, since: float) -> int:
    """How many rows were folded."""
    until = since + SPAN_SECONDS
    with store.begin() as connection:
        _hold(store, connection)
        rows = store.all(connection, _take, age=WORKERS_SECONDS, since=since, until=until)
        written: list[WorkerRollup] = []
        sums: Sequence[Rollup] = [rollup_of(row) for row in rows]
        for length in LENGTHS:
            sums = _added_up(sums, length)
            bounds = {"since": since // length * length, "until": until, "length": length}
            written += _with_kept(sums, [rollup_of(row) for row in store.all(connection, _kept, **bounds)])
        if written:
            write_rollups(store, written, connection)
        point("prune.before_commit")
    return len(rows)


def _added_up(rollups: Iterable[Rollup], length: int) -> list[WorkerRollup]:
    """One for each stretch of that many seconds, type and queue."""
    sums: dict[_Key, WorkerRollup] = {}
    for rollup in rollups:
        begins_at = rollup.begins_at // length * length
        key = (begins_at, rollup.job_type, rollup.queue)
        if key not in sums:
            sums[key] = WorkerRollup(begins_at, length, rollup.job_type, rollup.queue, worker="")
        sums[key].add(rollup)
    return list(sums.values())


def _with_kept(sums: Iterable[WorkerRollup], kept: Iterable[Rollup]) -> list[WorkerRollup]:
    """The rows that these sums become, which are left as they are."""
    kept_by_key = {(rollup.begins_at, rollup.job_type, rollup.queue): rollup for rollup in kept}
    rows: list[WorkerRollup] = []
    for rollup in sums:
        key = (rollup.begins_at, rollup.job_type, rollup.queue)
        rows += _added_up([rollup, kept_by_key[key]] if key in kept_by_key else [rollup], rollup.seconds)
    return rows


def _hold(store: Store, connection: Connection) -> None:
    """Two folds at once would each miss what the other writes."""
    store.write(connection, _hold_row, name=FOLDED_NUMBERS)


def _hold_row(sql: Sql) -> str:
    return f"""
    INSERT INTO {sql.pruned} (name, job_id, updated_at) VALUES (:name, 0, {sql.now})
    ON CONFLICT (name) DO UPDATE SET updated_at = excluded.updated_at"""


def _old(sql: Sql) -> str:
    ago = sql.after(f"-{sql.number('age')}")
    return f"begins_at < {ago}"


def _unfolded(sql: Sql) -> str:
    return f"seconds = {MINUTE} AND worker > '' AND {_old(sql)}"


def _first(sql: Sql) -> str:
    return f"""
    SELECT {sql.epoch("min(begins_at)")} FROM {sql.rollups}
    WHERE {_unfolded(sql)} AND begins_at >= {sql.time(sql.number("cursor"))}"""


def _take(sql: Sql) -> str:
    return f"""
    DELETE FROM {sql.rollups} WHERE {_unfolded(sql)} AND {within_times(sql)} RETURNING {rollup_columns(sql)}"""


def _kept(sql: Sql) -> str:
    return f"""
    SELECT {rollup_columns(sql)} FROM {sql.rollups}
    WHERE seconds = :length AND worker = '' AND {within_times(sql)}"""


# -- samples ---------------------------------------------------------------------------------------------


def fold_samples(store: Store, *, cursor: object, dry_run: bool) -> Page:
    """Fold an hour of samples into one for each queue: of what waited, the most."""
    with store.read() as connection:
        first: Any = store.value(connection, _first_sample, age=MINUTES_SECONDS)
    if first is None or dry_run:
        return Page(0)
    begins = float(first) // HOUR * HOUR
    parameters = {"age": MINUTES_SECONDS, "since": begins, "until": begins + HOUR}
    with store.begin() as connection:
        _hold(store, connection)
        written = store.write(connection, _fold_hour, **parameters)
        taken = store.write(connection, _take_samples, **parameters)
        point("prune.before_commit")
    return Page(max(0, taken - written), begins)


def _first_sample(sql: Sql) -> str:
    return f"""
    SELECT {sql.epoch("min(begins_at)")} FROM {sql.samples} WHERE seconds = {MINUTE} AND {_old(sql)}"""


def _fold_hour(sql: Sql) -> str:
    most = ("oldest_due_seconds", *SAMPLE_COUNTS)
    kept = ", ".join(f"{name} = {sql.greatest(f'excluded.{name}', f'{sql.samples}.{name}')}" for name in most)
    return f"""
    INSERT INTO {sql.samples} (seconds, begins_at, queue, {", ".join(most)}, minutes)
    SELECT {HOUR}, {sql.time(sql.number("since"))}, queue, {", ".join(f"max({name})" for name in most)}, sum(minutes)
    FROM {sql.samples} WHERE seconds = {MINUTE} AND {_old(sql)} AND {within_times(sql)} GROUP BY queue
    ON CONFLICT (seconds, begins_at, queue) DO UPDATE SET {kept}, minutes = {sql.samples}.minutes + excluded.minutes"""


def _take_samples(sql: Sql) -> str:
    return f"DELETE FROM {sql.samples} WHERE seconds = {MINUTE} AND {_old(sql)} AND {within_times(sql)}"


# -- retention -------------------------------------------------------------------------------------------


def old_minutes(store: Store, *, cursor: object, dry_run: bool) -> Page:
    """Delete a page of folded rows that the rows of hours have as well, and that are too short for their age."""
    return delete_page(store, OLD_MINUTES, MINUTES_SECONDS, cursor, dry_run=dry_run)


def old_rollups(store: Store, *, seconds: float, cursor: object, dry_run: bool) -> Page:
    """Delete a page of rollups older than that."""
    return delete_page(store, OLD_ROLLUPS, seconds, cursor, dry_run=dry_run)


def old_samples(store: Store, *, seconds: float, cursor: object, dry_run: bool) -> Page:
    """Delete a page of samples older than that."""
    return delete_page(store, OLD_SAMPLES, seconds, cursor, dry_run=dry_run)


def _select_old_minutes(sql: Sql) -> str:
    return f"""
    SELECT {ROLLUP_KEY} FROM {sql.rollups} WHERE seconds IN ({MINUTE}, {TEN_MINUTES}) AND worker = '' AND {_old(sql)}"""


def _old_numbers(table: str, key: str) -> OldRows:
    def old(sql: Sql) -> str:
        return f"SELECT {key} FROM {getattr(sql, table)} WHERE {sql.seconds('begins_at')} >= {sql.number('age')}"

    return old_rows(table, key, old)


OLD_MINUTES = old_rows("rollups", ROLLUP_KEY, _select_old_minutes)
OLD_ROLLUPS = _old_numbers("rollups", ROLLUP_KEY)
OLD_SAMPLES = _old_numbers("samples", "seconds, begins_at, queue")
