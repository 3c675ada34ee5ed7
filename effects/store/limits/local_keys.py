"""What one worker knows of the limit keys of a queue by itself, from claim to claim. Nothing of it is stored."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Set

import msgspec

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

    def free_slots(self, limit_key: str, want: int) -> int:
        """How many more of this key this worker may start, at most `want`."""
        bounds = [most for bound in self.bounds if (most := bound(limit_key)) is not None]
        return want if not bounds else max(0, min(want, min(bounds) - self.in_flight.get(limit_key, 0)))

    @property
    def silent_in_flight(self) -> int:
        """How many attempts of silent keys this worker has."""
        return sum(self.in_flight.get(key, 0) for key in self.silent)
