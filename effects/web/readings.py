"""Answers of the database that many pages ask for: read once for all, and kept for a moment.

What counts over every live job is read in a thread of its own, and no page waits for it for long.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Hashable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from typing import Any, TypeVar

T = TypeVar("T")

# For a person who opens a page, an answer is kept for 20 times as long as it took: at most a twentieth of the time.
PERSON_TIMES = 20.0
# For pages that refresh themselves, so that all their questions together take at most 1/125 of the database's time.
POLL_TIMES = 125.0
OPEN_SECONDS = 120.0  # a question that no one has asked for so long is on no open page
OLD_SECONDS = 600.0  # what expired before that is not shown while it is counted again
PATIENCE_SECONDS = 0.2
_KEPT_MAX = 1_000


class StillCountingError(Exception):
    """The answer is being read, and takes longer than a page waits."""


@dataclass(slots=True)
class Reading:
    """What was read, when, how many seconds it took, and when it was last shown (of a monotonic clock)."""

    value: Any
    read_at: float
    cost: float
    used_at: float


class Readings:
    """What was read last, by question. Of many who ask at once one reads, and the others wait for it.

    Args:
        patience: how long a page waits for a count; seconds.
    """

    def __init__(self, patience: float = PATIENCE_SECONDS) -> None:
        self.patience = patience
        self._lock = threading.Lock()
        self._locks: dict[Hashable, threading.Lock] = {}
        self._kept: dict[Hashable, Reading] = {}
        self._counting: dict[Hashable, Future[Any]] = {}
        self._threads: ThreadPoolExecutor | None = None

    def get(self, question: Hashable, seconds: float, read: Callable[[], T], *, polled: bool = False) -> T:
        """The answer, at most `seconds` old, or longer where it takes long to read.

        What `read` raises is passed on, and nothing is kept. Questions that are answered are few: names in our code,
        and ids of rows that are there.

        Args:
            polled: whether a page refreshes itself, and no person waits.
        """
        with self._lock:
            lock = self._locks.setdefault(question, threading.Lock())
        try:
            with lock:
                kept = self._fresh(question, seconds, polled=polled)
                if kept is None:
                    kept = self._read(question, read, self._kept)
                answer: T = kept.value
                return answer
        finally:
            with self._lock:
                if question not in self._kept:  # it could not be read: a question may be as wrong as a typed address
                    self._locks.pop(question, None)

    def count(self, question: Hashable, seconds: float, read: Callable[[], T], *, polled: bool = False) -> T:
        """The same for what may take seconds: it is read in a thread, one question after the other.

        An answer that is too old is given while the next one is read.

        Raises:
            StillCountingError: nothing was kept, and it takes longer than a page waits; asked again, it comes.
        """
        kept = self._fresh(question, seconds, polled=polled)
        if kept is None:
            kept = self._kept.get(question)
            counting = self._begin(question, read)
            if kept is None or counting.done() or self.age(question) > OLD_SECONDS + PERSON_TIMES * kept.cost:
                return self._await(question, counting)  # type: ignore[no-any-return]
        answer: T = kept.value
        return answer

    def age(self, question: Hashable) -> float:
        """How many seconds ago it was read; 0 where it never was."""
        kept = self._kept.get(question)
        return 0.0 if kept is None else time.monotonic() - kept.read_at

    def forget(self) -> None:
        """Read again from here on: a person has acted."""
        with self._lock:
            self._kept = {}
            self._counting = {}

    def close(self) -> None:
        """End the thread, once it has read what it reads."""
        with self._lock:
            threads = self._threads
        if threads is not None:
            threads.shutdown(cancel_futures=True)

    # -- what is kept ------------------------------------------------------------------------------------------

    def _fresh(self, question: Hashable, seconds: float, *, polled: bool) -> Reading | None:
        now = time.monotonic()
        kept = self._kept.get(question)
        if kept is None or now - kept.read_at > self.keeps(kept, seconds, polled=polled):
            return None
        kept.used_at = now
        return kept

    def keeps(self, kept: Reading, seconds: float, *, polled: bool) -> float:
        """For how long it is given again.

        By the square root of its cost, which is where the sum of all ages is least within the budget.
        """
        if not polled:
            return max(seconds, PERSON_TIMES * kept.cost)
        since = time.monotonic() - OPEN_SECONDS
        with self._lock:
            roots = sum(math.sqrt(each.cost) for each in self._kept.values() if each.used_at >= since)
        return max(seconds, POLL_TIMES * math.sqrt(kept.cost) * roots)

    def keep(self, question: Hashable, value: Any, cost: float) -> Reading:
        """Give it from now on to whoever asks."""
        return self._keep(question, value, cost, self._kept)

    def _read(self, question: Hashable, read: Callable[[], Any], kept_by: dict[Hashable, Reading]) -> Reading:
        """Kept where it was begun: what was read before a person acted is not given after it."""
        began = time.monotonic()
        value = read()
        return self._keep(question, value, time.monotonic() - began, kept_by)

    def _keep(self, question: Hashable, value: Any, cost: float, kept_by: dict[Hashable, Reading]) -> Reading:
        now = time.monotonic()
        reading = Reading(value, now, cost, now)
        with self._lock:
            kept_by[question] = reading
            if len(kept_by) > _KEPT_MAX:
                del kept_by[min(kept_by, key=lambda each: kept_by[each].used_at)]
        return reading

    # -- counting ----------------------------------------------------------------------------------------------

    def _begin(self, question: Hashable, read: Callable[[], Any]) -> Future[Any]:
        with self._lock:
            if self._threads is None:
                self._threads = ThreadPoolExecutor(1, thread_name_prefix="effects-web-count")
            counting = self._counting.get(question)
            if counting is None:
                counting = self._threads.submit(self._count, question, read, self._kept, self._counting)
                self._counting[question] = counting
        return counting

    def _count(
        self, question: Hashable, read: Callable[[], Any], kept_by: dict[Hashable, Reading],
        counted_by: dict[Hashable, Future[Any]],
    ) -> Any:  # fmt: skip
        """What it raises stays for the next who asks."""
        value = self._read(question, read, kept_by).value
        with self._lock:
            counted_by.pop(question, None)
        return value

    def _await(self, question: Hashable, counting: Future[Any]) -> Any:
        if not wait([counting], self.patience).done:
            raise StillCountingError
        with self._lock:
            if self._counting.get(question) is counting:
                del self._counting[question]
        return counting.result()
