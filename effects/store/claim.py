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

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

import msgspec
from sqlalchemy import Connection, Row

from effects.crashpoints import point
from effects.job import Job
from effects.store.sql import Sql
from effects.store.store import Statement, Store, as_json

PROBES_PER_ROUND = 128  # keys looked at in one round; the next round goes on behind the last of them
_SIZES = (1, 4, 16, 64, 128, 256, 512)  # a LIMIT is a literal: a bound one may get a generic plan that scans
CLAIM_MAX = _SIZES[-1]


class Lane(msgspec.Struct):
    """What a claim asks for, and where its loose scans go on."""

    queue: str
    lease_seconds: Mapping[str, float]  # job type → seconds until `locked_until`; also the types that we know
    limit_cursor: str = ""
    group_cursor: str = ""


class Claimed(msgspec.Struct, frozen=True):
    """The jobs of one claim. `more` says that keys remain to be looked at in the next round."""

    jobs: list[Job]
    more: bool


class _Open(msgspec.Struct, frozen=True):
    """A key with waiting jobs of one priority, and how many more of it may be in flight."""

    limit_key: str
    priority: int
    room: int


class _Head(msgspec.Struct, frozen=True):
    """The first live job of a group, and the room under its limit."""

    id: int
    room: int


def claim(store: Store, lane: Lane, worker: str, want: int) -> Claimed:
    """Lease up to `want` due jobs of the lane to `worker`; one transaction.

    Sets `running`, `attempts + 1`, `lease_token + 1`, the worker and the attempt's hard deadline. A crash
    before the commit leaves nothing; one after it leaves leases that rescue takes back.

    Raises:
        StoreUnavailable: the database is away.
    """
    want = max(1, min(want, CLAIM_MAX))
    with store.read() as connection:
        keys, groups = _probe(store, connection, lane)
    more = bool(lane.limit_cursor or lane.group_cursor)
    if not keys and not groups.names:
        with store.single() as connection:
            jobs = _take(store, connection, lane, worker, want, [], [])
            point("claim.before_commit")
    else:
        with store.begin() as connection:
            opened = _rooms(store, connection, keys, want)
            heads = _heads(store, connection, lane, groups)
            jobs = _take(store, connection, lane, worker, want, opened, heads)
            point("claim.before_commit")
    point("claim.committed")
    return Claimed(jobs=jobs, more=more)


# -- the loose scans -----------------------------------------------------------------------------------------

_LIMITED = "status <> 'running' AND limit_key IS NOT NULL AND group_key IS NULL"


def _probe_limits(sql: Sql) -> str:
    """Keys with waiting jobs behind the cursor, each priority of each, without the paused ones."""
    waiting = f"FROM {sql.jobs} WHERE queue = :queue AND {_LIMITED}"
    paused = f"l.paused_until > {sql.now}"
    return f"""
    WITH RECURSIVE keys(k, n) AS (
        SELECT (SELECT min(limit_key) {waiting} AND limit_key > :cursor), 1
        UNION ALL
        SELECT (SELECT min(limit_key) {waiting} AND limit_key > keys.k), n + 1
        FROM keys WHERE k IS NOT NULL AND n < {PROBES_PER_ROUND}
    ), pairs(k, p) AS (
        SELECT k, (SELECT min(priority) {waiting} AND limit_key = k) FROM keys
        LEFT JOIN {sql.limits} AS l ON l.limit_key = keys.k
        LEFT JOIN {sql.limits} AS parent ON parent.limit_key = l.parent_key
        WHERE k IS NOT NULL AND ({paused}) IS NOT TRUE AND ({paused.replace("l.", "parent.")}) IS NOT TRUE
        UNION ALL
        SELECT k, (SELECT min(priority) {waiting} AND limit_key = pairs.k AND priority > pairs.p)
        FROM pairs WHERE p IS NOT NULL
    )
    SELECT k AS limit_key, p AS priority FROM pairs WHERE p IS NOT NULL
    UNION ALL SELECT max(k), -32768 FROM keys WHERE n = {PROBES_PER_ROUND}"""


def _probe_groups(sql: Sql) -> str:
    """Groups with live jobs behind the cursor. A plain INSERT may name a group that has no row yet."""
    return f"""
    WITH RECURSIVE groups(g, n) AS (
        SELECT (SELECT min(group_key) FROM {sql.jobs} WHERE group_key > :cursor), 1
        UNION ALL
        SELECT (SELECT min(group_key) FROM {sql.jobs} WHERE group_key > groups.g), n + 1
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
    found = store.all(connection, _probe_limits, queue=lane.queue, cursor=lane.limit_cursor)
    last = [row.limit_key for row in found if row.priority == -32768 and row.limit_key is not None]
    keys = [(row.limit_key, row.priority) for row in found if row.priority != -32768]
    lane.limit_cursor = last[0] if last else ""
    probed = store.all(connection, _probe_groups, cursor=lane.group_cursor)
    names = [row.group_key for row in probed]
    lane.group_cursor = names[-1] if len(names) >= PROBES_PER_ROUND else ""
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


def _rooms(store: Store, connection: Connection, keys: Sequence[tuple[str, int]], want: int) -> list[_Open]:
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
    return [_Open(key, priority, room[key]) for key, priority in keys if room.get(key, 0) > 0]


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


def _heads(store: Store, connection: Connection, lane: Lane, groups: _Groups) -> list[_Head]:
    if not groups.names:
        return []
    if groups.rowless:
        missing = [{"group_key": group} for group in sorted(groups.rowless)]
        store.write(connection, _add_groups, rows=as_json(missing))
    locked = [
        row.group_key for row in store.all(connection, _lock_open_groups, groups=as_json(groups.names))
    ]
    if not locked:
        return []
    found = store.all(connection, _group_heads, groups=as_json(locked), queue=lane.queue)
    limited = [(row.limit_key, 0) for row in found if row.max_in_flight is not None]
    room = {opened.limit_key: opened.room for opened in _rooms(store, connection, limited, CLAIM_MAX)}
    heads = [_Head(row.id, room.get(row.limit_key, 0) if row.max_in_flight else CLAIM_MAX) for row in found]
    return [head for head in heads if head.room > 0]


# -- taking --------------------------------------------------------------------------------------------------

_PLAIN = "status <> 'running' AND limit_key IS NULL AND group_key IS NULL"
_OPEN = {"limit_key": "text", "priority": "int", "room": "int"}
_HEAD = {"id": "int", "room": "int"}


@cache
def _take_sql(limit: int, per_key: int) -> Statement:
    """The claim with literal LIMITs, one function for each pair of sizes, so that each is a statement of its own."""

    def build(sql: Sql) -> str:
        candidates = _candidates_postgresql if sql.postgresql else _candidates_sqlite
        return f"""
        WITH RECURSIVE priorities(p) AS (
            SELECT min(priority) FROM {sql.jobs} WHERE queue = :queue AND {_PLAIN}
            UNION ALL
            SELECT (SELECT min(priority) FROM {sql.jobs} WHERE queue = :queue AND {_PLAIN} AND priority > priorities.p)
            FROM priorities WHERE p IS NOT NULL
        ), candidates AS ({candidates(sql, limit, per_key)}
        ), picked AS (
            SELECT id FROM (
                SELECT id, priority, run_at, room,
                       row_number() OVER (PARTITION BY limit_key ORDER BY priority, run_at, id) AS place
                FROM candidates) AS ranked
            WHERE place <= room ORDER BY priority, run_at, id LIMIT {limit}
        )
        {_lease(sql)}"""

    return build


def _candidates_postgresql(sql: Sql, limit: int, per_key: int) -> str:
    head = "SELECT id, priority, run_at, limit_key FROM"
    due = f"run_at <= {sql.now} AND job_type {sql.any_of('types')}"
    first = f"{due} ORDER BY run_at, id LIMIT"
    return f"""
            (SELECT j.*, {limit} AS room FROM priorities CROSS JOIN LATERAL (
                {head} {sql.jobs} WHERE queue = :queue AND {_PLAIN} AND priority = p
                AND {first} {limit} {sql.lock()}) AS j
             WHERE p IS NOT NULL LIMIT {limit})
            UNION ALL
            (SELECT j.*, o.room FROM {sql.rows("opened", _OPEN)} AS o CROSS JOIN LATERAL (
                {head} {sql.jobs} WHERE queue = :queue AND {_LIMITED} AND limit_key = o.limit_key
                AND priority = o.priority AND {first} {per_key} {sql.lock()}) AS j)
            UNION ALL
            (SELECT j.*, h.room FROM {sql.rows("heads", _HEAD)} AS h CROSS JOIN LATERAL (
                {head} {sql.jobs} WHERE id = h.id AND status <> 'running' AND {due} {sql.lock()}) AS j)"""


def _candidates_sqlite(sql: Sql, limit: int, per_key: int) -> str:
    pick = "j.id, j.priority, j.run_at, j.limit_key"
    due = f"run_at <= {sql.now} AND job_type {sql.any_of('types')}"
    first = f"{due} ORDER BY run_at, id LIMIT"
    return f"""
            SELECT {pick}, {limit} AS room FROM priorities JOIN {sql.jobs} AS j
            ON j.id IN (SELECT id FROM {sql.jobs} WHERE queue = :queue AND {_PLAIN} AND priority = p
                AND {first} {limit})
            UNION ALL
            SELECT {pick}, o.room FROM {sql.rows("opened", _OPEN)} AS o JOIN {sql.jobs} AS j
            ON j.id IN (SELECT id FROM {sql.jobs} WHERE queue = :queue AND {_LIMITED}
                AND limit_key = o.limit_key AND priority = o.priority AND {first} {per_key})
            UNION ALL
            SELECT {pick}, h.room FROM {sql.rows("heads", _HEAD)} AS h JOIN {sql.jobs} AS j
            ON j.id = h.id WHERE status <> 'running' AND {due}"""


def _lease(sql: Sql) -> str:
    """The update of the picked rows. `status <> 'running'` is checked again on the row that is locked."""
    if sql.postgresql:
        seconds = "CAST(CAST(:leases AS jsonb) ->> jobs.job_type AS double precision)"
    else:
        seconds = "(:leases ->> ('$.\"' || jobs.job_type || '\"'))"
    return f"""
        UPDATE {sql.jobs} AS jobs SET status = 'running', attempts = attempts + 1, lease_token = lease_token + 1,
            locked_by = :worker, locked_until = {sql.after(seconds)}, started_at = {sql.now}, released_at = NULL,
            updated_at = {sql.now}
        WHERE id {sql.among("picked")} AND status <> 'running'
        RETURNING id, job_type, {sql.json_text("payload")} AS payload, queue, priority, attempts,
            max_attempts, lease_token, lost_count, unknown_count, prepared, cancel_requested, group_key, limit_key,
            idempotency_key, quarantined_from, requeued_from, trace_context,
            {sql.seconds("age_from")} AS age_seconds, {sql.epoch("run_at")} AS run_at,
            expires_at <= {sql.now} AS expired"""


def _take(
    store: Store,
    connection: Connection,
    lane: Lane,
    worker: str,
    want: int,
    opened: Sequence[_Open],
    heads: Sequence[_Head],
) -> list[Job]:
    limit = max(size for size in _SIZES if size <= want)
    share = max(4, 2 * limit // max(1, len(opened)))
    found = store.all(
        connection,
        _take_sql(limit, min(size for size in _SIZES if size >= min(share, limit))),
        queue=lane.queue,
        worker=worker,
        types=as_json(list(lane.lease_seconds)),
        leases=as_json(lane.lease_seconds),
        opened=as_json(opened),
        heads=as_json(heads),
    )
    return [job_of(row) for row in sorted(found, key=lambda row: (row.priority, row.run_at, row.id))]


def job_of(row: Row[Any]) -> Job:
    """A claimed row as the handler's side sees it."""
    return Job(
        id=row.id,
        job_type=row.job_type,
        payload=row.payload,
        queue=row.queue,
        priority=row.priority,
        attempts=row.attempts,
        max_attempts=row.max_attempts,
        lease_token=row.lease_token,
        lost_count=row.lost_count,
        unknown_count=row.unknown_count,
        released=False,
        prepared=bool(row.prepared),
        expired=bool(row.expired),
        cancel_requested=bool(row.cancel_requested),
        age_seconds=row.age_seconds,
        key=row.idempotency_key,
        group_key=row.group_key,
        limit_key=row.limit_key,
        quarantined_from=row.quarantined_from,
        requeued_from=row.requeued_from,
        trace_context=row.trace_context,
    )
