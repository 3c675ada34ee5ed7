"""What a claim asks for, and the keys and groups that may compete in it."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from functools import partial

import msgspec

from effects.store.limits.local_keys import LocalKeys

SIZES = (1, 4, 16, 64, 128, 256, 512, 1024)  # of claims: each is a statement of its own
CLAIM_MAX = SIZES[-1]
MOVED_MAX = 1024


class ClaimRequest(msgspec.Struct):
    """The request of a claim, with the positions of its skip scans."""

    queue: str
    lease_seconds: Mapping[str, float]  # job type → seconds until `locked_until`; also the types that we know
    threads: int = CLAIM_MAX  # of one rate, no more are claimed at once: those that wait for a thread are a burst
    fair: bool = False  # limit keys take turns, instead of the oldest job first
    reserved_threads: int = 0  # threads withheld from failing keys
    keyed: bool = False  # whether the last claim found keys in use: then it looks for them first
    polled: bool = False  # nothing says that a job is due: the next claim looks before it takes
    looked: bool = False  # a look has just seen that one is, or the last claim took all that it could
    floors: dict[int, float] = msgspec.field(default_factory=dict)  # priority → `run_at` of the last job taken
    from_floors: bool = False  # take plain jobs from there on, without a look at what may lie before
    limit_cursor: str = ""
    group_cursor: str = ""
    moved: deque[str] = msgspec.field(default_factory=partial(deque, maxlen=MOVED_MAX))  # groups to look at first
    last_key: str = ""  # round robin: the key served last
    local: LocalKeys = msgspec.field(default_factory=LocalKeys)

    def full_keys(self) -> set[str]:
        """The keys of which this worker may start no more, whatever their limits allow."""
        local, failing_max = self.local, self.threads - self.reserved_threads
        pool_is_full = self.reserved_threads > 0 and local.silent_in_flight >= failing_max
        return {
            key for key in local.in_flight if (pool_is_full and key in local.silent) or local.free_slots(key, 1) < 1
        }


class Floor(msgspec.Struct, frozen=True):
    """The due time of the last job of a priority that was taken, in seconds since 1970."""

    priority: int
    run_at: float


class ReadyKey(msgspec.Struct, frozen=True):
    """A key with waiting jobs of one priority, how many of it may start, and how many of its parent's children."""

    limit_key: str
    priority: int
    free_slots: int
    pool: str
    pool_free: int


class GroupHead(msgspec.Struct, frozen=True):
    """The first live job of a group, and the capacity under its limit."""

    id: int
    free_slots: int
    pool: str | None
    pool_free: int
