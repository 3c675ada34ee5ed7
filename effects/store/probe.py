"""The loose scans: which keys and groups have jobs that may start, a bounded number of probes a round.

A key costs one probe of an index, however many jobs wait behind it; paused keys, full ones and those without a token
drop out before anything is locked.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
from sqlalchemy import Connection, Row

from effects.store.rooms import Asked
from effects.store.sql import Sql
from effects.store.store import Store, as_json
from effects.store.take import LIMITED, Lane

PROBES_PER_ROUND = 128  # keys looked at in one round; the next round goes on behind the last of them
_ROUNDING = 1e-6  # of a token that came exactly now


class Key(msgspec.Struct, frozen=True):
    """A key that may have room, and one of the priorities of its waiting jobs."""

    asked: Asked
    priority: int


def asked_of(row: Row[Any]) -> Asked:
    return Asked(row.limit_key, row.parent, bool(row.own), bool(row.above))


class Groups(msgspec.Struct, frozen=True):
    """The groups of one round, and those of them that have no row to lock."""

    names: list[str]
    rowless: list[str]


def probe(store: Store, connection: Connection, lane: Lane) -> tuple[list[Key], Groups, float | None]:
    """One round of both scans, and in how many seconds a key will have a token that has none now.

    It moves the lane's cursors, back to the start where a scan came to its end.

    An empty round at the end is not begun anew here: where every key is paused that would never end.
    """
    *found, round_ = store.all(connection, _probe_limits, queue=lane.queue, cursor=lane.limit_cursor)
    keys = [Key(asked_of(row), row.priority) for row in found]
    lane.limit_cursor = round_.last if round_.seen >= PROBES_PER_ROUND else ""
    probed = store.all(connection, _probe_groups, cursor=lane.group_cursor)
    names = [row.group_key for row in probed]
    lane.group_cursor = names[-1] if len(names) >= PROBES_PER_ROUND else ""
    lane.keyed = bool(round_.seen or names)
    return keys, Groups(names, [row.group_key for row in probed if not row.known]), round_.wait


# -- limits -------------------------------------------------------------------------------------------------


def _limits_of(sql: Sql, key: str) -> str:
    """The rows of a key and its parent, for a FROM."""
    return f"""LEFT JOIN {sql.limits} AS l ON l.limit_key = {key}
        LEFT JOIN {sql.limits} AS parent ON parent.limit_key = l.parent_key"""


def _limiting(row: str) -> str:
    limits = f"{row}.max_in_flight IS NOT NULL OR {row}.rate_tokens IS NOT NULL OR {row}.breaker_failures > 0"
    return f"COALESCE({limits}, false)"


_ASKED = f"parent.limit_key AS parent, {_limiting('l')} AS own, {_limiting('parent')} AS above"


def _not_paused(sql: Sql) -> str:
    return f"(l.paused_until > {sql.now}) IS NOT TRUE AND (parent.paused_until > {sql.now}) IS NOT TRUE"


def _full(row: str, count: str) -> str:
    return f"({count} >= CASE WHEN {row}.breaker_state = 'open' THEN 1 ELSE {row}.max_in_flight END) IS TRUE"


def _wait(sql: Sql, row: str) -> str:
    """Seconds until the bucket has a token; 0 where it has one, or where there is no rate."""
    in_it = (
        f"COALESCE({row}.tokens, {row}.rate_burst) + COALESCE({sql.seconds(f'{row}.refilled_at')}, 0) "
        f"* {row}.rate_tokens / {row}.rate_period_seconds"
    )
    missing = f"(1 - ({in_it})) * {row}.rate_period_seconds / {row}.rate_tokens"
    return f"CASE WHEN {row}.rate_tokens IS NULL THEN 0.0 ELSE {sql.greatest('0.0', missing)} END"


def _probe_limits(sql: Sql) -> str:
    """Keys with waiting jobs behind the cursor, each priority of each, without the paused, full and empty ones.

    That is told here without a lock, to spare a round of locks that would find nothing; `Rooms` tells it again.
    """
    waiting = f"FROM {sql.jobs} WHERE queue = :queue AND {LIMITED}"
    return f"""
    WITH RECURSIVE each_running(k, n) AS (
        SELECT limit_key, count(*) FROM {sql.jobs}
        WHERE status = 'running' AND limit_key IS NOT NULL GROUP BY limit_key
    ), running(k, n) AS (
        SELECT k, sum(n) FROM (
            SELECT k, n FROM each_running
            UNION ALL SELECT l.parent_key, n FROM each_running JOIN {sql.limits} AS l ON l.limit_key = k
            WHERE l.parent_key IS NOT NULL) AS named GROUP BY k
    ), keys(k, n) AS (
        SELECT {sql.least("limit_key", f"{waiting} AND limit_key > :cursor")}, 1
        UNION ALL
        SELECT {sql.least("limit_key", f"{waiting} AND limit_key > keys.k")}, n + 1
        FROM keys WHERE k IS NOT NULL AND n < {PROBES_PER_ROUND}
    ), unpaused(k, parent, own, above, wait) AS (
        SELECT keys.k, {_ASKED}, {sql.greatest(_wait(sql, "l"), _wait(sql, "parent"))} FROM keys
        {_limits_of(sql, "keys.k")}
        LEFT JOIN running AS mine ON mine.k = keys.k
        LEFT JOIN running AS theirs ON theirs.k = parent.limit_key
        WHERE keys.k IS NOT NULL AND {_not_paused(sql)}
        AND NOT {_full("l", "mine.n")} AND NOT {_full("parent", "theirs.n")}
    ), pairs(k, p) AS (
        SELECT k, {sql.least("priority", f"{waiting} AND limit_key = unpaused.k")} FROM unpaused
        WHERE wait < {_ROUNDING}
        UNION ALL
        SELECT k, {sql.least("priority", f"{waiting} AND limit_key = pairs.k AND priority > pairs.p")}
        FROM pairs WHERE p IS NOT NULL
    )
    SELECT pairs.k AS limit_key, p AS priority, parent, own, above, NULL AS last, 0 AS seen, 0.0 AS wait
    FROM pairs JOIN unpaused ON unpaused.k = pairs.k WHERE p IS NOT NULL
    UNION ALL
    SELECT NULL, NULL, NULL, NULL, NULL, max(k), count(k), (SELECT min(wait) FROM unpaused WHERE wait >= {_ROUNDING})
    FROM keys"""


# -- groups --------------------------------------------------------------------------------------------------


def _probe_groups(sql: Sql) -> str:
    """Groups with live jobs behind the cursor. A plain INSERT may name a group that has no row yet."""
    return f"""
    WITH RECURSIVE groups(g, n) AS (
        SELECT {sql.least("group_key", f"FROM {sql.jobs} WHERE group_key > :cursor")}, 1
        UNION ALL
        SELECT {sql.least("group_key", f"FROM {sql.jobs} WHERE group_key > groups.g")}, n + 1
        FROM groups WHERE g IS NOT NULL AND n < {PROBES_PER_ROUND}
    )
    SELECT g AS group_key, EXISTS (SELECT 1 FROM {sql.job_groups} WHERE group_key = g) AS known
    FROM groups WHERE g IS NOT NULL"""


def _add_groups(sql: Sql) -> str:
    return f"""
    INSERT INTO {sql.job_groups} (group_key)
    SELECT r.group_key FROM {sql.rows("rows", {"group_key": "text"})} AS r WHERE true ON CONFLICT DO NOTHING"""


def _lock_open_groups(sql: Sql) -> str:
    return f"""
    SELECT group_key FROM {sql.job_groups}
    WHERE group_key {sql.any_of("groups")} AND NOT blocked ORDER BY group_key {sql.lock()}"""


def _group_heads(sql: Sql) -> str:
    """The first live job of each group, where it waits, is due, is of this lane and its limit is not paused."""
    return f"""
    SELECT j.id, j.limit_key, {_ASKED} FROM {sql.job_groups} AS g
    JOIN {sql.jobs} AS j ON j.id = (SELECT min(id) FROM {sql.jobs} WHERE group_key = g.group_key)
    {_limits_of(sql, "j.limit_key")}
    WHERE g.group_key {sql.any_of("groups")} AND j.status <> 'running' AND j.run_at <= {sql.now}
    AND j.queue = :queue AND {_not_paused(sql)}"""


def first_of_groups(store: Store, connection: Connection, lane: Lane, groups: Groups) -> Sequence[Row[Any]]:
    if not groups.names:
        return []
    if groups.rowless:
        missing = [{"group_key": group} for group in sorted(groups.rowless)]
        store.write(connection, _add_groups, rows=as_json(missing))
    locked = [row.group_key for row in store.all(connection, _lock_open_groups, groups=as_json(groups.names))]
    if not locked:
        return []
    return store.all(connection, _group_heads, groups=as_json(locked), queue=lane.queue)
