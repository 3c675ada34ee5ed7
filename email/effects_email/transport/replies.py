"""What an SMTP reply means, by stage, basic code and enhanced code: the table, as data.

The basic code decides. An enhanced code (RFC 3463) refines it, if it is of the same class. Rows are tried from the top
and the first that fits holds, so special ones stand above general ones.
"""

from __future__ import annotations

import re

import msgspec

from effects_email.transport.base import Kind, Stage, Suppress

GREYLIST_SECONDS = 300.0
LONG_SECONDS = 3600.0  # a mailbox or a disk does not empty in minutes
RATE_SECONDS = 60.0
QUOTA_SECONDS = 3600.0  # a quota of a rolling day gives way bit by bit

_CONNECTING: tuple[Stage, ...] = ("connect", "tls", "banner", "ehlo", "starttls")
_ENVELOPE: tuple[Stage, ...] = ("mail", "rcpt", "data")
_AFTER: tuple[Stage, ...] = ("body", "dot")
_MESSAGE: tuple[Stage, ...] = (*_ENVELOPE, *_AFTER)

# What providers say, whatever the code; checked against replies that they publish or that people quote.
_RATE = (
    r"throttl|rate.?limit|rate exceeded|(sending|send|message) rate|per.second (message|sending|send)"
    r"|too many (messages|e-?mails|requests)|too (quick|fast)|slow down"
)
_QUOTA = r"(daily|24.hour|monthly) [\w ]*(quota|limit)|quota exceeded for (today|the day)|limit (for|of) the day"
_RELAY = (
    r"relay(ing)? (access )?(denied|not (permitted|allowed))|(not permitted|unable|denied) to relay"
    r"|authentication (is )?required"
)


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """One row.

    `codes`: `421`, `4xx` or `500-504`, separated by blanks. `enhanced`: `5.1.1`, `x.7.*` (x: the reply's class), blanks
    between; empty: whatever there is; `none`: a reply without one. `says`: a regular expression for the text.
    """

    stages: tuple[Stage, ...]
    codes: str
    kind: Kind
    reason: str
    enhanced: str = ""
    says: str = ""
    after_seconds: float | None = None  # a floor
    suppress: Suppress | None = None


REPLIES: tuple[Row, ...] = (
    # -- what a provider's words say -------------------------------------------------------------------------
    Row(stages=_MESSAGE, codes="4xx 5xx", says=_QUOTA, kind="throttle", after_seconds=QUOTA_SECONDS,
        reason="the quota of our account is used up"),
    Row(stages=("rcpt", *_AFTER), codes="450 451 452", enhanced="4.2.1", kind="retry", after_seconds=900.0,
        reason="this recipient gets more than its server takes at present"),
    Row(stages=_MESSAGE, codes="421 451", says=r"\[?\bTSS?\d{2}\b", kind="throttle", after_seconds=900.0,
        reason="the recipient's provider defers mail from our address"),
    Row(stages=_MESSAGE, codes="554", says=r"\bRLY:(CS|CH|NW)\d|\bRLY:B[123]\b", kind="throttle", after_seconds=900.0,
        reason="the recipient's provider limits our rate"),
    Row(stages=_MESSAGE, codes="4xx", says=_RATE, kind="throttle", after_seconds=RATE_SECONDS,
        reason="we send faster than the server allows"),
    Row(stages=("mail", "rcpt"), codes="4xx 5xx", says=_RELAY, kind="config",
        reason="the server does not relay for us: credentials or its list of clients"),
    # -- before there is a message ---------------------------------------------------------------------------
    Row(stages=("banner", "ehlo"), codes="4xx", kind="transport_down", reason="the server takes no session at present"),
    Row(stages=("banner", "ehlo"), codes="5xx", kind="config", reason="the server refuses to talk to us"),
    Row(stages=("starttls",), codes="4xx", kind="transport_down", reason="the server has no TLS at present"),
    Row(stages=("starttls",), codes="5xx", kind="config", reason="the server refuses STARTTLS"),
    Row(stages=("auth",), codes="432", kind="config", reason="the server asks for a new password"),
    Row(stages=("auth",), codes="4xx", kind="transport_down", reason="the server cannot check credentials at present"),
    Row(stages=("auth",), codes="5xx", kind="config", reason="the server refuses our credentials"),
    Row(stages=(*_CONNECTING, "auth"), codes="2xx 3xx", kind="transport_down",
        reason="the server's answer does not fit the question"),
    # -- MAIL, RCPT, DATA ------------------------------------------------------------------------------------
    Row(stages=_MESSAGE, codes="421", kind="retry", reason="the server closes the session; nothing was taken"),
    Row(stages=_ENVELOPE, codes="530 534 535 538", kind="config", reason="the server asks for authentication or TLS"),
    Row(stages=("mail",), codes="4xx", kind="retry", reason="the server takes no message at present"),
    Row(stages=("mail",), codes="552", kind="refused_message", reason="the message is too large for the server"),
    Row(stages=("mail",), codes="5xx", enhanced="x.2.3 x.3.4", kind="refused_message",
        reason="the message is too large for the server"),
    Row(stages=("mail",), codes="550 553", enhanced="x.1.7 x.1.8 x.7.*", kind="config",
        reason="the server refuses our sender address"),
    Row(stages=("mail",), codes="553", kind="config", reason="the server refuses our sender address"),
    Row(stages=("mail",), codes="554", kind="config", reason="the server refuses mail from us"),
    Row(stages=("mail",), codes="501", enhanced="x.1.7 x.1.8", kind="config",
        reason="the server refuses our sender address"),
    Row(stages=("rcpt",), codes="501", enhanced="x.1.*", kind="refused_recipient", suppress="hard",
        reason="the address is none"),
    Row(stages=("mail", "rcpt"), codes="500-504 555", kind="refused_message",
        reason="the server does not understand a command: a fault of ours, or of the server"),
    Row(stages=("mail",), codes="5xx", enhanced="x.7.*", kind="config", reason="the server refuses our sender address"),
    Row(stages=("mail",), codes="5xx", kind="refused_message", reason="the server refuses the message"),
    Row(stages=("rcpt",), codes="452 552", enhanced="x.5.3", kind="retry", after_seconds=0.0,
        reason="too many recipients at once"),
    Row(stages=("rcpt",), codes="4xx", enhanced="x.2.2 x.3.1", kind="retry", after_seconds=LONG_SECONDS,
        reason="the mailbox or the server is full"),
    Row(stages=("rcpt",), codes="450 451", kind="retry", after_seconds=GREYLIST_SECONDS,
        reason="the recipient's server asks to wait"),
    Row(stages=("rcpt",), codes="4xx", kind="retry", reason="the recipient cannot be served at present"),
    Row(stages=("rcpt",), codes="5xx", enhanced="x.1.7 x.1.8", kind="config",
        reason="the server refuses our sender address"),
    Row(stages=("rcpt",), codes="550 551 553 554 556", enhanced="x.1.*", kind="refused_recipient", suppress="hard",
        reason="the address does not exist"),
    Row(stages=("rcpt",), codes="550 551 553 554 556", enhanced="x.2.1", kind="refused_recipient", suppress="hard",
        reason="the mailbox is disabled"),
    Row(stages=("rcpt",), codes="550 551 553 554 556", enhanced="x.7.13 x.7.17 x.7.18", kind="refused_recipient",
        suppress="hard", reason="the account is disabled or changed its owner"),
    Row(stages=("rcpt",), codes="5xx", enhanced="x.2.2", kind="refused_recipient", suppress="soft",
        reason="the mailbox is full, and the server has given up"),
    Row(stages=("rcpt",), codes="5xx", enhanced="x.2.3 x.3.4", kind="refused_message",
        reason="the message is too large for the recipient"),
    Row(stages=("rcpt",), codes="5xx", enhanced="x.7.*", kind="refused_message",
        reason="refused by policy or reputation, which says nothing about the address"),
    Row(stages=("rcpt",), codes="5xx", enhanced="x.6.*", kind="refused_message",
        reason="the server cannot carry a message of this form"),
    Row(stages=("rcpt",), codes="5xx", enhanced="x.2.*", kind="refused_recipient", suppress="soft",
        reason="the mailbox takes no mail"),
    Row(stages=("rcpt",), codes="551", kind="refused_recipient", suppress="hard", reason="the address has moved away"),
    Row(stages=("rcpt",), codes="552", enhanced="none", kind="refused_recipient", suppress="soft",
        reason="the mailbox is full"),
    Row(stages=("rcpt",), codes="554", enhanced="none", kind="refused_message", reason="refused by policy"),
    Row(stages=("rcpt",), codes="5xx", kind="refused_recipient", suppress="soft",
        reason="the address is refused, without a word about why"),
    Row(stages=("data",), codes="4xx", kind="retry", reason="the server takes no message at present"),
    Row(stages=("data",), codes="5xx", kind="refused_message", reason="the server refuses the message"),
    # -- the body and the dot --------------------------------------------------------------------------------
    Row(stages=_AFTER, codes="454", enhanced="x.7.*", kind="throttle", after_seconds=RATE_SECONDS,
        reason="we send faster than the server allows"),
    Row(stages=_AFTER, codes="4xx", enhanced="x.2.2 x.3.1", kind="retry", after_seconds=LONG_SECONDS,
        reason="the mailbox or the server is full"),
    Row(stages=_AFTER, codes="4xx", kind="retry", reason="the server did not take the message; a definite answer"),
    Row(stages=_AFTER, codes="5xx", enhanced="x.1.7 x.1.8", kind="config",
        reason="the server refuses our sender address"),
    Row(stages=_AFTER, codes="5xx", enhanced="x.1.*", kind="refused_recipient", suppress="hard",
        reason="the address does not exist"),
    Row(stages=_AFTER, codes="5xx", enhanced="x.2.2", kind="refused_recipient", suppress="soft",
        reason="the mailbox is full, and the server has given up"),
    Row(stages=_AFTER, codes="5xx", enhanced="x.2.1 x.2.4", kind="refused_recipient", suppress="soft",
        reason="the mailbox takes no mail"),
    Row(stages=_AFTER, codes="552", kind="refused_message", reason="the message is too large"),
    Row(stages=_AFTER, codes="5xx", kind="refused_message", reason="the server refuses the message"),
)  # fmt: skip

ACCEPTED = "the next hop took responsibility"
MEANINGLESS = "the server's answer means nothing here"


class FaultRow(msgspec.Struct, frozen=True, kw_only=True):
    """What a fault of the wire means at these stages. `faults`: codes of `transport.faults`, blanks between."""

    stages: tuple[Stage, ...]
    faults: str
    kind: Kind
    reason: str


_BEFORE_DOT: tuple[Stage, ...] = ("mail", "rcpt", "data", "body", "request")
SESSION: tuple[Stage, ...] = (*_CONNECTING, "auth")

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
             reason="no session with the server: an error that nobody foresaw"),
    FaultRow(stages=("mail",), faults="not_offered", kind="refused_message",
             reason="the message needs what the server does not offer"),
    FaultRow(stages=_BEFORE_DOT, faults="timeout", kind="retry", reason="no answer in time; nothing was sent"),
    FaultRow(stages=_BEFORE_DOT, faults="garbage", kind="retry",
             reason="the answer is not SMTP; the message was not sent"),
    FaultRow(stages=_BEFORE_DOT, faults="dns_failed closed tls_unverified tls_failed", kind="retry",
             reason="the connection ended before the message was sent"),
    FaultRow(stages=_BEFORE_DOT, faults="not_offered other", kind="retry",
             reason="an error that nobody foresaw; the message was not sent"),
    FaultRow(stages=("dot",), faults="timeout", kind="unknown",
             reason="the message was sent and no answer came in time"),
    FaultRow(stages=("dot",), faults="garbage", kind="unknown",
             reason="the message was sent and the answer means nothing"),
    FaultRow(stages=("dot",), faults="dns_failed closed tls_unverified tls_failed not_offered other", kind="unknown",
             reason="the message was sent and the connection ended without an answer"),
)  # fmt: skip


def compiled(text: str) -> re.Pattern[str]:
    """A row's `says`."""
    return re.compile(text, re.IGNORECASE)
