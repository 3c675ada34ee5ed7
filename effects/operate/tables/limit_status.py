"""Limit keys for display: settings and current state."""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence
from typing import Any

import msgspec
from sqlalchemy import Connection, Row

from effects.errors import LimitNotFound
from effects.kit.moments import moment
from effects.model.limits import refilled
from effects.store.db.records import record
from effects.store.db.sql import Sql
from effects.store.db.store import Store
from effects.store.limits.key_limits import KeyLimits, limit_columns, limits_of, nearest_key


class Limit(msgspec.Struct, frozen=True, kw_only=True):
    """A key, its limits and its state. `breaker_state` is closed, open or half_open; None: closed, and no breaker."""

    limit_key: str
    limits: KeyLimits
    tokens: float | None
    paused_until: dt.datetime | None
    pause_reason: str | None
    breaker_state: str | None
    failures_in_a_row: int
    running: int
    waiting: int


def show(store: Store, connection: Connection, key: str) -> Limit:
    """One key.

    Raises:
        LimitNotFound: unknown key.
    """
    limit = find(store, connection, key)
    if limit is None:
        raise LimitNotFound(f"there are no limits for the key {key!r}{nearest_key(store, connection, key)}")
    return limit


def find(store: Store, connection: Connection, key: str) -> Limit | None:
    """One key; None where it has no row. Counts its live jobs and those of its children."""
    row = store.row(connection, _show, limit_key=key)
    return None if row is None else _limit(row)


def list_limits(store: Store, connection: Connection, *, paused: bool = False, limit: int = 1000) -> Sequence[Limit]:
    """List all keys that have a row, or those that are paused, by name."""
    return [_limit(row) for row in store.all(connection, _list_paused if paused else _list, limit=limit)]


def _limit(row: Row[Any]) -> Limit:
    limits, left = limits_of(row), row.paused_left
    resting = left is not None and left > 0
    state = "closed" if row.breaker_state == "closed" else "open" if resting else "half_open"
    return record(
        Limit,
        row,
        limits=limits,
        tokens=round(refilled(row.tokens, row.elapsed, limits.rate), 3) if limits.rate is not None else None,
        paused_until=moment(row.paused_until) if resting else None,
        pause_reason=row.pause_reason if resting else None,
        breaker_state=state if limits.breaker is not None or state != "closed" else None,
        failures_in_a_row=row.breaker_failures,
    )


# -- the statements ----------------------------------------------------------------------------------------


def _described(sql: Sql, condition: str, counted: str = "limit_key IS NOT NULL") -> str:
    """Live jobs are counted by one grouping, whatever the number of keys. A key's jobs are its parent's too."""
    return f"""
    WITH own AS (
        SELECT limit_key, count(*) AS jobs, sum(CASE WHEN status = 'running' THEN 1 ELSE 0 END) AS running
        FROM {sql.jobs} WHERE {counted} GROUP BY limit_key
    ), counted AS (
        SELECT counted_key, sum(running) AS running, sum(jobs - running) AS waiting FROM (
            SELECT limit_key AS counted_key, jobs, running FROM own
            UNION ALL
            SELECT child.parent_key, own.jobs, own.running FROM own
            JOIN {sql.limits} AS child ON child.limit_key = own.limit_key WHERE child.parent_key IS NOT NULL
        ) AS with_parents GROUP BY counted_key
    )
    SELECT {limit_columns(sql)}, {sql.epoch("paused_until")} AS paused_until, pause_reason,
        CAST(COALESCE(counted.running, 0) AS bigint) AS running,
        CAST(COALESCE(counted.waiting, 0) AS bigint) AS waiting
    FROM {sql.limits} AS l LEFT JOIN counted ON counted.counted_key = l.limit_key WHERE {condition}"""


def _show(sql: Sql) -> str:
    children = f"SELECT limit_key FROM {sql.limits} WHERE parent_key = :limit_key"
    return _described(sql, "l.limit_key = :limit_key", f"limit_key = :limit_key OR limit_key IN ({children})")


def _list(sql: Sql) -> str:
    return f"{_described(sql, 'true')} ORDER BY l.limit_key LIMIT :limit"


def _list_paused(sql: Sql) -> str:
    return f"{_described(sql, f'l.paused_until > {sql.now}')} ORDER BY l.limit_key LIMIT :limit"
