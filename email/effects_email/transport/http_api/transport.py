"""A provider's HTTP API as a transport: what all providers have in common, and traits that several share.

What an answer means is said by tables of rows, of which the first that fits counts. An answer of 2xx is *accepted*,
even one that cannot be read: the provider has the message, and what it said of it is less. After the request had
left, no answer, and a status that leaves it open whether anything was done, are *unknown*; where the provider knows
idempotency keys the job then repeats with the same one, and that is safe.
"""

from __future__ import annotations

import asyncio
import os
import re
import ssl
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from functools import cache
from typing import Any, ClassVar, Protocol
from urllib.parse import urlsplit

import msgspec

from effects.extend.text import HIDDEN, escape_unprintable
from effects_email.transport.base import Kind, OutgoingMessage, Reply, SendResult, SendsOnLoop, Suppress, Verdict
from effects_email.transport.http_api import fields
from effects_email.transport.http_api.client import ProviderClient, ProviderExchange
from effects_email.transport.replies.verdicts import TEXT_CHARS_MAX
from effects_email.transport.url import TransportURL

HINT_MAX_SECONDS = 6 * 3600.0
ACCEPTED = "the provider took the message"
_WAITING = ("retry", "throttle", "transport_down", "unknown")  # where a wish to wait makes sense
_WAIT_HEADERS = ("retry-after", "ratelimit-reset")
_SECONDS = re.compile(r"[0-9]{1,9}(\.[0-9]{1,9})?")
RECIPIENTS_MAX = 50  # of one message; Resend, Postmark and SES refuse more
DEADLINE_SECONDS = 120.0  # of a whole send; an API that has not answered by then will not
ASK_SECONDS = 15.0
REPEAT_SECONDS = 30.0  # before a try with the same key: the first one may still be under way
_INLINE_BYTES_MAX = 64 * 1024  # a longer message is made into its request beside the loop
_TOKEN = re.compile(r"[\x21-\x7e]{1,400}")
_LOOPBACK = ("localhost", "127.0.0.1", "::1")
_UTF8_RECIPIENT = Verdict(
    kind="refused_recipient", code="utf8_unsupported",
    reason="the part before the @ is not ASCII, and the provider's API takes no such address",
)  # fmt: skip
_UTF8_SENDER = Verdict(
    kind="refused_message", code="utf8_unsupported",
    reason="the sender's part before the @ is not ASCII, and the provider's API takes no such address",
)  # fmt: skip
_TOO_MANY = Verdict(
    kind="refused_message", code="too_many_recipients", reason=f"more than {RECIPIENTS_MAX} recipients in one message"
)
_ONLY_HIDDEN = Verdict(
    kind="refused_message", code="only_bcc_left",
    reason="only recipients in Bcc are left, and the provider's API would show the first of them to the others",
)  # fmt: skip
_NO_CONTENT = Verdict(
    kind="refused_message", code="content_missing", reason="the message's bytes do not hold a file that it names"
)
_UNSIGNED = Verdict(kind="config", code="no_credentials", reason="there are no credentials to sign the request with")
_HEADERS = {
    "accept": "application/json",
    "accept-encoding": "identity",  # a compressed answer could be a bomb
    "content-type": "application/json",
    "user-agent": "effects",
}


class HttpRow(msgspec.Struct, frozen=True):
    """One row. Empty fields match anything.

    Args:
        statuses: `429`, `500-504`, several parted by spaces.
        codes: the provider's own codes, parted by spaces.
        says: a pattern in the provider's message, in any case.
        hinted: the answer names a time to wait.
        after_seconds: the shortest wait; a time that the answer names may be longer.
    """

    kind: Kind
    reason: str
    statuses: str = ""
    codes: str = ""
    says: str = ""
    hinted: bool = False
    after_seconds: float | None = None
    suppress: Suppress | None = None


class Said(msgspec.Struct, frozen=True):
    """A provider's error: its own code and message."""

    code: str = ""
    message: str = ""


COMMON: tuple[HttpRow, ...] = (
    HttpRow("config", "the provider does not accept the credentials", "401 403 407"),
    HttpRow("config", "the account must be paid or is suspended", "402"),
    HttpRow("config", "the provider knows no such address of its API", "404 410"),
    HttpRow("config", "the provider redirects; redirects are not followed", "300-399"),
    HttpRow("unknown", "the provider did not get the whole request in time", "408"),
    HttpRow("unknown", "the provider reports a conflict with an earlier request", "409"),
    HttpRow("retry", "the provider asks to try again", "421 425"),
    HttpRow("throttle", "the provider asks for fewer requests", "429", after_seconds=1.0),
    HttpRow("refused_message", "the provider refuses the message", "400-499"),
    HttpRow("retry", "the provider is unavailable for a stated time", "503", hinted=True),
    HttpRow("unknown", "the provider failed, and may have taken the message", "500-599"),
    HttpRow("unknown", "the provider answered with a status that means nothing here", "100-999"),
)

# Before anything was written nothing can have been sent; after that, it is not known.
FAULTS: Mapping[str, HttpRow] = {
    "connect_failed": HttpRow("transport_down", "no connection to the provider"),
    "connect_timeout": HttpRow("transport_down", "no connection to the provider within the time limit"),
    "tls_failed": HttpRow("transport_down", "the TLS handshake with the provider failed"),
    "tls_unverified": HttpRow("config", "the provider's certificate does not verify"),
    "no_answer": HttpRow("unknown", "the request left and the connection ended without an answer"),
    "answer_timeout": HttpRow("unknown", "the request left and no answer came in time"),
    "bad_answer": HttpRow("unknown", "the request left and its answer broke off or is not HTTP"),
}


def verdict_of(provider: str, rows: Iterable[HttpRow], exchange: ProviderExchange, said: Said) -> Verdict:
    """What an exchange without a 2xx means, by the provider's own rows and then the common ones."""
    if exchange.status is None:
        assert exchange.failure is not None
        row = FAULTS[exchange.failure]
        return Verdict(kind=row.kind, code=exchange.failure, reason=row.reason, reply=Reply(stage="request"))
    hint = wait_of({name: exchange.header(name) or "" for name in _WAIT_HEADERS})
    row = find([*rows, *COMMON], exchange.status, said, hinted=hint is not None)
    waits = [row.after_seconds, hint if row.kind in _WAITING else None]
    return Verdict(
        kind=row.kind,
        code=f"{provider}_{exchange.status}" + (f"_{said.code}" if said.code else ""),
        reason=row.reason,
        reply=Reply(stage="request", code=exchange.status, text=escape_unprintable(said.message, TEXT_CHARS_MAX)),
        after_seconds=max((seconds for seconds in waits if seconds is not None), default=None),
        suppress=row.suppress,
    )


def find(rows: Iterable[HttpRow], status: int, said: Said, *, hinted: bool = False) -> HttpRow:
    """The first row that fits; the last common one fits everything."""
    return next(row for row in rows if _fits(row, status, said, hinted))


def wait_of(headers: Mapping[str, str]) -> float | None:
    """Requested delay in seconds, at most 6 hours: `Retry-After` (RFC 9110), else `ratelimit-reset`."""
    for name in _WAIT_HEADERS:
        text = headers.get(name, "").strip()
        if _SECONDS.fullmatch(text):
            return min(float(text), HINT_MAX_SECONDS)
    return _until(headers.get("retry-after", ""))


def _until(date: str) -> float | None:
    try:
        moment = parsedate_to_datetime(date[:64])
    except (ValueError, TypeError, IndexError, OverflowError):
        return None
    wait = (moment if moment.tzinfo else moment.replace(tzinfo=UTC)) - datetime.now(UTC)
    return min(max(wait.total_seconds(), 0.0), HINT_MAX_SECONDS)


def _fits(row: HttpRow, status: int, said: Said, hinted: bool) -> bool:
    if row.hinted and not hinted:
        return False
    if row.codes and said.code not in row.codes.split():
        return False
    if row.says and not _pattern(row.says).search(said.message):
        return False
    return not row.statuses or any(low <= status <= high for low, high in _ranges(row.statuses))


@cache
def _ranges(statuses: str) -> tuple[tuple[int, int], ...]:
    pairs = (span.partition("-") for span in statuses.split())
    return tuple((int(low), int(high or low)) for low, _, high in pairs)


@cache
def _pattern(says: str) -> re.Pattern[str]:
    return re.compile(says, re.IGNORECASE)


class NothingToSignWith(Exception):
    """The provider's requests are signed, and there are no credentials now."""


class ProviderRequest(msgspec.Struct, frozen=True):
    """What to send: the path, the headers beside the common ones, the JSON; with `body`, that instead."""

    target: str
    headers: Mapping[str, str]
    document: Mapping[str, Any]
    body: bytes = b""

    def __repr__(self) -> str:
        return f"ProviderRequest({self.target!r})"


class Provider(Protocol):
    """What is a provider's own: declared facts, and the form of its requests and answers."""

    scheme: ClassVar[str]
    origin: str
    token_variable: ClassVar[str]  # of the environment, where the URL has no token
    key_lifetime_seconds: ClassVar[float | None]
    rate_per_second: ClassVar[int | None]  # that a new account may send
    traceable: ClassVar[bool]  # it knows idempotency keys, or can be asked
    blocks: ClassVar[bool]  # to make a request may take its time: never on the loop
    read_headers: ClassVar[Sequence[str]]  # of its answers: `said` and `provider_id` find them in the document
    rows: ClassVar[Sequence[HttpRow]]

    def request(self, outgoing: OutgoingMessage, token: str, recipients: Sequence[str]) -> ProviderRequest:
        """The request that sends the message to these recipients; the same bytes each time.

        Raises:
            LookupError: the message's bytes do not hold a file that it names.
            OnlyHidden: see `fields.shown_groups`.
            NothingToSignWith: as it says.
        """
        ...

    def said(self, document: Mapping[str, Any]) -> Said:
        """Code and message of an error's JSON."""
        ...

    def provider_id(self, document: Mapping[str, Any]) -> str | None:
        """What the provider calls the message, in a success's JSON."""
        ...

    def refused(self, document: Mapping[str, Any], recipients: Sequence[str]) -> Mapping[str, Verdict]:
        """Recipients whom a success, or a refusal, names as not served."""
        ...

    def question(self, outgoing: OutgoingMessage, token: str) -> ProviderRequest | None:
        """A GET that finds the message, or None."""
        ...

    def known(self, document: Mapping[str, Any]) -> bool | None:
        """Its answer."""
        ...


class HttpTransport(SendsOnLoop):
    """Sends by a provider's API, on any event loop; see `LoopTransport`.

    Args:
        origin: in place of the provider's, `https://…`, or `http://` on loopback.
        ssl_context: for a private certificate authority.

    Where the provider knows idempotency keys (`key_lifetime_seconds`), every try of a message has the same one, made of
    its Message-ID and the message's key, and the same bytes. An *unknown* may then be repeated without a second message
    as long as the key lives; a message that an operator sends again has another Message-ID and so another key.
    """

    def __init__(
        self,
        name: str,
        provider: Provider,
        token: str,
        *,
        origin: str | None = None,
        ssl_context: ssl.SSLContext | None = None,
    ) -> None:
        self.name = name
        self.traceable = provider.traceable
        self.key_lifetime_seconds = provider.key_lifetime_seconds
        self.rate_per_second = provider.rate_per_second
        self._provider = provider
        self._token = token
        self._origin = origin or provider.origin
        self._client = ProviderClient(self._origin, ssl_context=ssl_context)

    def __repr__(self) -> str:
        return f"HttpTransport({self.name!r}, {self._origin})"

    async def send_on_loop(
        self, outgoing: OutgoingMessage, *, release: Callable[[], Awaitable[None]], seconds: float
    ) -> SendResult:
        """See `LoopTransport`. `release` is awaited when a connection is open, right before the request's first byte.
        Ends within 2 minutes.
        """
        verdicts = dict.fromkeys(fields.unsendable(outgoing), _UTF8_RECIPIENT)
        recipients = [recipient for recipient in dict.fromkeys(outgoing.recipients) if recipient not in verdicts]
        if self._provider.blocks or len(outgoing.data) > _INLINE_BYTES_MAX:
            written = await asyncio.to_thread(self._written, outgoing, recipients)
        else:
            written = self._written(outgoing, recipients)
        if isinstance(written, Verdict):
            return SendResult(verdict=written, recipients={**verdicts, **dict.fromkeys(recipients, written)})
        request, body = written
        exchange = await self._client.request(
            "POST", request.target, {**_HEADERS, **request.headers}, body,
            release=release, seconds=min(seconds, DEADLINE_SECONDS),
        )  # fmt: skip
        return self._read(exchange, recipients, verdicts)

    async def ask_on_loop(self, outgoing: OutgoingMessage) -> bool | None:
        """Whether the provider finds the message, within 15 s. Its search may lag some minutes behind."""
        question = self._provider.question(outgoing, self._token)
        if question is None:
            return None
        exchange = await self._client.request(
            "GET", question.target, {**_HEADERS, **question.headers}, b"", release=_nothing, seconds=ASK_SECONDS
        )
        return self._provider.known(_document(exchange)) if exchange.status == 200 else None

    def close(self) -> None:
        self._client.close()

    def _written(self, outgoing: OutgoingMessage, recipients: Sequence[str]) -> tuple[ProviderRequest, bytes] | Verdict:
        """The request and its body, or our own refusal."""
        if not outgoing.source.sender.local.isascii():
            return _UTF8_SENDER
        if not recipients:
            return _UTF8_RECIPIENT
        if len(recipients) > RECIPIENTS_MAX:
            return _TOO_MANY
        try:
            request = self._provider.request(outgoing, self._token, recipients)
        except LookupError:
            return _NO_CONTENT
        except fields.OnlyHidden:
            return _ONLY_HIDDEN
        except NothingToSignWith:
            return _UNSIGNED
        return request, request.body or fields.as_json(request.document)

    def _read(self, exchange: ProviderExchange, recipients: Sequence[str], verdicts: dict[str, Verdict]) -> SendResult:
        named_headers = {name: exchange.header(name) for name in self._provider.read_headers}
        document = {**_document(exchange), **named_headers}
        overall = self._verdict(exchange, document)
        named = self._provider.refused(document, recipients) if exchange.status is not None else {}
        others = [recipient for recipient in recipients if recipient not in named]
        if not others:
            overall = next(iter(named.values()))
        elif named and overall.kind == "refused_recipient":
            overall = _not_sent(overall)  # the message was sent to none, because of the named recipients
        return SendResult(
            verdict=overall,
            recipients={**verdicts, **dict.fromkeys(others, overall), **named},
            provider_id=self._provider.provider_id(document) if overall.kind == "accepted" else None,
            peer=urlsplit(self._origin).netloc,
            tls=exchange.tls,
            phases=exchange.took,
        )

    def _verdict(self, exchange: ProviderExchange, document: Mapping[str, Any]) -> Verdict:
        status = exchange.status
        if status is not None and 200 <= status <= 299:
            reply = Reply(stage="request", code=status)
            return Verdict(kind="accepted", code=f"{self._provider.scheme}_{status}", reason=ACCEPTED, reply=reply)
        said = self._provider.said(document)
        if self._token:
            said = Said(said.code, said.message.replace(self._token, HIDDEN))
        verdict = verdict_of(self._provider.scheme, self._provider.rows, exchange, said)
        if verdict.kind == "unknown" and self.key_lifetime_seconds is not None:
            after = max(REPEAT_SECONDS, verdict.after_seconds or 0.0)
            return msgspec.structs.replace(verdict, after_seconds=after)
        return verdict


async def _nothing() -> None:
    """A question has no effect: nothing is released."""


def _not_sent(verdict: Verdict) -> Verdict:
    return msgspec.structs.replace(
        verdict, kind="retry", reason="the message was refused for another recipient; nothing was sent", suppress=None
    )


def _document(exchange: ProviderExchange) -> Mapping[str, Any]:
    """The response's JSON object; empty if it is not one."""
    try:
        document = msgspec.json.decode(exchange.body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return {}
    return document if isinstance(document, dict) else {}


# -- from a URL ----------------------------------------------------------------------------------------------------


def opened(url: TransportURL, provider: Provider, *, origin: str | None = None) -> HttpTransport:
    """`resend://TOKEN@`, or `resend:` with the token in the environment.

    Args:
        origin: instead of the provider's usual one, that of a region.

    Options: `token_env=NAME`, another variable than the provider's usual one; `origin=https://…`, for a stand-in.
    """
    variable = url.option("token_env", provider.token_variable) or ""
    token = url.user or os.environ.get(variable, "")
    if url.host or url.port or url.password is not None or url.path not in ("", "/"):
        url.refuse(f"is {url.scheme}://TOKEN@ or {url.scheme}: alone; another address is ?origin=https://…")
    if not _TOKEN.fullmatch(token):
        url.refuse(f"has no token: write {url.scheme}://TOKEN@, or set {variable}")
    return HttpTransport(url.name, provider, token, origin=origin_of(url) or origin)


def origin_of(url: TransportURL) -> str | None:
    """The option `origin`, for a stand-in: https, or http on this machine."""
    text = url.option("origin")
    if text is None:
        return None
    parts = urlsplit(text)
    safe = parts.scheme == "https" or (parts.scheme == "http" and parts.hostname in _LOOPBACK)
    if not safe or not parts.hostname or parts.path not in ("", "/") or parts.query or parts.username is not None:
        url.refuse("has an origin that is not https://host (http only on this machine), without a path")
    return f"{parts.scheme}://{parts.netloc}"


class TakesAllOrNone:
    """It takes a message for all of its recipients or for none; whom it drops later, an event names."""

    def refused(self, document: Mapping[str, Any], recipients: Sequence[str]) -> Mapping[str, Verdict]:
        return {}


class CannotBeAsked:
    """It cannot be searched for a message."""

    def question(self, outgoing: OutgoingMessage, token: str) -> ProviderRequest | None:
        return None

    def known(self, document: Mapping[str, Any]) -> bool | None:
        return None
