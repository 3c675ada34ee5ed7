"""What a mail server's reply can be about, by its codes, what follows from that, and what a fault means: as data.

A reply is first read for what it is about, by `words` and the codes here. Only then does its basic code decide: 5xx is
final, 4xx is for now. A fault that is ours, the relay's or the server's is never held against a recipient. Rows are
tried from the top and the first that fits holds: special ones stand above general ones, and all rows of `words` above
these.

An exception on the wire is a fault too. The stage, which our own driver knows, decides the rest.

    SMTPServerDisconnected, ConnectionError, other OSError   closed
    TimeoutError                                             timeout
    socket.gaierror, socket.herror                           dns_failed
    ssl.SSLCertVerificationError                             tls_unverified
    other ssl.SSLError                                       tls_failed
    SMTPNotSupportedError                                    not_offered
    Garbage, other SMTPException, ValueError                 garbage
    anything else                                            other

smtplib's SMTPResponseException and its kin carry a reply; it is classified as one.
"""

from __future__ import annotations

import os
import smtplib
import socket
import ssl
from collections.abc import Mapping
from typing import Literal, TypeAlias, get_args

import msgspec

from effects_email.transport.base import About, Kind, Stage, Suppress

FaultCode: TypeAlias = Literal[
    "closed", "timeout", "dns_failed", "tls_unverified", "tls_failed", "not_offered", "garbage", "other"
]
FAULT_CODES: tuple[FaultCode, ...] = get_args(FaultCode)
_BRANCHES: tuple[tuple[type[BaseException], FaultCode], ...] = (  # the first that fits
    (ssl.SSLCertVerificationError, "tls_unverified"),
    (ssl.SSLEOFError, "closed"),
    (ssl.SSLZeroReturnError, "closed"),
    (TimeoutError, "timeout"),
    (ssl.SSLError, "tls_failed"),
    (socket.gaierror, "dns_failed"),
    (socket.herror, "dns_failed"),
    (smtplib.SMTPServerDisconnected, "closed"),
    (smtplib.SMTPNotSupportedError, "not_offered"),
    (smtplib.SMTPException, "garbage"),
    (OSError, "closed"),
    (ValueError, "garbage"),
)
CONNECTING: tuple[Stage, ...] = ("connect", "tls", "banner", "ehlo", "starttls")
ENVELOPE: tuple[Stage, ...] = ("mail", "rcpt", "data")
AFTER: tuple[Stage, ...] = ("body", "dot")
MESSAGE: tuple[Stage, ...] = (*ENVELOPE, *AFTER)
NAMED: tuple[Stage, ...] = ("rcpt", "data", *AFTER)  # a recipient has been named
_BEFORE_DOT: tuple[Stage, ...] = ("mail", "rcpt", "data", "body", "request")
SESSION: tuple[Stage, ...] = (*CONNECTING, "auth")
GREYLIST_SECONDS = 300.0
LONG_SECONDS = 3600.0  # a mailbox or a disk does not empty in minutes
BUSY_SECONDS = 900.0
RATE_SECONDS = 60.0
QUOTA_SECONDS = 3600.0  # a quota of a rolling day gives way bit by bit


class Garbage(smtplib.SMTPException):
    """What came is no SMTP reply, or more than one may be."""


class NoMechanism(smtplib.SMTPNotSupportedError):
    """The server offers no mechanism that fits; its text names those that it offers and those that would do."""


def system_reason(error: BaseException) -> str | None:
    """What the operating system, the resolver or the TLS library says of it; None if it says nothing that may be shown.

    Never the text of a reply: only words that no peer and no message can put there, and names of mechanisms.
    """
    if isinstance(error, ssl.SSLCertVerificationError):
        return error.verify_message or None
    if isinstance(error, ssl.SSLError):
        return (error.reason or "").replace("_", " ").lower() or None
    if isinstance(error, smtplib.SMTPException):
        return str(error) if isinstance(error, NoMechanism) else None
    if isinstance(error, socket.gaierror | socket.herror):
        return error.strerror or str(error)
    if isinstance(error, OSError) and error.errno:
        return os.strerror(error.errno)
    return "timed out" if isinstance(error, TimeoutError) else None


def fault_of(error: BaseException) -> FaultCode:
    """The one branch that an exception lands on."""
    return next((code for kind, code in _BRANCHES if isinstance(error, kind)), "other")


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """One row.

    `codes`: `421`, `4xx` or `500-504`, separated by blanks. `enhanced`: `5.1.1`, `x.7.*` (x: the reply's class), blanks
    between; empty: whatever there is; `none`: a reply without one. `says`: regular expressions for the text, of which
    one must be found, in any case. `sources`: where such replies are documented or were seen.
    """

    topic: str
    stages: tuple[Stage, ...]
    codes: str = "4xx 5xx"
    enhanced: str = ""
    says: tuple[str, ...] = ()
    sources: str = ""


CODES: tuple[Row, ...] = (
    # -- before there is a message ---------------------------------------------------------------------------
    Row(topic="no_session", stages=("banner", "ehlo")),
    Row(topic="no_tls", stages=("starttls",)),
    Row(topic="new_password", stages=("auth",), codes="432"),
    Row(topic="login", stages=("auth",)),
    Row(topic="misfit", stages=(*CONNECTING, "auth"), codes="2xx 3xx"),
    # -- at any stage of a message ---------------------------------------------------------------------------
    Row(topic="closing", stages=MESSAGE, codes="421"),
    Row(topic="credentials", stages=MESSAGE, codes="525 530 534 535 538"),
    Row(topic="misrouted", stages=MESSAGE, codes="521", sources="RFC 7504: the host takes no mail at all"),
    Row(topic="too_large", stages=MESSAGE, codes="5xx", enhanced="x.2.3 x.3.4"),
    Row(topic="too_many_recipients", stages=("rcpt",), codes="452 552", enhanced="x.5.3"),
    Row(topic="rate", stages=AFTER, codes="454", enhanced="x.7.*"),
    # -- MAIL ------------------------------------------------------------------------------------------------
    Row(topic="busy", stages=("mail",), codes="4xx"),
    Row(topic="too_large", stages=("mail",), codes="552"),
    Row(topic="sender", stages=("mail",), codes="501", enhanced="x.1.7 x.1.8"),
    Row(topic="protocol", stages=("mail", "rcpt"), codes="500 502-504 555"),
    Row(topic="protocol", stages=("mail",), codes="501"),
    Row(topic="sender", stages=("mail",), codes="5xx", sources="RFC 5321: no recipient has been named yet"),
    # -- RCPT, and what a server says of a recipient after it ----------------------------------------------------
    Row(topic="busy_mailbox", stages=NAMED, codes="450 451 452", enhanced="x.2.1",
        sources="Gmail SMTP errors and codes"),
    Row(topic="full_mailbox", stages=NAMED, enhanced="x.2.2"),
    Row(topic="full_server", stages=NAMED, enhanced="x.3.1"),
    Row(topic="sender", stages=NAMED, codes="5xx", enhanced="x.7.27"),
    Row(topic="moved", stages=NAMED, codes="5xx", enhanced="x.1.6"),
    Row(topic="unknown_address", stages=NAMED, codes="5xx", enhanced="x.1.1 x.1.2 x.1.3 x.1.10"),
    Row(topic="disabled_mailbox", stages=NAMED, codes="5xx", enhanced="x.2.1 x.7.17 x.7.18"),
    Row(topic="account", stages=NAMED, codes="5xx", enhanced="x.7.13",
        sources="IANA enhanced status codes: the account that has logged in is disabled"),
    Row(topic="unknown_address", stages=("rcpt",), codes="550", enhanced="x.5.0", says=("mailbox unavailable",),
        sources="Exchange Online NDR table: said of addresses at hotmail.com and outlook.com"),
    Row(topic="odd_address", stages=("rcpt",), codes="501"),
    Row(topic="busy", stages=AFTER, codes="4xx"),
    Row(topic="mailbox_refuses", stages=NAMED, codes="5xx", enhanced="x.2.*"),
    Row(topic="misrouted", stages=NAMED, codes="5xx", enhanced="x.3.* x.4.*"),
    Row(topic="protocol", stages=NAMED, codes="5xx", enhanced="x.5.*"),
    Row(topic="malformed", stages=NAMED, codes="5xx", enhanced="x.6.*"),
    Row(topic="closed_to_us", stages=NAMED, codes="5xx", enhanced="x.7.2", sources="IANA enhanced status codes"),
    Row(topic="policy", stages=NAMED, codes="5xx", enhanced="x.7.*"),
    Row(topic="asks_to_wait", stages=("rcpt",), codes="450 451"),
    Row(topic="busy", stages=("rcpt", "data"), codes="4xx"),
    Row(topic="moved", stages=("rcpt",), codes="551"),
    Row(topic="full_mailbox", stages=("rcpt",), codes="552", enhanced="none x.0.0"),
    Row(topic="policy", stages=("rcpt",), codes="554", enhanced="none x.0.0"),
    Row(topic="unnamed", stages=("rcpt",), codes="5xx"),
    Row(topic="too_large", stages=AFTER, codes="552"),
    Row(topic="refused", stages=("data", *AFTER), codes="5xx"),
)  # fmt: skip


class FaultRow(msgspec.Struct, frozen=True, kw_only=True):
    """What a fault of the wire means at these stages. `faults`: some of `FAULT_CODES`, blanks between."""

    stages: tuple[Stage, ...]
    faults: str
    kind: Kind
    reason: str


FAULTS: tuple[FaultRow, ...] = (
    FaultRow(stages=SESSION, faults="dns_failed", kind="transport_down", reason="the server's name does not resolve"),
    FaultRow(stages=SESSION, faults="tls_unverified", kind="config",
             reason="the server's certificate cannot be verified"),
    FaultRow(stages=("connect",), faults="closed garbage tls_failed", kind="transport_down",
             reason="no connection to the server"),
    FaultRow(stages=("tls", "starttls"), faults="tls_failed", kind="transport_down", reason="the TLS handshake failed"),
    FaultRow(stages=("starttls",), faults="not_offered", kind="config", reason="the server offers no STARTTLS"),
    FaultRow(stages=("auth",), faults="not_offered", kind="config",
             reason="the server offers no way to log in that fits"),
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


class Consequence(msgspec.Struct, frozen=True):
    """A verdict without its words. `after_seconds`: a floor. `suppress`: the address, at once or after repeats."""

    kind: Kind
    after_seconds: float | None = None
    suppress: Suppress | None = None


class Topic(msgspec.Struct, frozen=True):
    """One thing that a server may complain about. `final` follows a 5xx, `passing` a 4xx."""

    about: About
    reason: str
    final: Consequence
    passing: Consequence


_RETRY = Consequence("retry")
_LATER = Consequence("retry", GREYLIST_SECONDS)
_MESSAGE = Consequence("refused_message")
_CONFIG = Consequence("config")
_DOWN = Consequence("transport_down")
_RATE = Consequence("throttle", RATE_SECONDS)
_QUOTA = Consequence("throttle", QUOTA_SECONDS)
_HARD = Consequence("refused_recipient", suppress="hard")
_SOFT = Consequence("refused_recipient", suppress="soft")
_REFUSED = Consequence("refused_recipient")

TOPICS: Mapping[str, Topic] = {
    # -- one recipient ---------------------------------------------------------------------------------------
    "unknown_address": Topic("recipient", "the address does not exist", _HARD, _LATER),
    "disabled_mailbox": Topic("recipient", "the mailbox is disabled", _HARD, _LATER),
    "moved": Topic("recipient", "the address has moved away", _HARD, _LATER),
    "full_mailbox": Topic("recipient", "the mailbox is full", _SOFT, Consequence("retry", LONG_SECONDS)),
    "mailbox_refuses": Topic("recipient", "the mailbox takes no mail", _SOFT, _LATER),
    "closed_to_us": Topic("recipient", "the recipient takes mail of chosen senders only", _REFUSED, _LATER),
    "busy_mailbox": Topic(
        "recipient", "this recipient gets more mail than its server takes at present",
        Consequence("retry", LONG_SECONDS), Consequence("retry", BUSY_SECONDS),
    ),
    "odd_address": Topic("recipient", "the server takes no address of this form", _REFUSED, _LATER),
    "unnamed": Topic("recipient", "the address is refused without a reason", _SOFT, _LATER),
    # -- this message ----------------------------------------------------------------------------------------
    "too_large": Topic("message", "the message is too large", _MESSAGE, _RETRY),
    "content": Topic("message", "the server refuses the message's content", _MESSAGE, _RETRY),
    "malformed": Topic("message", "the server cannot carry a message of this form", _MESSAGE, _RETRY),
    "policy": Topic("message", "refused by policy, which does not concern the address", _MESSAGE, _LATER),
    "refused": Topic("message", "the server refuses the message", _MESSAGE, _RETRY),
    # -- our sender, our address, our account ----------------------------------------------------------------
    "sender": Topic("sender", "the server refuses our sender address", _CONFIG, _LATER),
    "unauthenticated": Topic("sender", "our mail does not pass SPF, DKIM or DMARC", _CONFIG, _LATER),
    "listed": Topic(
        "reputation", "our IP address or domain is on a list of bad senders",
        _CONFIG, Consequence("retry", BUSY_SECONDS),
    ),
    "bad_company": Topic(
        "reputation", "the server counts too many bad addresses in what we send",
        Consequence("retry", LONG_SECONDS), Consequence("retry", BUSY_SECONDS),
    ),
    "client": Topic("reputation", "the server refuses our IP address or the name that we give", _CONFIG, _LATER),
    "relay": Topic("account", "the server does not relay for us: credentials or its list of clients", _CONFIG, _CONFIG),
    "credentials": Topic("account", "the server asks for authentication or TLS", _CONFIG, _CONFIG),
    "account": Topic("account", "our account is blocked or may not send", _CONFIG, _CONFIG),
    "quota": Topic("account", "the quota of our account is used up", _QUOTA, _QUOTA),
    # -- our rate --------------------------------------------------------------------------------------------
    "rate": Topic("rate", "we send faster than the server allows", _QUOTA, _RATE),
    "deferred": Topic(
        "rate", "the recipient's provider defers mail from our address",
        Consequence("throttle", BUSY_SECONDS), Consequence("throttle", BUSY_SECONDS),
    ),
    # -- the server ------------------------------------------------------------------------------------------
    "greylisted": Topic("server", "the server asks a stranger to wait", _LATER, _LATER),
    "asks_to_wait": Topic("server", "the recipient's server asks to wait", _MESSAGE, _LATER),
    "too_many_recipients": Topic(
        "server", "too many recipients at once", Consequence("retry", 0.0), Consequence("retry", 0.0)
    ),
    "full_server": Topic("server", "the server's disk is full", _MESSAGE, Consequence("retry", LONG_SECONDS)),
    "misrouted": Topic("server", "the server cannot route or process the message", _MESSAGE, _RETRY),
    "busy": Topic("server", "the server takes no message at present", _MESSAGE, _RETRY),
    "protocol": Topic(
        "server", "the server does not understand a command: a fault of ours, or of the server", _MESSAGE, _RETRY
    ),
    "closing": Topic("server", "the server closes the session; nothing was taken", _MESSAGE, _RETRY),
    # -- before there is a message ---------------------------------------------------------------------------
    "no_session": Topic("server", "the server takes no session", _CONFIG, _DOWN),
    "no_tls": Topic("server", "the server refuses STARTTLS", _CONFIG, _DOWN),
    "login": Topic("account", "the server refuses our credentials", _CONFIG, _DOWN),
    "new_password": Topic("account", "the server asks for a new password", _CONFIG, _CONFIG),
    "misfit": Topic("server", "the server's answer does not fit the question", _DOWN, _DOWN),
}  # fmt: skip
