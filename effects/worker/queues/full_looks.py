"""When a queue's claims look at all of its jobs, and when they start where the last one ended."""

from __future__ import annotations

SLOW_SECONDS = 0.05  # a claim that reads many entries of jobs that are gone, which a held snapshot keeps
SHARE = 0.05  # of the time, for those
GAIN = 2.0  # a claim that starts further on takes at most half the time, or what is slow is something else


class FullLooks:
    """Of one queue. Times are monotonic."""

    def __init__(self) -> None:
        self.next_at = float("-inf")
        self._slow_seconds = SLOW_SECONDS
        self._seconds = 0.0  # the last one took

    def is_due(self, now: float) -> bool:
        return now >= self.next_at

    def note(self, began: float, ended: float) -> None:
        """A look at all jobs took so long: a slow one is not repeated at once."""
        self._seconds = ended - began
        if self._seconds > self._slow_seconds:
            self.next_at = ended + self._seconds / SHARE
        elif self._seconds <= SLOW_SECONDS:
            self._slow_seconds = SLOW_SECONDS

    def note_shorter(self, began: float, ended: float) -> None:
        """A claim from where the last one ended took so long. No gain: the database is far away, or busy."""
        if (ended - began) * GAIN > self._seconds:
            self._slow_seconds = self._seconds * GAIN
            self.next_at = ended
