"""Claiming: from waiting rows to leased ones, in batches, without reading what cannot run.

Three kinds of waiting jobs, each with an index of its own:

- plain: the due ones of each priority, straight off the index;
- limited (`limit_key`): a loose index scan finds the keys, one probe a key however many jobs wait behind it;
  paused keys and full ones drop out; the heads of the rest compete;
- grouped (`group_key`): the same loose scan over the groups; the group's row is locked, skipping locked ones,
  and then its first live job is read with a fresh snapshot. It runs alone or not at all.

Priorities are scanned loosely too, so that jobs scheduled for later are never read through.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
from sqlalchemy import Connection, Row

from effects.crashpoints import point
from effects.job import Job
from effects.store.rooms import Asked, Rooms
from effects.store.sql import Sql
from effects.store.store import Store, as_json
from effects.store.take import (
    LIMITED,
    PLAIN,
    SIZES,
    Head,
    Lane,
    Open,
    keys_in_use,
    loose_priorities,
    take_any,
    take_plain,
)

_ROUNDING = 1e-6  # of a token that came exactly now
PROBES_PER_ROUND = 128  # keys looked at in one round; the next round goes on behind the last of them
CLAIM_MAX = SIZES[-1]

__all__ = ["CLAIM_MAX", "PROBES_PER_ROUND", "Claimed", "Lane", "claim"]


class Claimed(msgspec.Struct, frozen=True):
    """The jobs of one claim. `more` says that keys remain to be looked at in the next round.

    `wait_seconds`: until a key that has jobs may have a token for them; None where none waits for that.
    """

    jobs: list[Job]
    more: bool
    wait_seconds: float | None = None


def claim(store: Store, lane: Lane, worker: str, want: int) -> Claimed:
    """Lease up to `want` due jobs of the lane to `worker`; one transaction.

    Sets `running`, `attempts + 1`, `lease_token + 1`, the worker and the attempt's hard deadline. A crash
    before the commit leaves nothing; one after it leaves leases that rescue takes back.

    Raises:
        StoreUnavailable: the database is away.
    """
    limit = max(size for size in SIZES if size <= max(1, want))
    claimed = Claimed([], more=False)
    if not lane.keyed:
        claimed = _claim_plain(store, lane, worker, limit)
    if lane.keyed:
        claimed = _claim_any(store, lane, worker, limit)
    point("claim.committed")
    return claimed


def _claim_plain(store: Store, lane: Lane, worker: str, limit: int) -> Claimed:
    """One statement where no job has a key, which is the common case; nothing where any has one."""
    jobs: list[Job] = []
    if store.is_postgresql or _plain_due(store, lane):
        with store.single() as connection:
            jobs = take_plain(store, connection, lane, worker, limit)
            point("claim.before_commit")
    if not jobs:
        with store.read() as connection:
            lane.keyed = bool(store.value(connection, _keys_in_use, queue=lane.queue))
    return Claimed(jobs, more=False)


def _plain_due(store: Store, lane: Lane) -> bool:
    """SQLite: look before taking the write lock, for which every other process would wait."""
    with store.read() as connection:
        return bool(store.value(connection, _any_plain_due, queue=lane.queue))


def _any_plain_due(sql: Sql) -> str:
    soonest = sql.least("run_at", f"FROM {sql.jobs} WHERE queue = :queue AND {PLAIN} AND priority = p")
    return f"""
    WITH RECURSIVE {loose_priorities(sql, "true")}
    SELECT EXISTS (SELECT 1 FROM priorities WHERE p IS NOT NULL AND {soonest} <= {sql.now})"""


def _keys_in_use(sql: Sql) -> str:
    return f"SELECT {keys_in_use(sql)}"


def _claim_any(store: Store, lane: Lane, worker: str, limit: int) -> Claimed:
    with store.read() as connection:
        keys, groups, wait = _probe(store, connection, lane)
    more = bool(lane.limit_cursor or lane.group_cursor)
    jobs: list[Job] = []
    if not keys and not groups.names:
        if store.is_postgresql or _plain_due(store, lane):
            with store.single() as connection:
                jobs = take_any(store, connection, lane, worker, limit, [], [])
                point("claim.before_commit")
    else:
        rooms = Rooms(limit, lane.threads)
        with store.begin() as connection:
            first = _first_of_groups(store, connection, lane, groups)
            rooms.lock(store, connection, [*(key.asked for key in keys), *(asked_of(row) for row in first)])
            opened = [one for key in keys if (one := _open(rooms, key)).room > 0 and one.family_room > 0]
            heads = [_head(rooms, row, limit) for row in first]
            jobs = take_any(store, connection, lane, worker, limit, opened, [head for head in heads if head.room > 0])
            rooms.spend(store, connection, jobs)
            point("claim.before_commit")
        wait = min((one for one in (wait, rooms.wait_seconds) if one is not None), default=None)
    return Claimed(jobs, more, wait)


def _open(rooms: Rooms, key: _Key) -> Open:
    asked = key.asked
    return Open(asked.limit_key, key.priority, rooms.room(asked), asked.family, rooms.family_room(asked))


def _head(rooms: Rooms, row: Row[Any], limit: int) -> Head:
    if row.limit_key is None:
        return Head(row.id, limit, None, limit)
    asked = asked_of(row)
    return Head(row.id, rooms.room(asked), asked.family, rooms.family_room(asked))


# -- the loose scans -----------------------------------------------------------------------------------------


def _limits_of(sql: Sql, key: str) -> str:
    """The rows of a key and its parent, for a FROM."""
    return f"""LEFT JOIN {sql.limits} AS l ON l.limit_key = {key}
        LEFT JOIN {sql.limits} AS parent ON parent.limit_key = l.parent_key"""


def _limiting(row: str) -> str:
    limits = f"{row}.max_in_flight IS NOT NULL OR {row}.rate_tokens IS NOT NULL OR {row}.breaker_state = 'open'"
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


class _Key(msgspec.Struct, frozen=True):
    """A key that may have room, and one of the priorities of its waiting jobs."""

    asked: Asked
    priority: int


def asked_of(row: Row[Any]) -> Asked:
    return Asked(row.limit_key, row.parent, bool(row.own), bool(row.above))


class _Groups(msgspec.Struct, frozen=True):
    """The groups of one round, and those of them that have no row to lock."""

    names: list[str]
    rowless: list[str]


def _probe(store: Store, connection: Connection, lane: Lane) -> tuple[list[_Key], _Groups, float | None]:
    """One round of both scans, and in how many seconds a key will have a token that has none now.

    It moves the lane's cursors, back to the start where a scan came to its end.

    An empty round at the end is not begun anew here: where every key is paused that would never end.
    """
    *found, round_ = store.all(connection, _probe_limits, queue=lane.queue, cursor=lane.limit_cursor)
    keys = [_Key(asked_of(row), row.priority) for row in found]
    lane.limit_cursor = round_.last if round_.seen >= PROBES_PER_ROUND else ""
    probed = store.all(connection, _probe_groups, cursor=lane.group_cursor)
    names = [row.group_key for row in probed]
    lane.group_cursor = names[-1] if len(names) >= PROBES_PER_ROUND else ""
    lane.keyed = bool(round_.seen or names)
    return keys, _Groups(names, [row.group_key for row in probed if not row.known]), round_.wait


# -- groups --------------------------------------------------------------------------------------------------


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


def _first_of_groups(store: Store, connection: Connection, lane: Lane, groups: _Groups) -> Sequence[Row[Any]]:
    if not groups.names:
        return []
    if groups.rowless:
        missing = [{"group_key": group} for group in sorted(groups.rowless)]
        store.write(connection, _add_groups, rows=as_json(missing))
    locked = [row.group_key for row in store.all(connection, _lock_open_groups, groups=as_json(groups.names))]
    if not locked:
        return []
    return store.all(connection, _group_heads, groups=as_json(locked), queue=lane.queue)
