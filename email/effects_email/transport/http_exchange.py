"""One request to a provider's API and its answer, under one deadline: how far it came, and what was answered."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Literal, TypeAlias

HttpPhase: TypeAlias = Literal["connect", "tls", "release", "body", "answer"]
Fault: TypeAlias = Literal[
    "connect_failed", "connect_timeout", "tls_failed", "tls_unverified", "no_answer", "answer_timeout", "bad_answer"
]


class Exchange:
    """Facts, no judgement. `status` and `fault` are never both set, and one of them is, at the end.

    Args:
        release: called once, when a connection is open and right before the first byte of the request.
        seconds: for everything.
    """

    def __init__(self, release: Callable[[], None], seconds: float) -> None:
        self.deadline = time.monotonic() + seconds
        self.wrote = False  # something of the request may have left
        self.read_any = False  # something of an answer came
        self.status: int | None = None
        self.headers: Mapping[str, str] = {}  # names in lower case
        self.body = b""
        self.fault: Fault | None = None
        self.tls: str | None = None
        self.took: dict[str, float] = {}
        self._release = release
        self._released = False
        self._phase: HttpPhase = "connect"
        self._since = time.monotonic()

    def remaining(self) -> float:
        """Seconds left; 0 or less when they are used up."""
        return self.deadline - time.monotonic()

    def enter(self, phase: HttpPhase) -> None:
        """A phase begins, and the one before it ends."""
        now = time.monotonic()
        self.took[self._phase] = self.took.get(self._phase, 0.0) + now - self._since
        self._phase, self._since = phase, now

    @property
    def phase(self) -> HttpPhase:
        return self._phase

    def release(self) -> None:
        """The point of no return. What the caller's function raises goes through, and nothing was written."""
        if not self._released:
            self.enter("release")
            self._release()
            self._released = True
            self.enter("body")

    def fail(self, fault: Fault) -> None:
        """There is no status. The first fault stays: what follows from it says less."""
        self.fault = self.fault or fault


_local = threading.local()


def current() -> Exchange:
    """The exchange of this thread. A pooled connection knows no request; it finds it here."""
    exchange: Exchange = _local.exchange
    return exchange


@contextmanager
def running(exchange: Exchange) -> Iterator[None]:
    """Make it this thread's exchange."""
    _local.exchange = exchange
    try:
        yield
    finally:
        _local.exchange = None
        exchange.enter(exchange.phase)
