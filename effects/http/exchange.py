"""The record of one request: how far it came, how long each phase took, what was answered. Facts, no judgement."""

from __future__ import annotations

import ssl
import threading
import time
from types import TracebackType
from typing import Self

IN_HAND = threading.local()  # its `exchange` is that of the thread


class Exchange:
    """One request and its answer, under one deadline for everything.

        with exchange:
            pool.handle_request(request)

    The stream that carries it is pooled and knows no request; it finds the exchange of its thread, clips every wait to
    `remaining()`, and says what it is about to do. A package's own kind makes its phases of that.

    Args:
        seconds: for everything, from now.
        phase: the first.
    """

    def __init__(self, seconds: float, phase: str) -> None:
        self.began = time.monotonic()
        self.deadline = self.began + seconds
        self.phase = phase
        self.took: dict[str, float] = {}  # seconds
        self.tls: str | None = None  # the version, of the connection that was written to
        self.wrote = False  # something of the request may have left
        self.bytes_read = 0
        self.status: int | None = None
        self.body = b""
        self._since = self.began

    def __enter__(self) -> Self:
        """Make it this thread's."""
        IN_HAND.exchange = self
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """It is over, and so is its last phase."""
        IN_HAND.exchange = None
        self.enter(self.phase)

    @classmethod
    def current(cls) -> Self:
        """The exchange of this thread."""
        exchange: Self = IN_HAND.exchange
        return exchange

    def remaining(self) -> float:
        """Seconds left; 0 or less when they are used up."""
        return self.deadline - time.monotonic()

    def enter(self, phase: str) -> None:
        """A phase begins, and the one before it ends."""
        now = time.monotonic()
        self.took[self.phase] = self.took.get(self.phase, 0.0) + now - self._since
        self.phase, self._since = phase, now

    def writing(self) -> None:
        """Bytes of the request are about to be sent. What this raises goes through, and these bytes are not sent."""

    def reading(self, bytes_max: int) -> int:
        """Bytes of the answer are about to be read; how many at most. What this raises goes through."""
        return bytes_max

    def handshake_failed(self, refused: ssl.SSLCertVerificationError | None) -> None:
        """TLS did not come about; `refused` where the certificate is why."""
