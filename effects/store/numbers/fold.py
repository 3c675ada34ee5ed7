"""Numbers are kept for a month, in fewer and fewer rows: all workers in one after a while, an hour in one later.

A fold deletes rows and adds their sums to another, in one transaction. Folds follow one another: each holds a row.
"""

from __future__ import annotations

from functools import cache
from typing import Any, NamedTuple

from sqlalchemy import Connection

from effects.crashpoints import point
from effects.store.db.old_rows import OldRows, delete_page, old_rows
from effects.store.db.sql import Sql
from effects.store.db.store import Statement, Store
from effects.store.numbers.rows import WorkerRollup, rollup_columns, rollup_of, write_rollups
from effects.store.schema.operator_tables import FOLDED_NUMBERS, HOUR, MINUTE, SAMPLE_COUNTS
from effects.walk import Page

WORKERS_SECONDS = 900.0  # then the rows of a minute's workers become one
MINUTES_SECONDS = 172_800.0  # then an hour's minutes become one
SPAN_SECONDS = 600  # of minutes whose workers are folded at once


class _Fold(NamedTuple):
    """Which minutes' rows become one, and of how many seconds.

    `condition`: of the rows. `age`: from when on. `span`: seconds that are folded at once.
    """

    condition: str
    seconds: int
    age: float
    span: int


_WORKERS = _Fold("worker <> ''", MINUTE, WORKERS_SECONDS, SPAN_SECONDS)
_MINUTES = _Fold("true", HOUR, MINUTES_SECONDS, HOUR)


def fold_workers(store: Store, *, cursor: float | None, dry_run: bool) -> Page:
    """Fold ten minutes of workers' rows into one for each minute, type and queue."""
    return _fold_next(store, _WORKERS, cursor, dry_run)


def fold_minutes(store: Store, *, cursor: float | None, dry_run: bool) -> Page:
    """Fold the minutes of an hour into one row for each type and queue."""
    return _fold_next(store, _MINUTES, cursor, dry_run)


def _fold_next(store: Store, fold: _Fold, cursor: float | None, dry_run: bool) -> Page:
    with store.read() as connection:
        first = store.value(connection, _first(fold.condition), age=fold.age, cursor=cursor or 0.0)
    if first is None or dry_run:
        return Page(0)
    since = float(first) // fold.span * fold.span
    return Page(_fold(store, fold, since), since + fold.span)


def _fold(store: Store, fold: _Fold, since: float) -> int:
    """Rows that went, less those that their sums are in."""
    spanned = {"since": since, "until": since + fold.span}
    with store.begin() as connection:
        _hold(store, connection)
        rows = store.all(connection, _take(fold.condition), age=fold.age, **spanned)
        folded: dict[tuple[float, str, str], WorkerRollup] = {}
        for row in rows:
            begins = row.begins // fold.seconds * fold.seconds
            key = (begins, row.job_type, row.queue)
            if key not in folded:
                folded[key] = WorkerRollup(begins, fold.seconds, row.job_type, row.queue, worker="")
            folded[key].add(rollup_of(row))
        for row in store.all(connection, _folded, length=fold.seconds, **spanned):
            key = (row.begins, row.job_type, row.queue)
            if key in folded:
                folded[key].add(rollup_of(row))
        if folded:
            write_rollups(store, list(folded.values()), connection)
        point("prune.before_commit")
    return max(0, len(rows) - len(folded))


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


def _spanned(sql: Sql) -> str:
    since, until = (sql.time(sql.number(name)) for name in ("since", "until"))
    return f"begins_at >= {since} AND begins_at < {until}"


@cache
def _first(condition: str) -> Statement:
    def build(sql: Sql) -> str:
        return f"""
        SELECT {sql.epoch("min(begins_at)")} FROM {sql.rollups} WHERE seconds = {MINUTE} AND {condition} AND {_old(sql)}
        AND begins_at >= {sql.time(sql.number("cursor"))}"""

    return build


@cache
def _take(condition: str) -> Statement:
    def build(sql: Sql) -> str:
        return f"""
        DELETE FROM {sql.rollups} WHERE seconds = {MINUTE} AND {condition} AND {_old(sql)} AND {_spanned(sql)}
        RETURNING {rollup_columns(sql)}"""

    return build


def _folded(sql: Sql) -> str:
    return f"""
    SELECT {rollup_columns(sql)} FROM {sql.rollups} WHERE seconds = :length AND worker = '' AND {_spanned(sql)}"""


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
    FROM {sql.samples} WHERE seconds = {MINUTE} AND {_old(sql)} AND {_spanned(sql)} GROUP BY queue
    ON CONFLICT (seconds, begins_at, queue) DO UPDATE SET {kept}, minutes = {sql.samples}.minutes + excluded.minutes"""


def _take_samples(sql: Sql) -> str:
    return f"DELETE FROM {sql.samples} WHERE seconds = {MINUTE} AND {_old(sql)} AND {_spanned(sql)}"


# -- retention -------------------------------------------------------------------------------------------


def old_rollups(store: Store, *, seconds: float, cursor: object, dry_run: bool) -> Page:
    """Delete a page of rollups older than that."""
    return delete_page(store, OLD_ROLLUPS, seconds, cursor, dry_run=dry_run)


def old_samples(store: Store, *, seconds: float, cursor: object, dry_run: bool) -> Page:
    """Delete a page of samples older than that."""
    return delete_page(store, OLD_SAMPLES, seconds, cursor, dry_run=dry_run)


def _old_numbers(table: str, key: str) -> OldRows:
    def old(sql: Sql) -> str:
        return f"SELECT {key} FROM {getattr(sql, table)} WHERE {sql.seconds('begins_at')} >= {sql.number('age')}"

    return old_rows(table, key, old)


OLD_ROLLUPS = _old_numbers("rollups", "seconds, begins_at, job_type, queue, worker")
OLD_SAMPLES = _old_numbers("samples", "seconds, begins_at, queue")
