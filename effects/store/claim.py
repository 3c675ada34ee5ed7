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

import msgspec
from sqlalchemy import Connection

from effects.crashpoints import point
from effects.job import Job
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

PROBES_PER_ROUND = 128  # keys looked at in one round; the next round goes on behind the last of them
CLAIM_MAX = SIZES[-1]

__all__ = ["CLAIM_MAX", "PROBES_PER_ROUND", "Claimed", "Lane", "claim"]


class Claimed(msgspec.Struct, frozen=True):
    """The jobs of one claim. `more` says that keys remain to be looked at in the next round."""

    jobs: list[Job]
    more: bool


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
        keys, groups = _probe(store, connection, lane)
    more = bool(lane.limit_cursor or lane.group_cursor)
    jobs: list[Job] = []
    if not keys and not groups.names:
        if store.is_postgresql or _plain_due(store, lane):
            with store.single() as connection:
                jobs = take_any(store, connection, lane, worker, limit, [], [])
                point("claim.before_commit")
    else:
        with store.begin() as connection:
            opened = _rooms(store, connection, keys, limit)
            heads = _heads(store, connection, lane, groups)
            jobs = take_any(store, connection, lane, worker, limit, opened, heads)
            point("claim.before_commit")
    return Claimed(jobs, more)


# -- the loose scans -----------------------------------------------------------------------------------------


def _probe_limits(sql: Sql) -> str:
    """Keys with waiting jobs behind the cursor, each priority of each, without the paused and the full ones.

    Full is told here without a lock, to spare a round of locks that would find nothing; `_rooms` tells it again.
    """
    waiting = f"FROM {sql.jobs} WHERE queue = :queue AND {LIMITED}"
    return f"""
    WITH RECURSIVE running(k, n) AS (
        SELECT limit_key, count(*) FROM {sql.jobs}
        WHERE status = 'running' AND limit_key IS NOT NULL GROUP BY limit_key
    ), keys(k, n) AS (
        SELECT {sql.least("limit_key", f"{waiting} AND limit_key > :cursor")}, 1
        UNION ALL
        SELECT {sql.least("limit_key", f"{waiting} AND limit_key > keys.k")}, n + 1
        FROM keys WHERE k IS NOT NULL AND n < {PROBES_PER_ROUND}
    ), pairs(k, p) AS (
        SELECT keys.k, {sql.least("priority", f"{waiting} AND limit_key = keys.k")} FROM keys
        LEFT JOIN {sql.limits} AS l ON l.limit_key = keys.k
        LEFT JOIN {sql.limits} AS parent ON parent.limit_key = l.parent_key
        LEFT JOIN running ON running.k = keys.k
        WHERE keys.k IS NOT NULL AND (running.n >= l.max_in_flight) IS NOT TRUE
        AND (l.paused_until > {sql.now}) IS NOT TRUE AND (parent.paused_until > {sql.now}) IS NOT TRUE
        UNION ALL
        SELECT k, {sql.least("priority", f"{waiting} AND limit_key = pairs.k AND priority > pairs.p")}
        FROM pairs WHERE p IS NOT NULL
    )
    SELECT k AS limit_key, p AS priority, NULL AS last, 0 AS seen FROM pairs WHERE p IS NOT NULL
    UNION ALL SELECT NULL, NULL, max(k), count(k) FROM keys"""


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


class _Groups(msgspec.Struct, frozen=True):
    """The groups of one round, and those of them that have no row to lock."""

    names: list[str]
    rowless: list[str]


def _probe(store: Store, connection: Connection, lane: Lane) -> tuple[list[tuple[str, int]], _Groups]:
    """One round of both scans; moves the lane's cursors, back to the start where a scan came to its end.

    An empty round at the end is not begun anew here: where every key is paused that would never end.
    """
    *found, round_ = store.all(connection, _probe_limits, queue=lane.queue, cursor=lane.limit_cursor)
    keys = [(row.limit_key, row.priority) for row in found]
    lane.limit_cursor = round_.last if round_.seen >= PROBES_PER_ROUND else ""
    probed = store.all(connection, _probe_groups, cursor=lane.group_cursor)
    names = [row.group_key for row in probed]
    lane.group_cursor = names[-1] if len(names) >= PROBES_PER_ROUND else ""
    lane.keyed = bool(round_.seen or names)
    return keys, _Groups(names, [row.group_key for row in probed if not row.known])


# -- limits --------------------------------------------------------------------------------------------------


def _lock_limits(sql: Sql) -> str:
    return f"""
    SELECT limit_key, max_in_flight FROM {sql.limits}
    WHERE limit_key {sql.any_of("keys")} AND max_in_flight IS NOT NULL ORDER BY limit_key {sql.lock()}"""


def _capped(sql: Sql) -> str:
    return f"""
    SELECT limit_key FROM {sql.limits} WHERE limit_key {sql.any_of("keys")} AND max_in_flight IS NOT NULL"""


def _in_flight(sql: Sql) -> str:
    return f"""
    SELECT limit_key, count(*) AS running FROM {sql.jobs}
    WHERE status = 'running' AND limit_key {sql.any_of("keys")} GROUP BY limit_key"""


def _rooms(store: Store, connection: Connection, keys: Sequence[tuple[str, int]], want: int) -> list[Open]:
    """How many of each key may start. In flight is counted, not stored: no counter can drift.

    The count is exact because the key's row is locked while it is taken and used; a key that another worker
    is claiming from at this moment is skipped for the round.
    """
    names = as_json(sorted({key for key, _ in keys}))
    if not keys:
        return []
    capped = {row.limit_key for row in store.all(connection, _capped, keys=names)}
    room = {key: want for key, _ in keys if key not in capped}
    if capped:
        locked = store.all(connection, _lock_limits, keys=names)
        running = {row.limit_key: row.running for row in store.all(connection, _in_flight, keys=names)}
        room.update({row.limit_key: row.max_in_flight - running.get(row.limit_key, 0) for row in locked})
    return [Open(key, priority, room[key]) for key, priority in keys if room.get(key, 0) > 0]


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
    """The first live job of each group, where it waits, is due, is of this lane and its limit is open."""
    return f"""
    SELECT j.id, j.limit_key, l.max_in_flight FROM {sql.job_groups} AS g
    JOIN {sql.jobs} AS j ON j.id = (SELECT min(id) FROM {sql.jobs} WHERE group_key = g.group_key)
    LEFT JOIN {sql.limits} AS l ON l.limit_key = j.limit_key
    LEFT JOIN {sql.limits} AS parent ON parent.limit_key = l.parent_key
    WHERE g.group_key {sql.any_of("groups")} AND j.status <> 'running' AND j.run_at <= {sql.now}
    AND j.queue = :queue AND (l.paused_until > {sql.now}) IS NOT TRUE
    AND (parent.paused_until > {sql.now}) IS NOT TRUE"""


def _heads(store: Store, connection: Connection, lane: Lane, groups: _Groups) -> list[Head]:
    if not groups.names:
        return []
    if groups.rowless:
        missing = [{"group_key": group} for group in sorted(groups.rowless)]
        store.write(connection, _add_groups, rows=as_json(missing))
    locked = [row.group_key for row in store.all(connection, _lock_open_groups, groups=as_json(groups.names))]
    if not locked:
        return []
    found = store.all(connection, _group_heads, groups=as_json(locked), queue=lane.queue)
    limited = [(row.limit_key, 0) for row in found if row.max_in_flight is not None]
    room = {opened.limit_key: opened.room for opened in _rooms(store, connection, limited, CLAIM_MAX)}
    heads = [Head(row.id, room.get(row.limit_key, 0) if row.max_in_flight else CLAIM_MAX) for row in found]
    return [head for head in heads if head.room > 0]
