"""The record of one request to a provider's API: its release, its phases, and what there was instead of an answer."""

from __future__ import annotations

import ssl
from collections.abc import Callable, Mapping
from typing import Literal, TypeAlias

from effects.crashpoints import declare, point
from effects.http.exchange import Exchange

Fault: TypeAlias = Literal[
    "connect_failed", "connect_timeout", "tls_failed", "tls_unverified", "no_answer", "answer_timeout", "bad_answer"
]

declare(
    {
        "provider.released": "marked, nothing of the request written",
        "provider.written": "request written, nothing of the answer read",
        "provider.answered": "answer read, nothing recorded",
    }
)


class ProviderExchange(Exchange):
    """`status` and `fault` are never both set, and one of them is, at the end. Phases: connect, tls, release, body,
    answer.

    Args:
        release: called once, when a connection is open and right before the first byte of the request.
        seconds: for everything.
    """

    def __init__(self, release: Callable[[], None], seconds: float) -> None:
        super().__init__(seconds, "connect")
        self.headers: Mapping[str, str] = {}  # names in lower case
        self.fault: Fault | None = None
        self._release = release
        self._released = False

    def fail(self, fault: Fault) -> None:
        """There is no status. The first fault stays: what follows from it says less."""
        self.fault = self.fault or fault

    def writing(self) -> None:
        """The point of no return, once. What the caller's function raises goes through, and nothing was written."""
        if not self._released:
            self.enter("release")
            self._release()
            self._released = True
            self.enter("body")
            point("provider.released")

    def reading(self, bytes_max: int) -> int:
        if self.phase == "body":
            point("provider.written")
            self.enter("answer")
        return bytes_max

    def handshake_failed(self, refused: ssl.SSLCertVerificationError | None) -> None:
        self.fail("tls_unverified" if refused else "tls_failed")
