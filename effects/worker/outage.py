"""A database that is away is waited for, with one line in the log every few seconds."""

from __future__ import annotations

import logging
import random
import threading
import time
from collections.abc import Callable
from typing import TypeVar

from effects.errors import StoreUnavailable

LOG_EVERY_SECONDS = 5.0
WAIT_SECONDS = (0.1, 2.0)  # first and longest wait between two tries

T = TypeVar("T")
_log = logging.getLogger("effects.worker")


class Outage:
    """What one worker's threads know together about the database being away."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._down_since: float | None = None
        self._logged_at = float("-inf")
        self._told = False  # the log knows of this outage
        self.ended_at = float("-inf")  # monotonic; when the last outage was over

    @property
    def under_way(self) -> bool:
        return self._down_since is not None

    def began(self, error: StoreUnavailable) -> None:
        """A statement found the database away."""
        with self._lock:
            now = time.monotonic()
            self._down_since = self._down_since or now
            if now - self._logged_at >= LOG_EVERY_SECONDS:
                self._logged_at, self._told = now, True
                _log.warning("database.away", extra={"seconds": round(now - self._down_since, 1), "error": str(error)})

    def over(self, asked_at: float) -> None:
        """A statement that was sent at `asked_at` succeeded; one sent before the outage says nothing about its end."""
        if self._down_since is None:
            return
        with self._lock:
            if self._down_since is not None and asked_at > self._down_since:
                self.ended_at = time.monotonic()
                if self._told:  # a database that comes and goes (a full disk: some writes fit) is no flood of lines
                    _log.warning("database.back", extra={"seconds": round(self.ended_at - self._down_since, 1)})
                self._down_since, self._told = None, False

    def ride_out(self, call: Callable[[], T], *, give_up: Callable[[], bool]) -> T | None:
        """Call until the database answers; None once `give_up()` says so.

        Only for calls that may be repeated: every write of effects is fenced, so they all may.
        """
        wait = WAIT_SECONDS[0]
        while True:
            asked_at = time.monotonic()
            try:
                result = call()
            except StoreUnavailable as error:
                self.began(error)
                if give_up():
                    return None
                threading.Event().wait(wait * (1 + random.random()))  # noqa: S311 - jitter
                wait = min(wait * 2, WAIT_SECONDS[1])
            else:
                self.over(asked_at)
                return result
