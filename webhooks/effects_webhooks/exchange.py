"""The record of one try: how far it came, how long each phase took, what was answered. Facts, no judgement."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal, TypeAlias

Phase: TypeAlias = Literal["resolve", "connect", "tls", "write", "answer", "body"]
BodyEnd: TypeAlias = Literal["whole", "cut", "broken"]


class Exchange:
    """One request and its answer, under one deadline for everything.

    The stream that carries it is pooled and knows no request; it finds the exchange of its thread through
    `current()`, clips every wait to `remaining()` and notes the phase.
    """

    def __init__(self, seconds: float) -> None:
        self.began = time.monotonic()
        self.deadline = self.began + seconds
        self.phase: Phase = "resolve"
        self.took: dict[Phase, float] = {}
        self.secure = False  # over verified TLS
        self.connected = False  # a fresh connection was made
        self.wrote = False  # something of the request may have left
        self.bytes_read = 0
        self.status: int | None = None
        self.head: list[tuple[bytes, bytes]] = []  # of the final answer
        self.answered_at = 0.0  # seconds since 1970, when the head had come
        self.failure: str | None = None  # a code, where there is no status
        self.reason: str | None = None  # words for it; safe to store
        self.body = b""
        self.body_end: BodyEnd = "whole"
        self._since = self.began

    def remaining(self) -> float:
        """Seconds left; 0 or less when they are used up."""
        return self.deadline - time.monotonic()

    def enter(self, phase: Phase) -> None:
        """A phase begins, and the one before it ends."""
        now = time.monotonic()
        self.took[self.phase] = self.took.get(self.phase, 0.0) + now - self._since
        self.phase, self._since = phase, now

    def end(self) -> None:
        """The last phase ends."""
        self.enter(self.phase)

    def header(self, name: str) -> str | None:
        """The first value of a header of the answer, as ASCII with escapes."""
        wanted = name.encode()
        found = next((value for known, value in self.head if known.lower() == wanted), None)
        return None if found is None else found.decode("ascii", errors="backslashreplace")

    def fail(self, code: str, reason: str) -> None:
        """There will be no status. The first reason stays: what follows from it says less."""
        if self.failure is None:
            self.failure, self.reason = code, reason


_local = threading.local()


def current() -> Exchange:
    """The exchange of this thread."""
    exchange: Exchange = _local.exchange
    return exchange


@contextmanager
def running(exchange: Exchange) -> Iterator[Exchange]:
    """Make it this thread's exchange."""
    _local.exchange = exchange
    try:
        yield exchange
    finally:
        _local.exchange = None
        exchange.end()
