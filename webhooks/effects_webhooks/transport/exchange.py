"""The record of one try: phases, bounds, and the response or the fault."""

from __future__ import annotations

import ssl
import time
from typing import TYPE_CHECKING

from effects.extend import Exchange, declare, lazy, point

if TYPE_CHECKING:
    import httpcore
else:
    httpcore = lazy.module("httpcore")

DEADLINE_SECONDS = 15.0
HEAD_BYTES_MAX = 64 * 1024  # of one answer's head, with the interim answers before it
WIRE_BYTES_MAX = 256 * 1024  # of one answer, with the framing of its body

declare(
    {
        "webhook.connected": "connection open, nothing of the request written",
        "webhook.written": "request written, nothing of the answer read",
        "webhook.answered": "answer read, outcome not recorded",
    }
)


class WebhookExchange(Exchange):
    """Phases: resolve, connect, tls, write, answer (until the head has come), body."""

    def __init__(self, seconds: float) -> None:
        super().__init__(seconds, "resolve")
        self.secure = False  # over verified TLS
        self.answered_at = 0.0  # seconds since 1970, when the head had come

    def answered(self, status: int, head: list[tuple[bytes, bytes]]) -> None:
        super().answered(status, head)
        self.answered_at = time.time()
        self.enter("body")

    def writing(self) -> None:
        if self.phase != "write":
            point("webhook.connected")
            self.enter("write")

    def reading(self, bytes_max: int) -> int:
        """As many as there is room for.

        Raises:
            httpcore.ReadError: no time is left.
        """
        if self.phase == "write":
            point("webhook.written")
            self.enter("answer")
        room = (HEAD_BYTES_MAX if self.phase == "answer" else WIRE_BYTES_MAX) - self.bytes_read
        if room <= 0:
            self.fail("answer_too_long", "the answer's headers do not end")
            raise httpcore.ReadError("too much")
        return min(bytes_max, room)

    def handshake_failed(self, refused: ssl.SSLCertVerificationError | None) -> None:
        self.fail("tls_failed", f"TLS: {refused.verify_message if refused else 'handshake failed'}")
