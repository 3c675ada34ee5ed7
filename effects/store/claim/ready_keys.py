"""Looking: which keys and groups have jobs that may start, a bounded number of probes a round. Nothing is locked.

A key or a group costs one probe of an index, however many jobs wait behind it. What is paused, full, without a token,
not due or behind a running job drops out here, so that an idle worker locks and writes nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
from sqlalchemy import Connection, Row

from effects.store.claim.claim_request import ClaimRequest
from effects.store.claim.lease import is_running
from effects.store.db.sql import Sql
from effects.store.db.store import Store, as_json
from effects.store.limits.capacity import (
    ROUNDING,
    LimitRef,
    is_full,
    is_limiting,
    joined_limits,
    not_paused,
    token_wait,
    with_parents,
)
from effects.store.limits.queue_pauses import is_paused
from effects.store.schema.job_tables import GROUPED, LIMITED

PROBES_PER_ROUND = 128  # keys checked in one round; the next round continues after the last of them
NEWEST = 64  # of the jobs with a group, how many of those that fell due last are looked at first


class WaitingKey(msgspec.Struct, frozen=True):
    """A key that may have free slots, and one of the priorities of its waiting jobs."""

    limit_ref: LimitRef
    priority: int


def limit_ref_of(row: Row[Any]) -> LimitRef:
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
    keys = [WaitingKey(limit_ref_of(row), row.priority) for row in rows]
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
