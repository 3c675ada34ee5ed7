"""Limit keys as apps and operators set them: rows of `effects_limits`, one a key.

A key without a row has no limits. A key may have a parent (one level): both must be open, and the parent's cap and
rate count the jobs of all its children. What an operator did last, who and when, stays in the row.
"""

from __future__ import annotations

import datetime as dt
from enum import Enum
from typing import Any, Final

from sqlalchemy import Connection, Row

from effects.errors import ConfigurationError, LimitNotFound
from effects.limits import FOREVER_SECONDS, Breaker, Rate, Rest, end_rest, rest
from effects.store.records import moment
from effects.store.sql import Sql
from effects.store.store import Store

KEY_CHARS_MAX = 255


class _Keep(Enum):
    KEEP = "keep"


KEEP: Final = _Keep.KEEP  # what `set_limit` leaves as it is


def ensure(
    store: Store,
    connection: Connection,
    key: str,
    *,
    max_in_flight: int | None = None,
    rate: Rate | None = None,
    parent: str | None = None,
    breaker: Breaker | None = None,
) -> None:
    """Limit a key that has no row yet; a row that is there stays as an operator left it. In the given transaction.

    Raises:
        ConfigurationError: a limit that cannot be, or a parent that has a parent itself.
    """
    _check(key, max_in_flight, rate, parent, breaker)
    if parent is not None:
        store.write(connection, _add, limit_key=parent, **_columns(None, None, None, None))
        _check_family(store, connection, key, parent)
    store.write(connection, _add, limit_key=key, **_columns(max_in_flight, rate, parent, breaker))


def set_limit(
    store: Store,
    connection: Connection,
    key: str,
    *,
    actor: str,
    max_in_flight: int | _Keep | None = KEEP,
    rate: Rate | _Keep | None = KEEP,
    parent: str | _Keep | None = KEEP,
    breaker: Breaker | _Keep | None = KEEP,
) -> None:
    """Change what a key may; None takes a limit away, and what is not given stays. Workers see it at their next claim.

    Raises:
        ConfigurationError: a limit that cannot be, or a parent that has a parent itself.
    """
    store.write(connection, _add, limit_key=key, **_columns(None, None, None, None))
    row = _locked(store, connection, key)
    cap = row.max_in_flight if max_in_flight is KEEP else max_in_flight
    pace = rate_of(row) if rate is KEEP else rate
    above = row.parent_key if parent is KEEP else parent
    guard = _breaker_of(row) if breaker is KEEP else breaker
    _check(key, cap, pace, above, guard)
    if above is not None:
        store.write(connection, _add, limit_key=above, **_columns(None, None, None, None))
        _check_family(store, connection, key, above)
    store.write(connection, _set, limit_key=key, actor=actor, **_columns(cap, pace, above, guard))


def pause(
    store: Store,
    connection: Connection,
    key: str,
    *,
    actor: str,
    seconds: float | None = None,
    reason: str | None = None,
) -> dt.datetime:
    """Let nothing more of this key start for `seconds`, or until `resume`. What runs goes on.

    Returns:
        When the pause ends: that of a pause under way, if it is later.
    """
    _check(key, None, None, None, None)
    store.write(connection, _add, limit_key=key, **_columns(None, None, None, None))
    row = _locked(store, connection, key)
    paused = rest(_rest_of(row), FOREVER_SECONDS if seconds is None else seconds)
    _write_rest(store, connection, key, paused, "pause", actor, reason)
    return moment(_locked(store, connection, key).paused_until)


def resume(store: Store, connection: Connection, key: str, *, actor: str) -> bool:
    """End the key's pause and close its breaker; its failures are forgotten.

    Returns:
        Whether it was paused or its breaker open.

    Raises:
        LimitNotFound: nothing is known of this key.
    """
    row = _locked(store, connection, key)
    was_closed = row.breaker_state != "closed" or (row.paused_left or 0.0) > 0
    _write_rest(store, connection, key, end_rest(_rest_of(row)), "resume", actor, None)
    store.write(connection, _close_breaker, limit_key=key)
    return was_closed


def _write_rest(
    store: Store, connection: Connection, key: str, paused: Rest, action: str, actor: str, reason: str | None
) -> None:
    store.write(
        connection, _set_rest, limit_key=key, left=paused.left_seconds, run=paused.run_seconds,
        begins=int(paused.begins_run), reason=reason, action=action, actor=actor,
    )  # fmt: skip


def _locked(store: Store, connection: Connection, key: str) -> Row[Any]:
    row = store.one(connection, _lock, limit_key=key)
    if row is None:
        raise LimitNotFound(f"there are no limits for the key {key!r}")
    return row


def _check(key: str, cap: int | None, rate: Rate | None, parent: str | None, breaker: Breaker | None) -> None:
    for name in (key, parent if parent is not None else key):
        if not name or len(name) > KEY_CHARS_MAX:
            raise ConfigurationError(f"a limit key has 1 to {KEY_CHARS_MAX} characters")
    if cap is not None and cap < 1:
        raise ConfigurationError("most in flight is at least 1; to stop a key, pause it")
    if parent == key:
        raise ConfigurationError(f"the key {key!r} cannot be its own parent")
    if rate is not None:
        rate.check()
    if breaker is not None:
        breaker.check()


def _check_family(store: Store, connection: Connection, key: str, parent: str) -> None:
    """One level: who has a parent is none, and who is one has none."""
    if store.value(connection, _has_parent, limit_key=parent):
        raise ConfigurationError(f"the key {parent!r} has a parent itself; a parent has none")
    if store.value(connection, _is_parent, limit_key=key):
        raise ConfigurationError(f"the key {key!r} is a parent itself; a parent has none")


def _columns(cap: int | None, rate: Rate | None, parent: str | None, breaker: Breaker | None) -> dict[str, Any]:
    return {
        "parent": parent,
        "cap": cap,
        "rate_tokens": rate.tokens if rate else None,
        "period": rate.period_seconds if rate else None,
        "burst": rate.size if rate else None,
        "after": breaker.failures if breaker else None,
        "seconds": breaker.seconds if breaker else None,
    }


def rate_of(row: Row[Any]) -> Rate | None:
    return Rate(row.rate_tokens, row.rate_period_seconds, row.rate_burst) if row.rate_tokens is not None else None


def _breaker_of(row: Row[Any]) -> Breaker | None:
    return Breaker(row.breaker_after, row.breaker_seconds) if row.breaker_after is not None else None


def _rest_of(row: Row[Any]) -> Rest:
    return Rest(row.paused_left, row.paused_seconds)


# -- the statements ----------------------------------------------------------------------------------------


def _add(sql: Sql) -> str:
    return f"""
    INSERT INTO {sql.limits} (limit_key, parent_key, max_in_flight, rate_tokens, rate_period_seconds, rate_burst,
        breaker_after, breaker_seconds, updated_at)
    VALUES (:limit_key, :parent, :cap, :rate_tokens, :period, :burst, :after, :seconds, {sql.now})
    ON CONFLICT DO NOTHING"""


def limit_columns(sql: Sql) -> str:
    """What the store reads of a row whose state it is about to change."""
    return f"""
    limit_key, parent_key, max_in_flight, rate_tokens, rate_period_seconds, rate_burst, tokens,
    COALESCE({sql.seconds("refilled_at")}, 0) AS elapsed, {sql.epoch(sql.now)} AS now_epoch,
    {sql.seconds(sql.now, "paused_until")} AS paused_left, paused_seconds, breaker_after, breaker_seconds,
    breaker_state, breaker_failures, {sql.seconds("breaker_changed_at")} AS breaker_age"""


def _lock(sql: Sql) -> str:
    return f"""
    SELECT {limit_columns(sql)}, {sql.epoch("paused_until")} AS paused_until
    FROM {sql.limits} WHERE limit_key = :limit_key {sql.lock(skip=False)}"""


def _set(sql: Sql) -> str:
    """A bucket of another size begins full."""
    whole = "integer" if sql.postgresql else "INTEGER"
    changed = f"rate_burst IS DISTINCT FROM CAST(:burst AS {whole})"
    gone = f"CAST(:after AS {whole}) IS NULL"
    return f"""
    UPDATE {sql.limits} SET parent_key = :parent, max_in_flight = :cap, rate_tokens = :rate_tokens,
        rate_period_seconds = :period, rate_burst = :burst,
        tokens = CASE WHEN {changed} THEN NULL ELSE tokens END, breaker_after = :after, breaker_seconds = :seconds,
        breaker_state = CASE WHEN {gone} THEN 'closed' ELSE breaker_state END,
        breaker_failures = CASE WHEN {gone} THEN 0 ELSE breaker_failures END,
        last_action = 'set', last_actor = :actor, last_action_at = {sql.now}, updated_at = {sql.now}
    WHERE limit_key = :limit_key"""


def _set_rest(sql: Sql) -> str:
    number, text = ("double precision", "text") if sql.postgresql else ("NUMERIC", "TEXT")
    left = f"CAST(:left AS {number})"
    return f"""
    UPDATE {sql.limits} SET paused_until = CASE WHEN {left} IS NULL THEN NULL ELSE {sql.after(left)} END,
        paused_from = CASE WHEN :begins = 1 THEN {sql.now} ELSE paused_from END,
        paused_seconds = CAST(:run AS {number}), pause_reason = CAST(:reason AS {text}), last_action = :action,
        last_actor = :actor, last_action_at = {sql.now}, updated_at = {sql.now}
    WHERE limit_key = :limit_key"""


def _close_breaker(sql: Sql) -> str:
    return f"""
    UPDATE {sql.limits} SET breaker_state = 'closed', breaker_failures = 0, breaker_changed_at = {sql.now}
    WHERE limit_key = :limit_key"""


def _has_parent(sql: Sql) -> str:
    return f"SELECT parent_key FROM {sql.limits} WHERE limit_key = :limit_key"


def _is_parent(sql: Sql) -> str:
    return f"SELECT 1 FROM {sql.limits} WHERE parent_key = :limit_key LIMIT 1"
