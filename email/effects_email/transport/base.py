"""What every transport takes and gives back."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from typing import Any, Literal, Protocol, TypeAlias, TypeVar

import msgspec

from effects_email.message.source import MessageSource

# What became of a message, or of one recipient of it. `accepted`: the next hop took responsibility. `throttle`,
# `config` and `transport_down` are about the way and not about the message: they cost it no attempt. `unknown`: the
# body was released and no verdict came.
Kind: TypeAlias = Literal[
    "accepted", "retry", "throttle", "refused_recipient", "refused_message", "config", "transport_down", "unknown"
]
Answer = TypeVar("Answer")
Stage: TypeAlias = Literal[
    "connect", "tls", "banner", "ehlo", "starttls", "auth", "mail", "rcpt", "data", "body", "dot", "request"
]
Suppress: TypeAlias = Literal["hard", "soft"]
# What a refusal is about. `sender`: our address or domain; `reputation`: our IP address, its name, lists of bad
# senders; `account`: our login, permission or quota at the relay; `server`: itself, or what it made of our commands.
About: TypeAlias = Literal["recipient", "message", "sender", "reputation", "account", "rate", "server"]


class OutgoingMessage(msgspec.Struct, frozen=True, kw_only=True):
    """One message for the wire. Every try of it has the same bytes, Message-ID and key."""

    sender: str  # the envelope's
    recipients: tuple[str, ...]  # the envelope's, those that no try has served yet; at least one
    data: bytes  # RFC 5322 with CRLF line ends, not dot-stuffed
    source: MessageSource  # the source of `data`, for provider APIs that take fields
    message_id: str  # without the angle brackets
    key: str  # for a provider that knows idempotency keys
    utf8: bool = False  # an address needs SMTPUTF8


class Reply(msgspec.Struct, frozen=True, kw_only=True):
    """The peer's response and its stage. `text`: 512 characters at most; it may hold an address, never log it."""

    stage: Stage
    code: int | None = None
    enhanced: str | None = None
    text: str = ""


class Verdict(msgspec.Struct, frozen=True, kw_only=True):
    """A row of the classification table, applied."""

    kind: Kind
    code: str  # for the attempt log and filters: `smtp_550_5.1.1`, `timeout`
    reason: str  # the table's own words, safe to log
    reply: Reply | None = None
    after_seconds: float | None = None  # the peer's own wish, or the row's floor
    suppress: Suppress | None = None
    about: About | None = None  # None: accepted, or no response


class SendResult(msgspec.Struct, frozen=True, kw_only=True):
    """The result of one send. `recipients` has a verdict for each address of the message."""

    verdict: Verdict
    recipients: Mapping[str, Verdict]
    provider_id: str | None = None
    peer: str | None = None
    tls: str | None = None
    phases: Mapping[str, float] = {}  # seconds: connect, tls, auth, envelope, release, body, answer


class Transport(Protocol):
    """One way out. `send` may be called by many threads at once."""

    name: str
    key_lifetime_seconds: float | None  # None: it knows no idempotency keys
    traceable: bool  # the fate of a message can be found out: it knows keys, or can be asked
    rate_per_second: int | None  # messages that a new account may send; None: it names no rate

    def send(self, outgoing: OutgoingMessage, *, release: Callable[[], None], seconds: float) -> SendResult:
        """Send, and return a verdict per recipient.

        `release` is called once, right before the effect may happen; what it raises (LeaseLost) goes through, and
        nothing may have been sent then. Everything else that can happen on the wire is a verdict, never an
        exception. Ends within `seconds`.
        """
        ...

    def ask(self, outgoing: OutgoingMessage) -> bool | None:
        """Whether the provider knows this message; None if it cannot be asked or did not answer."""
        ...

    def close(self) -> None:
        """Close idle connections."""
        ...


class LoopTransport(Transport, Protocol):
    """One that can be used from an event loop, a thousand messages at a time. Derive it from `SendsOnLoop`."""

    async def send_on_loop(
        self, outgoing: OutgoingMessage, *, release: Callable[[], Awaitable[None]], seconds: float
    ) -> SendResult:
        """`send`, awaited. Where its task is cancelled, the effect may have happened once `release` was called."""
        ...

    async def ask_on_loop(self, outgoing: OutgoingMessage) -> bool | None:
        """`ask`, awaited."""
        ...


class SendsOnLoop:
    """Gives a `LoopTransport` what callers in a thread use: each call has an event loop of its own."""

    def send(
        self: LoopTransport, outgoing: OutgoingMessage, *, release: Callable[[], None], seconds: float
    ) -> SendResult:
        async def release_here() -> None:
            release()

        return _in_own_loop(self.send_on_loop(outgoing, release=release_here, seconds=seconds))

    def ask(self: LoopTransport, outgoing: OutgoingMessage) -> bool | None:
        return _in_own_loop(self.ask_on_loop(outgoing))


def _in_own_loop(coroutine: Coroutine[Any, Any, Answer]) -> Answer:
    with asyncio.Runner() as runner:
        return runner.run(coroutine)
