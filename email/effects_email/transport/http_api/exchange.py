"""The record of one request to a provider's API: its release, its phases, and what there was instead of an answer."""

from __future__ import annotations

import ssl
from collections.abc import Awaitable, Callable

import httpcore

from effects.extend import Exchange, declare, point

WIRE_BYTES_MAX = 256 * 1024  # of one answer, with its head, the interim answers before it and its framing

_SAME = {"tls_timeout": "connect_timeout", "bad_url": "connect_failed"}  # verdicts do not tell these apart

declare(
    {
        "provider.released": "marked, nothing of the request written",
        "provider.written": "request written, nothing of the answer read",
        "provider.answered": "answer read, nothing recorded",
    }
)


class ProviderExchange(Exchange):
    """`status` and `failure` are never both set, and one of them is, at the end. Phases: connect, tls, release, body,
    answer.

    Args:
        release: awaited once, when a connection is open and right before the first byte of the request.
        seconds: for everything.
    """

    def __init__(self, release: Callable[[], Awaitable[None]], seconds: float) -> None:
        super().__init__(seconds, "connect")
        self._release = release
        self._released = False

    def fail(self, code: str, reason: str) -> None:
        """Record a fault that `http_table` has a row for."""
        super().fail(_SAME.get(code, code), reason)

    async def clear(self) -> bool:
        """The point of no return, once. What the caller's function raises goes through, and nothing was written."""
        if self._released:
            return False
        self.enter("release")
        await self._release()
        self._released = True
        return True

    def writing(self) -> None:
        if self.phase == "release":
            point("provider.released")
        if self.phase != "body":  # the first connection that is written to, or one after it that was not
            self.enter("body")

    def reading(self, bytes_max: int) -> int:
        """As many as there is room for.

        Raises:
            httpcore.ReadError: no time is left.
        """
        if self.phase == "body":
            point("provider.written")
            self.enter("answer")
        room = WIRE_BYTES_MAX - self.bytes_read
        if room <= 0:
            self.fail("bad_answer", "the answer is too long")
            raise httpcore.ReadError("too much")
        return min(bytes_max, room)

    def handshake_failed(self, refused: ssl.SSLCertVerificationError | None) -> None:
        self.fail("tls_unverified" if refused else "tls_failed", "the TLS handshake failed")
