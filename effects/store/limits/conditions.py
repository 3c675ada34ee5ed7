"""When a limit key lets no job start, as conditions of statements that look at many keys without a lock.

`Capacity` decides under the lock. These spare it keys that it would find closed, and count what waits behind them.
"""

from __future__ import annotations

from effects.store.db.sql import Sql

ROUNDING = 1e-6  # seconds until a token that came exactly now


def limits_of(sql: Sql, key: str) -> str:
    """The rows of a key and its parent, as `l` and `parent`, for a FROM."""
    return f"""LEFT JOIN {sql.limits} AS l ON l.limit_key = {key}
        LEFT JOIN {sql.limits} AS parent ON parent.limit_key = l.parent_key"""


def with_parents(sql: Sql, counted: str) -> str:
    """A SELECT of (k, n): the jobs of each key in the relation `counted(k, n)`, those of its children included."""
    return f"""
        SELECT k, sum(n) FROM (
            SELECT k, n FROM {counted}
            UNION ALL SELECT l.parent_key, n FROM {counted} JOIN {sql.limits} AS l ON l.limit_key = k
            WHERE l.parent_key IS NOT NULL) AS named GROUP BY k"""


def not_paused(sql: Sql) -> str:
    """Condition: neither the key nor its parent is paused."""
    return f"(l.paused_until > {sql.now}) IS NOT TRUE AND (parent.paused_until > {sql.now}) IS NOT TRUE"


def is_full(row: str, running: str) -> str:
    """Condition: so many jobs of the key run as may. Behind an open breaker it is one, as a trial."""
    return f"({running} >= CASE WHEN {row}.breaker_state = 'open' THEN 1 ELSE {row}.max_in_flight END) IS TRUE"


def token_wait(sql: Sql) -> str:
    """Seconds until the buckets of the key and its parent have a token; 0 where they do, or where there is no rate."""
    return sql.greatest(_token_wait(sql, "l"), _token_wait(sql, "parent"))


def _token_wait(sql: Sql, row: str) -> str:
    in_it = (
        f"COALESCE({row}.tokens, {row}.rate_burst) + COALESCE({sql.seconds(f'{row}.refilled_at')}, 0) "
        f"* {row}.rate_tokens / {row}.rate_period_seconds"
    )
    missing = f"(1 - ({in_it})) * {row}.rate_period_seconds / {row}.rate_tokens"
    return f"CASE WHEN {row}.rate_tokens IS NULL THEN 0.0 ELSE {sql.greatest('0.0', missing)} END"
