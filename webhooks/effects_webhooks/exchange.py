"""The record of one try: its phases, its bounds, and what there is to say of an answer or of the lack of one."""

from __future__ import annotations

import ssl
from typing import Literal, TypeAlias

import httpcore

from effects.crashpoints import declare, point
from effects.http.exchange import Exchange

BodyEnd: TypeAlias = Literal["whole", "cut", "broken"]

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
        self.connected = False  # a fresh connection was made
        self.head: list[tuple[bytes, bytes]] = []  # of the final answer
        self.answered_at = 0.0  # seconds since 1970, when the head had come
        self.failure: str | None = None  # a code, where there is no status
        self.reason: str | None = None  # words for it; safe to store
        self.body_end: BodyEnd = "whole"

    def header(self, name: str) -> str | None:
        """The first value of a header of the answer, as ASCII with escapes."""
        wanted = name.encode()
        found = next((value for known, value in self.head if known.lower() == wanted), None)
        return None if found is None else found.decode("ascii", errors="backslashreplace")

    def fail(self, code: str, reason: str) -> None:
        """There will be no status. The first reason stays: what follows from it says less."""
        if self.failure is None:
            self.failure, self.reason = code, reason

    def writing(self) -> None:
        if self.phase != "write":
            point("webhook.connected")
            self.enter("write")

    def reading(self, bytes_max: int) -> int:
        """As many as there is room for.

        Raises:
            httpcore.ReadError: there is none.
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
