"""The attempts of the last minute, as a worker remembers them: bounded, and cheap to add to."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable

from effects.model.job import AttemptId
from effects.store.recovery.comparison import Remembered

KEPT_SECONDS = 60.0
KEPT_MAX, KEPT_CHARS_MAX = 20_000, 32_000_000  # attempts, and characters of their payloads


class AttemptMemory:
    """The attempts of the last minute, in the order in which they were recorded. Adding to it waits for no one."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._lock = threading.Lock()
        self._batches: deque[tuple[list[Remembered], int]] = deque()  # each with its characters
        self._count = self._chars = 0
        self.dropped_at = float("-inf")  # monotonic; what was dropped before its time

    def add(self, batch: list[Remembered]) -> None:
        chars = sum([len(remembered.job.payload) for remembered in batch])
        with self._lock:
            self._batches.append((batch, chars))
            self._count += len(batch)
            self._chars += chars
            self._trim(self._now())

    def _trim(self, now: float) -> None:
        while self._batches:
            oldest, chars = self._batches[0]
            if now - oldest[0].at <= KEPT_SECONDS:
                if self._count <= KEPT_MAX and self._chars <= KEPT_CHARS_MAX:
                    return
                self.dropped_at = now
            self._batches.popleft()
            self._count -= len(oldest)
            self._chars -= chars

    @property
    def is_complete(self) -> bool:
        return self._now() - self.dropped_at > KEPT_SECONDS

    def newest(self) -> list[Remembered]:
        """What is known last of each attempt."""
        latest: dict[AttemptId, Remembered] = {}
        with self._lock:
            batches = list(self._batches)
        for batch, _ in batches:
            for remembered in batch:
                latest[remembered.attempt] = remembered
        return list(latest.values())

    def forget(self) -> None:
        with self._lock:
            self._batches.clear()
            self._count = self._chars = 0
