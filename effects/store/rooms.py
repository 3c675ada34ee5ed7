"""How many jobs of a limit key may start: caps are counted and tokens taken under the lock of the key's row.

In flight is counted, not stored: no counter can drift. The count is exact because the rows of the key and of its
parent are locked while it is taken and used; keys that another worker is claiming from at this moment are skipped.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec
from sqlalchemy import Connection, Row

from effects.job import Job
from effects.limits import Rate, refilled, whole
from effects.store.limits import limit_columns
from effects.store.sql import Sql
from effects.store.store import Store, as_json
from effects.store.take import Lane

BUSY_SECONDS = 0.02  # when to look again at a key that another worker holds
FAILING = ""  # the family of all keys that fail, where the lane keeps threads for the others; no key is empty


class Asked(msgspec.Struct, frozen=True):
    """A key that jobs wait under. `parent` has a row; `own` and `above` say whether the rows hold limits."""

    limit_key: str
    parent: str | None
    own: bool
    above: bool

    @property
    def family(self) -> str:
        """Whom this key shares its room with."""
        return self.parent if self.above and self.parent is not None else self.limit_key


class Rooms:
    """The rooms of the asked keys, good for this transaction.

    Args:
        want: the room of a key without limits.
        lane: of one rate no more starts are claimed at once than it has threads: claimed ones that wait are a burst.
            Of what it keeps, keys whose newest attempt failed get nothing.
        worker: whose threads they are.
    """

    def __init__(self, want: int, lane: Lane, worker: str) -> None:
        self.wait_seconds: float | None = None  # until a key may have room that has none now
        self.awaits_token = False  # one of them has a rate, and no token
        self._want, self._lane, self._worker = want, lane, worker
        self._rooms: dict[str, int] = {}
        self._buckets: dict[str, Row[Any]] = {}
        self._parents: dict[str, str] = {}
        self._failing: set[str] = set()

    def lock(self, store: Store, connection: Connection, asked: Iterable[Asked]) -> None:
        """Lock the rows of those keys that have limits, skipping locked ones, and see what they allow."""
        names: set[str] = set()
        for one in asked:
            names.update([one.limit_key] if one.own else [])
            if one.above and one.parent is not None:
                names.add(one.parent)
                self._parents[one.limit_key] = one.parent
        if not names:
            return
        locked = store.all(connection, _lock, keys=as_json(sorted(names)))
        self._rooms = dict.fromkeys(names, 0)
        if len(locked) < len(names):
            self._look_again(BUSY_SECONDS)
        capped = [row.limit_key for row in locked if _cap(row) is not None]
        running = _running(store, connection, capped)
        for row in locked:
            self._rooms[row.limit_key] = self._room(row, running.get(row.limit_key, 0))
        self._failing = {row.limit_key for row in locked if row.breaker_failures} if self._lane.kept else set()
        if self._failing:
            busy = store.value(connection, _failing_in_flight, worker=self._worker, queue=self._lane.queue)
            self._rooms[FAILING] = max(0, self._lane.threads - self._lane.kept - busy)

    def room(self, asked: Asked) -> int:
        """How many of this key may start, its family apart."""
        return self._rooms.get(asked.limit_key, self._want) if asked.own else self._want

    def family(self, asked: Asked) -> str:
        """Whom it shares its room with. A parent's room goes before that of the keys that fail."""
        return FAILING if asked.limit_key in self._failing and not asked.above else asked.family

    def family_room(self, asked: Asked) -> int:
        """How many of its family may start together."""
        family = self.family(asked)
        return self._rooms.get(family, self._want) if asked.above or family == FAILING else self.room(asked)

    def spend(self, store: Store, connection: Connection, jobs: Sequence[Job]) -> None:
        """Take the tokens of the jobs that were leased."""
        taken: Counter[str] = Counter()
        for job in jobs:
            names = {job.limit_key, self._parents.get(job.limit_key or "")}
            taken.update(name for name in names if name in self._buckets)
        spent = [self._spent(self._buckets[name], count) for name, count in sorted(taken.items())]
        if spent:
            store.write(connection, _spend, rows=as_json(spent))

    def _spent(self, row: Row[Any], count: int) -> dict[str, Any]:
        left = _tokens(row) - count
        self._await_token(row, left)
        return {"limit_key": row.limit_key, "tokens": left, "at": row.now_epoch}

    def _room(self, row: Row[Any], running: int) -> int:
        if (row.paused_left or 0.0) > 0:
            return 0
        cap = _cap(row)
        room = self._want if cap is None else max(0, cap - running)
        if row.rate_tokens is not None:
            self._buckets[row.limit_key] = row
            tokens = _tokens(row)
            self._await_token(row, tokens)
            room = min(room, whole(tokens), self._lane.threads)
        return room

    def _await_token(self, row: Row[Any], tokens: float) -> None:
        if whole(tokens) < 1:
            self.awaits_token = True
            self._look_again((1 - tokens) / _rate(row).per_second)

    def _look_again(self, seconds: float) -> None:
        self.wait_seconds = seconds if self.wait_seconds is None else min(seconds, self.wait_seconds)


def _rate(row: Row[Any]) -> Rate:
    return Rate(row.rate_tokens, row.rate_period_seconds, row.rate_burst or 0)


def _tokens(row: Row[Any]) -> float:
    return refilled(row.tokens, row.elapsed, _rate(row))


def _cap(row: Row[Any]) -> int | None:
    """An open breaker whose pause is over lets one attempt probe."""
    return 1 if row.breaker_state == "open" else row.max_in_flight


def _running(store: Store, connection: Connection, keys: Sequence[str]) -> dict[str, int]:
    """How many run under each of these keys, those of its children included."""
    counts: dict[str, int] = {}
    if keys:
        for row in store.all(connection, _in_flight, keys=as_json(keys)):
            for name in {row.limit_key, row.parent_key}:
                counts[name] = counts.get(name, 0) + row.running
    return counts


# -- the statements ----------------------------------------------------------------------------------------


def _lock(sql: Sql) -> str:
    return f"""
    SELECT {limit_columns(sql)} FROM {sql.limits}
    WHERE limit_key {sql.any_of("keys")} ORDER BY limit_key {sql.lock()}"""


def _in_flight(sql: Sql) -> str:
    return f"""
    SELECT j.limit_key, l.parent_key, count(*) AS running FROM {sql.jobs} AS j
    LEFT JOIN {sql.limits} AS l ON l.limit_key = j.limit_key
    WHERE j.status = 'running' AND j.limit_key IS NOT NULL
    AND (j.limit_key {sql.any_of("keys")} OR l.parent_key {sql.any_of("keys")})
    GROUP BY j.limit_key, l.parent_key"""


def _failing_in_flight(sql: Sql) -> str:
    return f"""
    SELECT count(*) FROM {sql.jobs} AS j JOIN {sql.limits} AS l ON l.limit_key = j.limit_key
    WHERE j.status = 'running' AND j.locked_by = :worker AND j.queue = :queue AND l.breaker_failures > 0"""


def _spend(sql: Sql) -> str:
    """`at` is the time at which the tokens were counted: what came since is not lost. It never goes back."""
    given = sql.rows("rows", {"limit_key": "text", "tokens": "num", "at": "num"})
    at = sql.time("r.at")
    return f"""
    UPDATE {sql.limits} SET tokens = r.tokens, updated_at = {sql.now},
        refilled_at = CASE WHEN refilled_at > {at} THEN refilled_at ELSE {at} END
    FROM {given} AS r WHERE {sql.limits}.limit_key = r.limit_key"""
