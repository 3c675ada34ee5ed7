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

from typing import Any

import msgspec
from sqlalchemy import Row

from effects.crashpoints import point
from effects.job import Job
from effects.store.probe import PROBES_PER_ROUND, Key, asked_of, first_of_groups, probe
from effects.store.rooms import Rooms
from effects.store.sql import Sql
from effects.store.store import Store
from effects.store.take import (
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

CLAIM_MAX = SIZES[-1]

__all__ = ["CLAIM_MAX", "PROBES_PER_ROUND", "Claimed", "Lane", "claim"]


class Claimed(msgspec.Struct, frozen=True):
    """The jobs of one claim. `more` says that others may be claimable: it took all that it could, or keys remain to be
    looked at in the next round.

    `wait_seconds`: until a key that has jobs may have room for them; None where none waits for that. `paced`: one of
    them waits for a token, not for another worker's claim to end.
    """

    jobs: list[Job]
    more: bool
    wait_seconds: float | None = None
    paced: bool = False


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
    return Claimed(jobs, more=len(jobs) == limit)


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
        keys, groups, wait = probe(store, connection, lane)
    more, paced = bool(lane.limit_cursor or lane.group_cursor), wait is not None
    jobs: list[Job] = []
    if not keys and not groups.names:
        if store.is_postgresql or _plain_due(store, lane):
            with store.single() as connection:
                jobs = take_any(store, connection, lane, worker, limit, [], [])
                point("claim.before_commit")
    else:
        rooms = Rooms(limit, lane, worker)
        with store.begin() as connection:
            first = first_of_groups(store, connection, lane, groups)
            rooms.lock(store, connection, [*(key.asked for key in keys), *(asked_of(row) for row in first)])
            opened = [one for key in keys if (one := _open(rooms, key)).room > 0 and one.family_room > 0]
            heads = [_head(rooms, row, limit) for row in first]
            jobs = take_any(store, connection, lane, worker, limit, opened, [head for head in heads if head.room > 0])
            rooms.spend(store, connection, jobs)
            point("claim.before_commit")
        wait = min((one for one in (wait, rooms.wait_seconds) if one is not None), default=None)
        paced = paced or rooms.awaits_token
    return Claimed(jobs, more or len(jobs) == limit, wait, paced)


def _open(rooms: Rooms, key: Key) -> Open:
    asked = key.asked
    return Open(asked.limit_key, key.priority, rooms.room(asked), rooms.family(asked), rooms.family_room(asked))


def _head(rooms: Rooms, row: Row[Any], limit: int) -> Head:
    if row.limit_key is None:
        return Head(row.id, limit, None, limit)
    asked = asked_of(row)
    return Head(row.id, rooms.room(asked), rooms.family(asked), rooms.family_room(asked))
