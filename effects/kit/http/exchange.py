"""One HTTP exchange under one deadline, without a library: what a start may import."""

from __future__ import annotations

import ssl
import time
from collections.abc import Mapping
from typing import Literal, TypeAlias

BodyEnd: TypeAlias = Literal["whole", "cut", "broken"]


class Exchange:
    """One request and its answer, under one deadline for everything.

        await client.send(exchange, "POST", target, headers, body, body_bytes_max=65536)
        exchange.end()

    The stream that carries it is kept for other requests and given the exchange with each. It clips every wait to
    `remaining()`, and announces each step. A package's subclass derives its phases from that.

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
        self.connected = False  # a fresh connection was made
        self.wrote = False  # something of the request may have left
        self.bytes_read = 0
        self.status: int | None = None
        self.head: list[tuple[bytes, bytes]] = []  # of the final answer
        self.unread: Mapping[str, int] = {}  # what of its head could not be read, and how often
        self.body = b""
        self.body_end: BodyEnd = "whole"
        self.failure: str | None = None  # a code, where there is no status
        self.reason: str | None = None  # words for it; safe to store
        self._since = self.began

    def end(self) -> None:
        """It is over, and so is its last phase."""
        self.enter(self.phase)

    def remaining(self) -> float:
        """Seconds left; 0 or less when they are used up."""
        return self.deadline - time.monotonic()

    def enter(self, phase: str) -> None:
        """A phase begins, and the one before it ends."""
        now = time.monotonic()
        self.took[self.phase] = self.took.get(self.phase, 0.0) + now - self._since
        self.phase, self._since = phase, now

    def header(self, name: str) -> str | None:
        """The first value of a header of the answer, as ASCII with escapes."""
        lowered = name.encode()
        value = next((content for header_name, content in self.head if header_name.lower() == lowered), None)
        return None if value is None else value.decode("ascii", errors="backslashreplace")

    def fail(self, code: str, reason: str) -> None:
        """Record a fault instead of a status. The first one stays: later ones are its consequences."""
        if self.failure is None:
            self.failure, self.reason = code, reason

    def answered(self, status: int, head: list[tuple[bytes, bytes]]) -> None:
        """The head of the answer has come, or as much of it as will: that it was cut short is no fault."""
        self.status = status
        self.head = head
        self.failure = self.reason = None

    async def clear(self) -> bool:
        """On an event loop, await what must be so before the request's first byte; return whether it waited.

        What this raises goes through, and nothing was sent.
        """
        return False

    def writing(self) -> None:
        """Bytes of the request are about to be sent. What this raises goes through, and these bytes are not sent."""

    def reading(self, bytes_max: int) -> int:
        """Bytes of the answer are about to be read; how many at most. What this raises goes through."""
        return bytes_max

    def handshake_failed(self, refused: ssl.SSLCertVerificationError | None) -> None:
        """TLS did not come about; `refused` where the certificate is why."""
