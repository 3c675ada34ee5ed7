"""What a fault of the wire means, by its stage: a table, as data. The first row that fits holds."""

from __future__ import annotations

import msgspec

from effects_email.transport.base import Kind, Stage
from effects_email.transport.replies.codes import CONNECTING


class FaultRow(msgspec.Struct, frozen=True, kw_only=True):
    """What a fault of the wire means at these stages. `faults`: codes of `transport.faults`, blanks between."""

    stages: tuple[Stage, ...]
    faults: str
    kind: Kind
    reason: str


_BEFORE_DOT: tuple[Stage, ...] = ("mail", "rcpt", "data", "body", "request")
SESSION: tuple[Stage, ...] = (*CONNECTING, "auth")

FAULTS: tuple[FaultRow, ...] = (
    FaultRow(stages=SESSION, faults="dns_failed", kind="transport_down", reason="the server's name does not resolve"),
    FaultRow(stages=SESSION, faults="tls_unverified", kind="config",
             reason="the server's certificate cannot be verified"),
    FaultRow(stages=("connect",), faults="closed garbage tls_failed", kind="transport_down",
             reason="no connection to the server"),
    FaultRow(stages=("tls", "starttls"), faults="tls_failed", kind="transport_down", reason="the TLS handshake failed"),
    FaultRow(stages=("starttls",), faults="not_offered", kind="config", reason="the server offers no STARTTLS"),
    FaultRow(stages=("auth",), faults="not_offered", kind="config", reason="the server offers no way to log in"),
    FaultRow(stages=SESSION, faults="timeout", kind="transport_down", reason="no session with the server in time"),
    FaultRow(stages=SESSION, faults="garbage", kind="transport_down", reason="the server does not speak SMTP"),
    FaultRow(stages=SESSION, faults="closed tls_failed", kind="transport_down",
             reason="the server closed the connection before there was a session"),
    FaultRow(stages=SESSION, faults="not_offered other", kind="transport_down",
             reason="no session with the server: an unforeseen error"),
    FaultRow(stages=("mail",), faults="not_offered", kind="refused_message",
             reason="the message needs what the server does not offer"),
    FaultRow(stages=_BEFORE_DOT, faults="timeout", kind="retry", reason="no answer in time; nothing was sent"),
    FaultRow(stages=_BEFORE_DOT, faults="garbage", kind="retry",
             reason="the answer is not SMTP; the message was not sent"),
    FaultRow(stages=_BEFORE_DOT, faults="dns_failed closed tls_unverified tls_failed", kind="retry",
             reason="the connection ended before the message was sent"),
    FaultRow(stages=_BEFORE_DOT, faults="not_offered other", kind="retry",
             reason="an unforeseen error; the message was not sent"),
    FaultRow(stages=("dot",), faults="timeout", kind="unknown",
             reason="the message was sent and no answer came in time"),
    FaultRow(stages=("dot",), faults="garbage", kind="unknown",
             reason="the message was sent and the answer means nothing"),
    FaultRow(stages=("dot",), faults="dns_failed closed tls_unverified tls_failed not_offered other", kind="unknown",
             reason="the message was sent and the connection ended without an answer"),
)  # fmt: skip
