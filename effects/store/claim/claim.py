"""Claiming: from waiting rows to leased ones, in batches, without reading what cannot run.

Three kinds of waiting jobs, each with its own index:

- plain: the due ones of each priority, straight off the index;
- limited (`limit_key`): a skip scan finds the keys, one look into the index for each however many jobs wait behind it;
  paused keys and full ones drop out; the heads of the rest compete;
- grouped (`group_key`): the same scan over the groups, and the jobs that fell due last; of each group the first live
  job is looked at. It runs alone or not at all. No claim needs the group's row, which enqueuers hold until they commit:
  ids rise in the order of commit, so that what is not visible yet comes after what is.

The scans lock nothing and are bounded for each round, so an idle worker writes nothing. Priorities are skipped through
too: jobs scheduled for later are never read.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import msgspec
from sqlalchemy import Connection, Row
from sqlalchemy.exc import IntegrityError

from effects.kit.crashpoints import point
from effects.model.job import Job
from effects.store.claim.lease import (
    SIZES,
    ClaimRequest,
    GroupHead,
    ReadyKey,
    is_running,
    keys_in_use,
    lease_any,
    lease_plain,
)
from effects.store.db.sql import Sql
from effects.store.db.store import Store, as_json
from effects.store.limits.capacity import (
    ROUNDING,
    Capacity,
    LimitRef,
    is_full,
    is_limiting,
    joined_limits,
    not_paused,
    token_wait,
    with_parents,
)
from effects.store.limits.queue_pauses import is_paused
from effects.store.schema.job_tables import GROUP_RUNNING, GROUPED, LIMITED, PLAIN

PROBES_PER_ROUND = 128  # keys checked in one round; the next round continues after the last of them
NEWEST = 64  # of the jobs with a group, how many of those that fell due last are looked at first


class WaitingKey(msgspec.Struct, frozen=True):
    """A key that may have free slots, and one of the priorities of its waiting jobs."""

    limit_ref: LimitRef
    priority: int


def _limit_ref_of(row: Row[Any]) -> LimitRef:
    return LimitRef(row.limit_key, row.parent, bool(row.has_limits), bool(row.parent_has_limits))


class Probed(msgspec.Struct, frozen=True):
    """One round of both scans.

    `wait_seconds`: until a key will have a token that has none now. `unseen`: the scan of the groups is not at its end.
    """

    keys: list[WaitingKey]
    heads: Sequence[Row[Any]]
    wait_seconds: float | None
    unseen: bool


def probe(store: Store, connection: Connection, request: ClaimRequest) -> Probed:
    """One round of both scans, past the keys of which this worker may start no more.

    It moves the request's cursors, back to the start where a scan came to its end.
    An empty round at the end does not start over: if every key is paused, that would never end.
    """
    full = as_json([{"limit_key": key} for key in sorted(request.full_keys())])
    *rows, round_ = store.all(connection, _probe_limits, queue=request.queue, cursor=request.limit_cursor, full=full)
    keys = [WaitingKey(_limit_ref_of(row), row.priority) for row in rows]
    request.limit_cursor = round_.last if round_.seen >= PROBES_PER_ROUND else ""
    *heads, page = _probe_groups(store, connection, request)
    request.group_cursor = page.last if page.seen >= PROBES_PER_ROUND else ""
    request.keyed = bool(round_.seen or page.waiting)
    return Probed(keys, heads, round_.wait, unseen=bool(request.group_cursor))


# -- limits -------------------------------------------------------------------------------------------------


_LIMIT_REF = (
    f"parent.limit_key AS parent, {is_limiting('l')} AS has_limits, {is_limiting('parent')} AS parent_has_limits"
)


def _probe_limits(sql: Sql) -> str:
    """Keys behind the cursor that have due jobs, each priority of each, without the paused, full and empty ones.

    Those that are full in this worker are passed over by one probe each, and do not count: many silent peers with
    waiting jobs make no round longer for the others.

    That is told here without a lock, to spare a round of locks that would find nothing; `Capacity` tells it again.
    Nothing is joined to the pairs: PostgreSQL would look up the due time of each once for every key.
    """
    waiting = f"FROM {sql.jobs} WHERE queue = :queue AND {LIMITED}"
    return f"""
    WITH RECURSIVE full_here(k) AS (
        SELECT r.limit_key FROM {sql.rows("full", {"limit_key": "text"})} AS r
    ), each_running(k, n) AS (
        SELECT limit_key, count(*) FROM {sql.jobs}
        WHERE {sql.in_flight} AND limit_key IS NOT NULL GROUP BY limit_key
    ), running(k, n) AS ({with_parents(sql, "each_running")}
    ), keys(k, n) AS (
        SELECT CASE WHEN NOT {is_paused(sql)} THEN {sql.least("limit_key", f"{waiting} AND limit_key > :cursor")} END, 1
        UNION ALL
        SELECT {sql.least("limit_key", f"{waiting} AND limit_key > keys.k")},
            n + CASE WHEN k IN (SELECT k FROM full_here) THEN 0 ELSE 1 END
        FROM keys WHERE k IS NOT NULL AND n < {PROBES_PER_ROUND}
    ), unpaused(k, parent, has_limits, parent_has_limits, wait) AS (
        SELECT keys.k, {_LIMIT_REF}, {token_wait(sql)} FROM keys
        {joined_limits(sql, "keys.k")}
        LEFT JOIN running AS mine ON mine.k = keys.k
        LEFT JOIN running AS theirs ON theirs.k = parent.limit_key
        WHERE keys.k IS NOT NULL AND keys.k NOT IN (SELECT k FROM full_here) AND {not_paused(sql)}
        AND NOT {is_full("l", "mine.n")} AND NOT {is_full("parent", "theirs.n")}
    ), pairs(k, p, parent, has_limits, parent_has_limits) AS (
        SELECT k, {sql.least("priority", f"{waiting} AND limit_key = unpaused.k")},
            parent, has_limits, parent_has_limits
        FROM unpaused WHERE wait < {ROUNDING}
        UNION ALL
        SELECT k, {sql.least("priority", f"{waiting} AND limit_key = pairs.k AND priority > pairs.p")},
            parent, has_limits, parent_has_limits
        FROM pairs WHERE p IS NOT NULL
    )
    SELECT k AS limit_key, p AS priority, parent, has_limits, parent_has_limits, NULL AS last, 0 AS seen, 0.0 AS wait
    FROM pairs WHERE p IS NOT NULL
    AND {sql.least("run_at", f"{waiting} AND limit_key = pairs.k AND priority = pairs.p")} <= {sql.now}
    UNION ALL
    SELECT NULL, NULL, NULL, NULL, NULL, max(k), COALESCE(max(n), 0),
        (SELECT min(wait) FROM unpaused WHERE wait >= {ROUNDING})
    FROM keys WHERE k IS NOT NULL"""


# -- groups --------------------------------------------------------------------------------------------------


def _probe_groups(store: Store, connection: Connection, request: ClaimRequest) -> Sequence[Row[Any]]:
    """The group heads that may start, and a last row with the position of the scan."""
    moved = [{"group_key": request.moved.popleft()} for _ in range(min(len(request.moved), PROBES_PER_ROUND))]
    return store.all(
        connection, _group_heads, queue=request.queue, cursor=request.group_cursor,
        types=as_json(list(request.lease_seconds)), moved=as_json(moved),
    )  # fmt: skip


def _group_heads(sql: Sql) -> str:
    """The first live job of each group, where it waits, is due, is of this queue, and nothing holds the group.

    Which groups: those that just moved here, those of the jobs that fell due last, and a page of all groups in their
    order, in which each comes up whatever the others do. Where no job of the queue is due, or it is paused, there is no
    page.
    """
    waiting = f"FROM {sql.jobs} WHERE queue = :queue AND {GROUPED}"
    soonest, latest = sql.least("run_at", waiting), "ORDER BY run_at DESC, id DESC LIMIT 1"
    blocked = sql.exists(f"FROM {sql.job_groups} AS b WHERE b.group_key = named.g AND b.blocked")
    return f"""
    WITH RECURSIVE page(g, n) AS (
        SELECT CASE WHEN {soonest} <= {sql.now} AND NOT {is_paused(sql)}
            THEN {sql.least("group_key", f"FROM {sql.jobs} WHERE group_key > :cursor")} END, 1
        UNION ALL
        SELECT {sql.least("group_key", f"FROM {sql.jobs} WHERE group_key > page.g")}, n + 1
        FROM page WHERE g IS NOT NULL AND n < {PROBES_PER_ROUND}
    ), newest(id, n) AS (
        SELECT (SELECT id {waiting} AND run_at <= {sql.now} {latest}), 1
        UNION ALL
        SELECT (SELECT id {waiting} AND (run_at, id) < ({_of(sql, "run_at")}, newest.id) {latest}), n + 1
        FROM newest WHERE id IS NOT NULL AND n < {NEWEST}
    ), named(g) AS (
        SELECT g FROM page WHERE g IS NOT NULL
        UNION SELECT {_of(sql, "group_key")} FROM newest WHERE id IS NOT NULL
        UNION SELECT r.group_key FROM {sql.rows("moved", {"group_key": "text"})} AS r
    ), heads(id) AS (
        SELECT {sql.least("id", f"FROM {sql.jobs} WHERE group_key = named.g")}
        FROM named WHERE NOT {is_running(sql, "named.g")} AND NOT {blocked}
    )
    SELECT j.id, j.limit_key, {_LIMIT_REF}, NULL AS last, 0 AS seen, true AS waiting
    FROM {sql.jobs} AS j {joined_limits(sql, "j.limit_key")}
    WHERE j.id {sql.among("heads")} AND j.status <> 'running' AND j.run_at <= {sql.now} AND j.queue = :queue
    AND j.job_type {sql.any_of("types")} AND {not_paused(sql)} AND NOT {is_paused(sql)}
    UNION ALL
    SELECT NULL, NULL, NULL, NULL, NULL, max(g), count(g), {soonest} IS NOT NULL FROM page"""


def _of(sql: Sql, column: str) -> str:
    """A column of the job at the position of the newest-first scan; one probe each, regardless of statistics."""
    return f"(SELECT {column} FROM {sql.jobs} AS at WHERE at.id = newest.id)"


class Claimed(msgspec.Struct, frozen=True):
    """The jobs of one claim. `more` says that others may be claimable: it took all that it could, or keys remain to be
    looked at in the next round. `unseen`: groups remain, and none of the groups checked could start.

    `wait_seconds`: until a key that has jobs may have free slots; None if no key waits for that. `rate_limited`: a key
    waits for a token, not for another worker's claim to end.
    """

    jobs: list[Job]
    more: bool
    wait_seconds: float | None = None
    rate_limited: bool = False
    unseen: bool = False


def claim(store: Store, request: ClaimRequest, worker: str, want: int) -> Claimed:
    """Lease up to `want` due jobs of the queue to `worker`; one transaction.

    Sets `running`, `attempts + 1`, a higher `lease_token`, the worker and the attempt's hard deadline. A crash
    before the commit leaves nothing; one after it leaves leases that rescue takes back.

    Raises:
        StoreUnavailable: the database is unavailable.
    """
    limit = max(size for size in SIZES if size <= max(1, want))
    request.from_floors &= bool(request.floors) and store.is_postgresql
    claimed = Claimed([], more=False)
    if not request.keyed:
        claimed = _claim_plain(store, request, worker, limit)
    if request.keyed:
        claimed = _claim_any(store, request, worker, limit)
    request.polled, request.looked = False, len(claimed.jobs) == limit
    point("claim.committed")
    return claimed


def quiet_queues(store: Store, requests: Sequence[ClaimRequest]) -> set[str]:
    """The queues of these requests that have neither a due job nor a key in use, found by one statement for all.

    A request whose queue is not among them is told what was seen, so that its claim need not look again.

    Raises:
        StoreUnavailable: the database is unavailable.
    """
    seen = _look_at(store, [request.queue for request in requests])
    for request in requests:
        request.keyed, request.looked = seen[request.queue]
    return {request.queue for request in requests if not (request.keyed or request.looked)}


def _claim_plain(store: Store, request: ClaimRequest, worker: str, limit: int) -> Claimed:
    """Claim in one statement if no job has a key, the common case; return nothing if any has one."""
    if looks_first(store, request) and not request.from_floors:
        request.keyed, due = _look_at(store, [request.queue])[request.queue]
        if request.keyed or not due:
            return Claimed([], more=False)
    with store.single() as connection:
        jobs = lease_plain(store, connection, request, worker, limit)
        point("claim.before_commit")
    if not jobs:
        with store.read() as connection:
            request.keyed = bool(store.value(connection, _keys_in_use, queue=request.queue))
    return Claimed(jobs, more=len(jobs) == limit)


def looks_first(store: Store, request: ClaimRequest) -> bool:
    """Whether to look before taking: on SQLite for the write lock's sake, for which every other process would wait."""
    return not request.looked and (request.polled or not store.is_postgresql)


class Seen(NamedTuple):
    """Of a queue: whether jobs with a limit or a group wait, and whether one without either is due."""

    keyed: bool
    due: bool


def _look_at(store: Store, queues: Sequence[str]) -> dict[str, Seen]:
    with store.read() as connection:
        rows = store.all(connection, _look, queues=as_json([{"queue": queue} for queue in queues]))
    return {row.queue: Seen(bool(row.keyed), bool(row.due)) for row in rows}


def _look(sql: Sql) -> str:
    """Short, however many queues it looks at: psycopg parses a text of more than 4,096 characters each time again."""
    waiting = f"FROM {sql.jobs} WHERE queue = priorities.queue AND {PLAIN}"
    first = f"FROM {sql.jobs} WHERE queue = asked.queue AND {PLAIN}"
    return f"""
    WITH RECURSIVE asked(queue) AS (SELECT queue FROM {sql.rows("queues", {"queue": "text"})} AS r
    ), priorities(queue, p) AS (
        SELECT queue, CASE WHEN NOT {is_paused(sql, "asked.queue")} THEN {sql.least("priority", first)} END FROM asked
        UNION ALL
        SELECT queue, {sql.least("priority", f"{waiting} AND priority > p")} FROM priorities WHERE p IS NOT NULL
    )
    SELECT queue, {keys_in_use(sql, "asked.queue")} AS keyed, EXISTS (
        SELECT 1 FROM priorities WHERE queue = asked.queue AND p IS NOT NULL
        AND {sql.least("run_at", f"{waiting} AND priority = p")} <= {sql.now}) AS due
    FROM asked"""


def _keys_in_use(sql: Sql) -> str:
    return f"SELECT {keys_in_use(sql)}"


def _claim_any(store: Store, request: ClaimRequest, worker: str, limit: int) -> Claimed:
    with store.read() as connection:
        probed = probe(store, connection, request)
    wait, rate_limited = probed.wait_seconds, probed.wait_seconds is not None
    jobs: list[Job] = []
    raced = False
    if not probed.keys and not probed.heads:
        if not looks_first(store, request) or _look_at(store, [request.queue])[request.queue].due:
            with store.single() as connection:
                jobs = lease_any(store, connection, request, worker, limit, [], [])
                point("claim.before_commit")
    else:
        capacity = Capacity(
            limit, worker, queue=request.queue, threads=request.threads, reserved_threads=request.reserved_threads,
            local=request.local,
        )  # fmt: skip
        try:
            jobs = _claim_keyed(store, request, worker, limit, probed, capacity)
        except IntegrityError as error:
            if not _is_group_race(error):
                raise
            raced = True
        wait = min((seconds for seconds in (wait, capacity.wait_seconds) if seconds is not None), default=None)
        rate_limited = rate_limited or capacity.awaits_token
    more = raced or len(jobs) == limit or bool(request.limit_cursor or (jobs and probed.unseen))
    return Claimed(jobs, more, wait, rate_limited, unseen=probed.unseen)


def _claim_keyed(
    store: Store, request: ClaimRequest, worker: str, limit: int, probed: Probed, capacity: Capacity
) -> list[Job]:
    with store.begin_own() as connection:
        capacity.lock(
            store, connection, [*(key.limit_ref for key in probed.keys), *(_limit_ref_of(row) for row in probed.heads)]
        )
        ready_keys = [
            key for key in (_ready(capacity, key) for key in probed.keys) if key.free_slots > 0 and key.pool_free > 0
        ]
        heads = [head for row in probed.heads if (head := _head(capacity, row, limit)).free_slots > 0]
        jobs = lease_any(store, connection, request, worker, limit, ready_keys, heads)
        capacity.spend(store, connection, jobs)
        point("claim.before_commit")
    return jobs


def _is_group_race(error: IntegrityError) -> bool:
    """Another claim leased another job of a group at this moment: one that was the head before an older id appeared."""
    return GROUP_RUNNING in str(error.orig)


def _ready(capacity: Capacity, key: WaitingKey) -> ReadyKey:
    ref = key.limit_ref
    return ReadyKey(ref.limit_key, key.priority, capacity.free_slots(ref), capacity.pool(ref), capacity.pool_free(ref))


def _head(capacity: Capacity, row: Row[Any], limit: int) -> GroupHead:
    if row.limit_key is None:
        return GroupHead(row.id, limit, None, limit)
    ref = _limit_ref_of(row)
    return GroupHead(row.id, capacity.free_slots(ref), capacity.pool(ref), capacity.pool_free(ref))
