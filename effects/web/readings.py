"""Answers of the database that many pages ask for: read once for all, and kept for a moment."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Hashable
from typing import Any, NamedTuple, TypeVar

T = TypeVar("T")
# An answer that took long is kept for longer: one question costs the database at most a third of a percent of its time.
COST_TIMES = 300.0


class _Reading(NamedTuple):
    value: Any
    read_at: float
    kept_seconds: float


class Readings:
    """What was read last, by question. Of many who ask at once one reads, and the others wait for it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._locks: dict[Hashable, threading.Lock] = {}
        self._kept: dict[Hashable, _Reading] = {}

    def get(self, question: Hashable, seconds: float, read: Callable[[], T]) -> T:
        """The answer, at most `seconds` old, or 300 times as long as it took to read.

        What `read` raises is passed on, and nothing is kept. Questions are few: they are names in our code, never what
        a person types.
        """
        with self._lock:
            lock = self._locks.setdefault(question, threading.Lock())
        with lock:
            kept = self._kept.get(question)
            if kept is None or time.monotonic() - kept.read_at > kept.kept_seconds:
                kept = self._kept[question] = self._read(read, seconds)
            answer: T = kept.value
            return answer

    def forget(self) -> None:
        """Read again from here on: a person has acted."""
        with self._lock:
            self._kept.clear()

    @staticmethod
    def _read(read: Callable[[], Any], seconds: float) -> _Reading:
        began = time.monotonic()
        value = read()
        ended = time.monotonic()
        return _Reading(value, ended, max(seconds, COST_TIMES * (ended - began)))
