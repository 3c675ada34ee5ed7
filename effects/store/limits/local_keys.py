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
