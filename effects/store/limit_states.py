"""Limit keys as people read them: what each may, and how it stands at this moment."""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence
from typing import Any

import msgspec
from sqlalchemy import Connection, Row

from effects.errors import LimitNotFound
from effects.limits import refilled
from effects.store.limits import limit_columns, rate_of
from effects.store.records import moment
from effects.store.sql import Sql
from effects.store.store import Store

LIST_MAX = 1000


class Limit(msgspec.Struct, frozen=True, kw_only=True):
    """A key, what it may, and how it stands. `breaker_state` is closed, open or half_open; None without a breaker."""

    limit_key: str
    parent: str | None
    max_in_flight: int | None
    rate_tokens: int | None
    rate_period_seconds: float | None
    rate_burst: int | None
    tokens: float | None
    paused_until: dt.datetime | None
    pause_reason: str | None
    breaker_failures: int | None
    breaker_seconds: float | None
    breaker_state: str | None
    failures_in_a_row: int
    running: int
    waiting: int
    last_action: str | None
    last_actor: str | None
    last_action_at: dt.datetime | None


def show(store: Store, connection: Connection, key: str) -> Limit:
    """One key.

    Raises:
        LimitNotFound: nothing is known of this key.
    """
    row = store.one(connection, _show, limit_key=key)
    if row is None:
        raise LimitNotFound(f"there are no limits for the key {key!r}")
    return _limit(row)


def list_limits(store: Store, connection: Connection, *, paused: bool = False) -> Sequence[Limit]:
    """All keys that have a row, or those that are paused, by name; at most 1,000."""
    return [_limit(row) for row in store.all(connection, _list_paused if paused else _list)]


def _limit(row: Row[Any]) -> Limit:
    rate, left = rate_of(row), row.paused_left
    resting = left is not None and left > 0
    state = "closed" if row.breaker_state == "closed" else "open" if resting else "half_open"
    return Limit(
        limit_key=row.limit_key,
        parent=row.parent_key,
        max_in_flight=row.max_in_flight,
        rate_tokens=row.rate_tokens,
        rate_period_seconds=row.rate_period_seconds,
        rate_burst=row.rate_burst,
        tokens=round(refilled(row.tokens, row.elapsed, rate), 3) if rate is not None else None,
        paused_until=moment(row.paused_until) if resting else None,
        pause_reason=row.pause_reason if resting else None,
        breaker_failures=row.breaker_after,
        breaker_seconds=row.breaker_seconds,
        breaker_state=state if row.breaker_after is not None else None,
        failures_in_a_row=row.breaker_failures,
        running=row.running,
        waiting=row.waiting,
        last_action=row.last_action,
        last_actor=row.last_actor,
        last_action_at=moment(row.last_action_at) if row.last_action_at is not None else None,
    )


# -- the statements ----------------------------------------------------------------------------------------


def _described(sql: Sql) -> str:
    of_key = "j.limit_key = l.limit_key OR j.limit_key IN (SELECT limit_key FROM children)"
    children = f"WITH children AS (SELECT limit_key FROM {sql.limits} WHERE parent_key = l.limit_key)"
    return f"""
    SELECT {limit_columns(sql)}, {sql.epoch("paused_until")} AS paused_until, pause_reason, last_action, last_actor,
        {sql.epoch("last_action_at")} AS last_action_at,
        ({children} SELECT count(*) FROM {sql.jobs} AS j WHERE j.status = 'running' AND ({of_key})) AS running,
        ({children} SELECT count(*) FROM {sql.jobs} AS j WHERE j.status <> 'running' AND ({of_key})) AS waiting
    FROM {sql.limits} AS l"""


def _show(sql: Sql) -> str:
    return f"{_described(sql)} WHERE l.limit_key = :limit_key"


def _list(sql: Sql) -> str:
    return f"{_described(sql)} ORDER BY l.limit_key LIMIT {LIST_MAX}"


def _list_paused(sql: Sql) -> str:
    return f"{_described(sql)} WHERE l.paused_until > {sql.now} ORDER BY l.limit_key LIMIT {LIST_MAX}"
