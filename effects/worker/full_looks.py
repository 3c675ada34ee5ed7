"""When a queue's claims look at all of its jobs, and when they start where the last one ended."""

from __future__ import annotations

SLOW_SECONDS = 0.05  # a claim that reads many entries of jobs that are gone, which a held snapshot keeps
SHARE = 0.05  # of the time, for those


class FullLooks:
    """Of one queue. Times are monotonic."""

    def __init__(self) -> None:
        self.next_at = float("-inf")

    def is_due(self, now: float) -> bool:
        return now >= self.next_at

    def note(self, began: float, ended: float) -> None:
        """A claim that looked at all jobs took so long: a slow one is not repeated at once."""
        if ended - began > SLOW_SECONDS:
            self.next_at = ended + (ended - began) / SHARE
