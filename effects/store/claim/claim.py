"""Claiming: from waiting rows to leased ones, in batches, without reading what cannot run.

Three kinds of waiting jobs, each with an index of its own:

- plain: the due ones of each priority, straight off the index;
- limited (`limit_key`): a loose index scan finds the keys, one probe a key however many jobs wait behind it;
  paused keys and full ones drop out; the heads of the rest compete;
- grouped (`group_key`): the same loose scan over the groups, and the jobs that fell due last; of each group the first
  live job is looked at. It runs alone or not at all. No claim needs the group's row, which enqueuers hold until they
  commit: ids rise in the order of commit, so that what is not visible yet comes after what is.

Priorities are scanned loosely too, so that jobs scheduled for later are never read through.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import msgspec
from sqlalchemy import Row
from sqlalchemy.exc import IntegrityError

from effects.crashpoints import point
from effects.model.job import Job
from effects.store.claim.claim_request import SIZES, ClaimRequest, GroupHead, ReadyKey
from effects.store.claim.lease import keys_in_use, lease_any, lease_plain
from effects.store.claim.ready_keys import Probed, WaitingKey, limit_ref_of, probe
from effects.store.db.sql import Sql
from effects.store.db.store import Store, as_json
from effects.store.limits.capacity import Capacity
from effects.store.limits.queue_pauses import is_paused
from effects.store.schema.job_tables import GROUP_RUNNING, PLAIN


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
            store, connection, [*(key.limit_ref for key in probed.keys), *(limit_ref_of(row) for row in probed.heads)]
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
    ref = limit_ref_of(row)
    return GroupHead(row.id, capacity.free_slots(ref), capacity.pool(ref), capacity.pool_free(ref))
