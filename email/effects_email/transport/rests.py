"""Which transports rest after a failure, and which of them may be tried again: this process's knowledge alone."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Iterable

DOWN_SECONDS, DOWN_SECONDS_MAX = 15.0, 300.0
TRIAL_SECONDS = 60.0  # that one message tries a transport whose rest is over, before another one may
_SAME = 0.9  # of the rest: the first try after it counts again


class Rests:
    """Transports by name: how often each was down in a row, until when it rests, and who tries it then."""

    def __init__(self) -> None:
        self._down: Counter[str] = Counter()
        self._until: dict[str, float] = {}
        self._trial: dict[str, float] = {}
        self._lock = threading.Lock()

    def down(self, name: str) -> float:
        """It is down: seconds that it should be left alone, longer each time, five minutes at most.

        What other threads find within that time is the same finding.
        """
        with self._lock:
            now = time.monotonic()
            if now >= self._until.get(name, float("-inf")):
                self._down[name] += 1
            seconds = float(min(DOWN_SECONDS * 2 ** min(self._down[name] - 1, 10), DOWN_SECONDS_MAX))
            self._rest(name, now + seconds * _SAME)
            return seconds

    def rest(self, name: str, seconds: float) -> None:
        """It answers and asks to be left alone, or refuses everything."""
        with self._lock:
            self._rest(name, time.monotonic() + seconds)

    def up(self, name: str) -> None:
        """It answered."""
        if name in self._until:
            with self._lock:
                self._down.pop(name, None), self._until.pop(name, None), self._trial.pop(name, None)

    def may_try(self, name: str) -> bool:
        """Whether a message may go by it now. Of a transport whose rest is over one message finds out; the others may
        not until that one has come back, or for a minute if it does not.
        """
        with self._lock:
            now = time.monotonic()
            if name not in self._until:
                return True
            if now < max(self._until[name], self._trial.get(name, 0.0)):
                return False
            self._trial[name] = now + TRIAL_SECONDS
            return True

    def is_free(self, name: str) -> bool:
        """Whether `may_try` would say yes; changes nothing."""
        return self.seconds_left([name]) == 0.0

    def seconds_left(self, names: Iterable[str]) -> float:
        """Until the first of them may be tried; 0 where one may be now."""
        with self._lock:
            now = time.monotonic()
            ends = [max(self._until.get(name, 0.0), self._trial.get(name, 0.0)) for name in names]
            return max(0.0, min(ends, default=0.0) - now)

    def _rest(self, name: str, until: float) -> None:
        self._until[name] = max(self._until.get(name, 0.0), until)
        self._trial.pop(name, None)
