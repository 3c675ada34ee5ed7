"""How many jobs of a limit key may start: caps are counted and tokens taken under the lock of the key's row.

In flight is counted, not stored: no counter can drift. The count is exact because the rows of the key and of its
parent are locked while it is taken and used; keys that another worker is claiming from at this moment are skipped.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from typing import Any

import msgspec
from sqlalchemy import Connection, Row

from effects.model.job import Job
from effects.model.limits import Rate, refilled, whole
from effects.store.db.sql import Sql
from effects.store.db.store import Store, as_json
from effects.store.limits.key_limits import limit_columns

LocalBound = Callable[[str], int | None]  # limit key → most of its attempts at a time in this worker; None: any number


class LocalKeys(msgspec.Struct):
    """The limit keys of a queue in one worker; the worker brings it up to date before each claim.

    Attributes:
        failing_after_seconds: a key of which an attempt has run for longer counts as failing; None: none does.
        bounds: of the queue's job types; the least holds.
        in_flight: how many attempts of each key this worker has.
        silent: the keys that count as failing now.
    """

    failing_after_seconds: float | None = None
    bounds: tuple[LocalBound, ...] = ()
    in_flight: Mapping[str, int] = {}
    silent: Set[str] = frozenset()
    _free: dict[str, int | None] = {}  # asked once for each claim

    def update(self, in_flight: Mapping[str, int], silent: Set[str]) -> None:
        """Say how it is now."""
        self.in_flight, self.silent, self._free = in_flight, silent, {}

    def free_slots(self, limit_key: str, want: int) -> int:
        """How many more of this key this worker may start, at most `want`."""
        if not self.bounds:
            return want
        if limit_key not in self._free:
            self._free[limit_key] = self._under_bounds(limit_key)
        free = self._free[limit_key]
        return want if free is None else min(want, free)

    def _under_bounds(self, limit_key: str) -> int | None:
        bounds = [most for bound in self.bounds if (most := bound(limit_key)) is not None]
        return max(0, min(bounds) - self.in_flight.get(limit_key, 0)) if bounds else None

    @property
    def silent_in_flight(self) -> int:
        """How many attempts of silent keys this worker has."""
        return sum(self.in_flight.get(key, 0) for key in self.silent)


BUSY_SECONDS = 0.02  # when to look again at a key that another worker holds
ROUNDING = 1e-6  # seconds until a token that came exactly now
FAILING_POOL = ""  # of all failing keys, where threads are reserved for the others; no limit key is empty


class LimitRef(msgspec.Struct, frozen=True):
    """A key that jobs wait under. `parent` has a row. The flags: whether each row holds limits."""

    limit_key: str
    parent: str | None
    has_limits: bool
    parent_has_limits: bool

    @property
    def pool(self) -> str:
        """The capacity pool that this key draws on: its parent's, or its own."""
        return self.parent if self.parent_has_limits and self.parent is not None else self.limit_key


class Capacity:
    """How many more jobs of each limit key may start, for the length of this transaction.

    Args:
        want: the capacity of a key without limits.
        worker, queue, threads: who claims, for which queue and how many threads. Of one rate no more starts are claimed
            at once than there are threads: claimed ones that wait are a burst.
        reserved_threads: number of threads withheld from failing keys: those whose newest attempt failed, or of which
            one is silent in this worker.
        local: what this worker knows of the keys by itself.
    """

    def __init__(
        self, want: int, worker: str, *, queue: str, threads: int, reserved_threads: int, local: LocalKeys
    ) -> None:
        self.wait_seconds: float | None = None  # until a key that is full may have free slots
        self.awaits_token = False  # one of them has a rate, and no token
        self._want, self._worker = want, worker
        self._queue, self._threads, self._reserved_threads, self._local = queue, threads, reserved_threads, local
        self._free_slots: dict[str, int] = {}
        self._buckets: dict[str, Row[Any]] = {}
        self._parents: dict[str, str] = {}
        self._failing: set[str] = set()

    def lock(self, store: Store, connection: Connection, limit_refs: Iterable[LimitRef]) -> None:
        """Lock the rows of those keys that have limits, skipping locked ones, and see what they allow."""
        names: set[str] = set()
        failing: set[str] = set()
        for ref in limit_refs:
            names.update([ref.limit_key] if ref.has_limits else [])
            failing.update({ref.limit_key} & self._local.silent)
            if ref.parent_has_limits and ref.parent is not None:
                names.add(ref.parent)
                self._parents[ref.limit_key] = ref.parent
        if names:
            failing.update(self._lock_rows(store, connection, names))
        if failing and self._reserved_threads:
            self._failing = failing
            silent = as_json(sorted(self._local.silent))
            busy = store.value(connection, _failing_in_flight, worker=self._worker, queue=self._queue, silent=silent)
            self._free_slots[FAILING_POOL] = max(0, self._threads - self._reserved_threads - busy)

    def _lock_rows(self, store: Store, connection: Connection, names: set[str]) -> set[str]:
        """Those of them whose newest attempt failed."""
        locked = store.all(connection, _lock, keys=as_json(sorted(names)))
        self._free_slots = dict.fromkeys(names, 0)
        if len(locked) < len(names):
            self._look_again(BUSY_SECONDS)
        capped = [row.limit_key for row in locked if cap_of(row) is not None]
        running = count_running(store, connection, capped)
        for row in locked:
            self._free_slots[row.limit_key] = self._free_slots_of(row, running.get(row.limit_key, 0))
        return {row.limit_key for row in locked if row.breaker_failures}

    def free_slots(self, ref: LimitRef) -> int:
        """How many of this key may start, its pool apart."""
        free_slots = self._local.free_slots(ref.limit_key, self._want)
        if ref.has_limits:
            free_slots = min(free_slots, self._free_slots.get(ref.limit_key, self._want))
        if ref.limit_key in self._failing:
            free_slots = min(free_slots, self._free_slots[FAILING_POOL])
        return free_slots

    def pool(self, ref: LimitRef) -> str:
        """The pool that it draws on. A parent's comes before that of the failing keys, whose bound holds besides."""
        return FAILING_POOL if ref.limit_key in self._failing and not ref.parent_has_limits else ref.pool

    def pool_free(self, ref: LimitRef) -> int:
        """How many of its pool may start together."""
        pool = self.pool(ref)
        return (
            self._free_slots.get(pool, self._want)
            if ref.parent_has_limits or pool == FAILING_POOL
            else self.free_slots(ref)
        )

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
        left = tokens_of(row) - count
        self._await_token(row, left)
        return {"limit_key": row.limit_key, "tokens": left, "at": row.now_epoch}

    def _free_slots_of(self, row: Row[Any], running: int) -> int:
        if (row.paused_left or 0.0) > 0:
            return 0
        cap = cap_of(row)
        free_slots = self._want if cap is None else max(0, cap - running)
        if row.rate_tokens is not None:
            self._buckets[row.limit_key] = row
            tokens = tokens_of(row)
            self._await_token(row, tokens)
            free_slots = min(free_slots, whole(tokens), self._threads)
        return free_slots

    def _await_token(self, row: Row[Any], tokens: float) -> None:
        if whole(tokens) < 1:
            self.awaits_token = True
            self._look_again(token_wait_of(row, tokens))

    def _look_again(self, seconds: float) -> None:
        self.wait_seconds = seconds if self.wait_seconds is None else min(seconds, self.wait_seconds)


def _rate(row: Row[Any]) -> Rate:
    return Rate(row.rate_tokens, row.rate_period_seconds, row.rate_burst or 0)


def tokens_of(row: Row[Any]) -> float:
    return refilled(row.tokens, row.elapsed, _rate(row))


def token_wait_of(row: Row[Any], tokens: float) -> float:
    """Seconds until the bucket that holds so many tokens has a whole one."""
    return (1 - tokens) / _rate(row).per_second


def cap_of(row: Row[Any]) -> int | None:
    """How many of the key may run at once; None: any number. Behind an open breaker it is one, as a trial."""
    return 1 if row.breaker_state == "open" else row.max_in_flight


def count_running(store: Store, connection: Connection, keys: Sequence[str]) -> dict[str, int]:
    """How many run under each of these keys, those of its children included."""
    counts: dict[str, int] = {}
    if keys:
        for row in store.all(connection, _in_flight, keys=as_json(keys)):
            for name in {row.limit_key, row.parent_key}:
                counts[name] = counts.get(name, 0) + row.running
    return counts


# -- conditions of statements that look at many keys without a lock: they spare a claim those that are closed ---------


def is_limiting(row: str) -> str:
    """Condition: a row of `effects_limits` may keep a job from starting, its pause apart."""
    limits = f"{row}.max_in_flight IS NOT NULL OR {row}.rate_tokens IS NOT NULL OR {row}.breaker_failures > 0"
    return f"COALESCE({limits}, false)"


def joined_limits(sql: Sql, key: str) -> str:
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


# -- the statements ----------------------------------------------------------------------------------------


def _lock(sql: Sql) -> str:
    return f"""
    SELECT {limit_columns(sql)} FROM {sql.limits}
    WHERE limit_key {sql.any_of("keys")} ORDER BY limit_key {sql.lock()}"""


def _in_flight(sql: Sql) -> str:
    return f"""
    SELECT j.limit_key, l.parent_key, count(*) AS running FROM {sql.jobs} AS j
    LEFT JOIN {sql.limits} AS l ON l.limit_key = j.limit_key
    WHERE {sql.in_flight} AND j.limit_key IS NOT NULL
    AND (j.limit_key {sql.any_of("keys")} OR l.parent_key {sql.any_of("keys")})
    GROUP BY j.limit_key, l.parent_key"""


def _failing_in_flight(sql: Sql) -> str:
    return f"""
    SELECT count(*) FROM {sql.jobs} AS j LEFT JOIN {sql.limits} AS l ON l.limit_key = j.limit_key
    WHERE j.status = 'running' AND j.locked_by = :worker AND j.queue = :queue
    AND (l.breaker_failures > 0 OR j.limit_key {sql.any_of("silent")})"""


def _spend(sql: Sql) -> str:
    """`at` is the time at which the tokens were counted: what came since is not lost. It never goes back."""
    spent = sql.rows("rows", {"limit_key": "text", "tokens": "num", "at": "num"})
    at = sql.time("r.at")
    return f"""
    UPDATE {sql.limits} SET tokens = r.tokens, updated_at = {sql.now},
        refilled_at = CASE WHEN refilled_at > {at} THEN refilled_at ELSE {at} END
    FROM {spent} AS r WHERE {sql.limits}.limit_key = r.limit_key"""
