"""HTTP/1.1 without a connection: the bytes of a request, the parser of its answer, and a code for each fault.

What follows from a response or a fault is for the caller to decide. Each wait is clipped to what is left of one
deadline: the time limits of httpx and httpcore are for each read and write, and a peer that drips a byte now and then
would hold a worker forever.
"""

from __future__ import annotations

import functools
import os
import re
import ssl
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Literal, NamedTuple, TypeAlias

import httpcore
from httptools import HttpParserError, HttpParserUpgrade, HttpResponseParser

from effects.kit.http.exchange import Exchange
from effects.kit.http.odd_heads import NotHttp, read_odd_head

if TYPE_CHECKING:
    import httpx

_TOKEN = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_TOKENS = re.compile(rf"{_TOKEN.pattern}(?:\n{_TOKEN.pattern})*")
_TARGET = re.compile(rb"[!-~]+")
_CHUNKED = re.compile(rb"(?:^|[, \t])chunked$", re.IGNORECASE)
_VALUE = r"(?:[!-~](?:[\t -~]*[!-~])?)?"
_VALUES = re.compile(rf"{_VALUE}(?:\n{_VALUE})*")
Fault: TypeAlias = Literal[
    "bad_url", "connect_failed", "connect_timeout", "tls_failed", "tls_timeout", "no_answer", "answer_timeout",
    "bad_answer",
]  # fmt: skip
KEEPALIVE_SECONDS = 4.0  # many servers close after 5: a request must not meet a connection that is going
WIRE_ERRORS = (httpcore.NetworkError, httpcore.TimeoutException, httpcore.ProtocolError)
_REASONS: Mapping[Fault, str] = {
    "bad_url": "the URL cannot be requested",
    "connect_failed": "no connection to the endpoint",
    "connect_timeout": "no connection within the time limit",
    "tls_failed": "no connection to the endpoint",
    "tls_timeout": "no connection within the time limit",
    "no_answer": "the request left and the connection ended without an answer",
    "answer_timeout": "the request left and no answer came in time",
    "bad_answer": "the request left and its answer broke off or is not HTTP",
}


def clip(exchange: Exchange, seconds: float | None, timeout: type[httpcore.TimeoutException]) -> float:
    """The smaller of `seconds` and the time left to the deadline; raises `timeout` if none is left."""
    left = exchange.remaining()
    if left <= 0:
        raise timeout("the deadline has passed")
    return left if seconds is None or left < seconds else seconds


class Unasked(httpcore.RemoteProtocolError):
    """The peer sent data before the request; no byte of the request was written."""


class HttpRequest(NamedTuple):
    """What is sent. `headers` has all of them, Host and Content-Length too."""

    method: str
    target: bytes
    headers: Sequence[tuple[str, str]]
    body: bytes


def request_bytes(request: HttpRequest) -> bytes:
    """The request as it goes over the wire.

    Raises:
        httpcore.LocalProtocolError: it would not be one request: a space in its target, a line break in a header.
    """
    lines = "".join([f"{name}: {value}\r\n" for name, value in request.headers])
    if not (
        lines.count("\n") == len(request.headers)  # none within a name or a value
        and _TOKEN.fullmatch(request.method)
        and _TARGET.fullmatch(request.target)
        and _TOKENS.fullmatch("\n".join([name for name, _ in request.headers]))
        and _VALUES.fullmatch("\n".join([value for _, value in request.headers]))
    ):
        raise httpcore.LocalProtocolError("the request is not HTTP")
    head = f"{request.method} {request.target.decode('ascii')} HTTP/1.1\r\n{lines}\r\n"
    return head.encode("ascii") + request.body


class ResponseParser:
    """The answers of one connection, one after the other; interim ones (1xx) are passed over.

    Once the status line of an answer is whole, it is the answer: a head that llhttp refuses, or that ends too soon, is
    read line by line, without what cannot be read. Nothing more is asked on such a connection.

    Attributes:
        status: of the answer, once its head is complete, or as complete as it will be.
        headers: of the answer.
        unread: what of its head was dropped, and how often.
        over: the answer is complete.
        fault: why no more of it can be read; raised by the reader when it comes to that place.
    """

    def __init__(self) -> None:
        self._parser = self._llhttp()
        self.begin()

    def _llhttp(self) -> HttpResponseParser:
        parser = HttpResponseParser(self)
        # Servers that end lines by LF alone answer us, too; and whose length is in doubt is not asked again.
        parser.set_dangerous_leniencies(lenient_chunked_length=True, lenient_optional_cr_before_lf=True)
        return parser

    def begin(self) -> None:
        """The next answer is that of another request."""
        self.status: int | None = None
        self.headers: list[tuple[bytes, bytes]] = []
        self.unread: dict[str, int] = {}
        self.over = False
        self.fault: httpcore.RemoteProtocolError | None = None
        self._raw = bytearray()  # what came until its status was known
        self._is_odd = False  # its head is read by us
        self._body: list[bytes] = []
        self._lengths: list[bytes] = []  # by which headers its end is told
        self._more = False  # something came behind it
        self._keeps_alive = False

    def feed(self, data: bytes) -> None:
        """Take what has come; nothing where the connection has ended."""
        if not data:
            self._end()
            return
        if self.status is None:
            self._raw += data
        if self._is_odd and self.status is None:
            self._read_odd(len(self._raw) - len(data))
            return
        try:
            self._parser.feed_data(data[:-1])
            self._more = self.over  # llhttp passes over a blank line before an answer: the last byte shows it
            if not self.over:
                self._parser.feed_data(data[-1:])
        except (HttpParserError, HttpParserUpgrade) as error:
            self._more = True
            if self.status is None:
                self._read_odd(0)
            elif not self.over:
                self._break(str(error))
        if self.status is not None and self._raw:
            self._raw = bytearray()

    def settle(self) -> None:
        """No more of the head will come: what there is of it is the answer, if its status line is whole."""
        if self.status is None:
            self._read_odd(0, ended=True)

    def take(self) -> bytes:
        """The body's bytes that have come since."""
        body, self._body = b"".join(self._body), []
        return body

    @property
    def is_reusable(self) -> bool:
        """Whether another request may follow: the answer is complete, all of it was taken, and not a byte more came."""
        return self.over and self._keeps_alive and not self._more and not self._body

    def _break(self, reason: str) -> None:
        self.fault = self.fault or httpcore.RemoteProtocolError(reason)

    def _read_odd(self, new_from: int, *, ended: bool = False) -> None:
        """Read a head that llhttp does not, if its end has come; its body is llhttp's again."""
        self._is_odd = True
        try:
            head = read_odd_head(self._raw, new_from, ended=ended)
        except NotHttp as error:
            self._break(str(error))
            return
        if head is None:
            return
        self._parser = self._llhttp()
        try:
            self._parser.feed_data(head.clean() + head.rest)
        except (HttpParserError, HttpParserUpgrade) as error:
            self._break(str(error))
        self._keeps_alive, self.unread = False, head.unread
        if not self.over and (ended or not head.has_end):
            self._break("where the answer ends is not known")

    def _end(self) -> None:
        self._keeps_alive = False
        self.settle()
        if self.status is None:
            self._break("the connection ended without an answer")
        elif self._lengths and not self.over:
            self._break("the connection ended within the answer")
        elif self.fault is None:
            self.over = True

    # -- called by llhttp ------------------------------------------------------------------------------------

    def on_message_begin(self) -> None:
        if self.status is None:
            self.headers, self._lengths, self.unread = [], [], {}

    def on_header(self, name: bytes, value: bytes) -> None:
        if self.status is not None:  # a trailer
            return
        self.headers.append((name, value))
        lowered = name.lower()
        if lowered in (b"content-length", b"transfer-encoding"):
            self._lengths.append(lowered)
            if lowered == b"transfer-encoding" and not _CHUNKED.search(value):
                self.unread["an unknown transfer encoding"] = 1

    def on_headers_complete(self) -> None:
        if self.status is not None:
            return
        status = self._parser.get_status_code()
        if status < 100:
            self._break("no status")
        elif status >= 200:
            self.status = status
            certain = self._parser.get_http_version() == "1.1" and len(self._lengths) < 2
            self._keeps_alive = certain and self._parser.should_keep_alive()
            if self.unread:
                self._break("where the answer ends is not known")

    def on_body(self, body: bytes) -> None:
        if not self.over:
            self._body.append(body)

    def on_message_complete(self) -> None:
        self.over = self.over or self.status is not None


@functools.cache
def verifying_context(*, trust_env: bool) -> ssl.SSLContext:
    """The context that connections share: TLS 1.2 or later, verified. Building one costs tens of milliseconds.

    Args:
        trust_env: whether SSL_CERT_FILE and SSL_CERT_DIR of the environment replace the certificates that httpx trusts.
    """
    import httpx  # noqa: PLC0415 - takes a while, and many processes make no requests

    context = httpx.create_ssl_context(trust_env=trust_env)
    context.minimum_version = max(context.minimum_version, ssl.TLSVersion.TLSv1_2)  # overrides the system's default
    context.hostname_checks_common_name = False  # a name counts where it is an alternative name (RFC 9110 §4.3.4)
    context.set_alpn_protocols(["http/1.1"])
    return context


def request_to(host: str, method: str, target: bytes, headers: Mapping[str, str], body: bytes) -> HttpRequest:
    """The request with the headers that each one has."""
    own = [("Host", host), ("Content-Length", str(len(body)))]
    return HttpRequest(method, target, [*own, *headers.items()], body)


def address_of(origin: httpx.URL) -> tuple[str, int]:
    """The host, as names are looked up, and the port."""
    return origin.raw_host.decode("ascii"), origin.port or (443 if origin.scheme == "https" else 80)


def record_fault(exchange: Exchange, error: Exception) -> None:
    """Give a fault its code, by its class and how far the request came."""
    if isinstance(error, Unasked) and not exchange.wrote:
        exchange.fail("connect_failed", "the endpoint sent data before the request; nothing was sent")
    else:
        fault = _fault(exchange, error)
        exchange.fail(fault, f"{_REASONS[fault]}{_system_reason(error) if fault == 'connect_failed' else ''}")


def _system_reason(error: Exception) -> str:
    """`: Connection refused`, in the words of the operating system, where it gave a number."""
    cause = error.__cause__
    return f": {os.strerror(cause.errno)}" if isinstance(cause, OSError) and cause.errno else ""


def _fault(exchange: Exchange, error: Exception) -> Fault:
    timed_out = isinstance(error, httpcore.TimeoutException)
    if not exchange.wrote:
        if isinstance(error, httpcore.LocalProtocolError):
            return "bad_url"
        if exchange.phase == "tls":
            return "tls_timeout" if timed_out else "tls_failed"
        return "connect_timeout" if timed_out else "connect_failed"
    if timed_out:
        return "answer_timeout"
    # A connection that ends silently is a protocol error, too.
    return "bad_answer" if isinstance(error, httpcore.ProtocolError) and exchange.bytes_read else "no_answer"
