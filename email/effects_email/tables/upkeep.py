"""Deleting what nobody looks at any more: old events, suppressions that are over, counts, lines of the log.

Each table is asked for its oldest rows by an index, 500 at a time, until a page holds fewer.
"""

from __future__ import annotations

from collections.abc import Callable

from effects.retry import DAY_SECONDS
from effects.store.sql import Sql
from effects.store.store import Statement, Store

PAGE = 500
LOG_DAYS = 730  # who was written to against their will, and why, may be asked for later than the rest


def prune(store: Store, *, keep_seconds: float, window_days: int, dry_run: bool, go_on: Callable[[], bool]) -> int:
    """How many rows went, or would go (500 of each table at most, then).

    Args:
        keep_seconds: age of the events that go.
        window_days: soft failures of earlier days count no more, and go.
    """
    taken = 0
    for build, age in (
        (_events, keep_seconds), (_over, 0.0), (_counts, window_days * DAY_SECONDS), (_log, LOG_DAYS * DAY_SECONDS),
    ):  # fmt: skip
        taken += _walk(store, build, age, dry_run, go_on)
    return taken


def _walk(
    store: Store, build: tuple[Statement, Statement], age: float, dry_run: bool, go_on: Callable[[], bool]
) -> int:
    find, delete = build
    taken = 0
    while go_on():
        if dry_run:
            with store.read() as connection:
                return int(store.value(connection, find, age=age))
        with store.single() as connection:
            count = store.write(connection, delete, age=age)
        taken += count
        if count < PAGE:
            break
    return taken


def _old(sql: Sql, time: str) -> str:
    return f"{time} <= {sql.after('-CAST(:age AS double precision)' if sql.postgresql else '-:age')}"


def _first_by_id(sql: Sql, table: str) -> str:
    """Ids rise with time: an old row stands among the first, or there is none."""
    return f"(SELECT id, created_at FROM {table} ORDER BY id LIMIT {PAGE}) AS first WHERE {_old(sql, 'created_at')}"


def _count_events(sql: Sql) -> str:
    return f"SELECT count(*) FROM {_first_by_id(sql, sql.email_events)}"


def _delete_events(sql: Sql) -> str:
    return f"DELETE FROM {sql.email_events} WHERE id IN (SELECT id FROM {_first_by_id(sql, sql.email_events)})"


def _count_log(sql: Sql) -> str:
    return f"SELECT count(*) FROM {_first_by_id(sql, sql.email_suppression_log)}"


def _delete_log(sql: Sql) -> str:
    table = sql.email_suppression_log
    return f"DELETE FROM {table} WHERE id IN (SELECT id FROM {_first_by_id(sql, table)})"


def _ended(sql: Sql) -> str:
    return f"SELECT id FROM {sql.email_suppressions} WHERE {_old(sql, 'until')} ORDER BY until LIMIT {PAGE}"


def _count_over(sql: Sql) -> str:
    return f"SELECT count(*) FROM ({_ended(sql)}) AS t"


def _delete_over(sql: Sql) -> str:
    return f"DELETE FROM {sql.email_suppressions} WHERE id IN ({_ended(sql)}) AND {_old(sql, 'until')}"


def _past(sql: Sql) -> str:
    """Whole days that are over, and `age` of them ago."""
    seconds = f"({sql.epoch(sql.now)} - {'CAST(:age AS double precision)' if sql.postgresql else ':age'})"
    return f"SELECT digest, day FROM {sql.email_soft_failures} WHERE day < {seconds} / 86400 - 1 LIMIT {PAGE}"


def _count_counts(sql: Sql) -> str:
    return f"SELECT count(*) FROM ({_past(sql)}) AS t"


def _delete_counts(sql: Sql) -> str:
    return f"DELETE FROM {sql.email_soft_failures} WHERE (digest, day) IN ({_past(sql)})"


_events, _over = (_count_events, _delete_events), (_count_over, _delete_over)
_counts, _log = (_count_counts, _delete_counts), (_count_log, _delete_log)
