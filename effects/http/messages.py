"""HTTP/1.1 messages without I/O: the bytes of a request, and its answer as llhttp reads it from what comes."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

import httpcore
from httptools import HttpParserError, HttpParserUpgrade, HttpResponseParser

_TOKEN = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_TOKENS = re.compile(rf"{_TOKEN.pattern}(?:\n{_TOKEN.pattern})*")
_TARGET = re.compile(rb"[!-~]+")
_VALUE = r"(?:[!-~](?:[\t -~]*[!-~])?)?"
_VALUES = re.compile(rf"{_VALUE}(?:\n{_VALUE})*")


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

    Attributes:
        status: of the answer, once its head is complete.
        headers: of the answer.
        over: the answer is complete.
        fault: why no more of it can be read; raised by the reader when it comes to that place.
    """

    def __init__(self) -> None:
        self._parser = HttpResponseParser(self)
        # Servers that end lines by LF alone answer us, too; and whose length is in doubt is not asked again.
        self._parser.set_dangerous_leniencies(lenient_chunked_length=True, lenient_optional_cr_before_lf=True)
        self.begin()

    def begin(self) -> None:
        """The next answer is that of another request."""
        self.status: int | None = None
        self.headers: list[tuple[bytes, bytes]] = []
        self.over = False
        self.fault: httpcore.RemoteProtocolError | None = None
        self._body: list[bytes] = []
        self._lengths: list[bytes] = []  # by which headers its end is told
        self._more = False  # something came behind it
        self._keeps_alive = False

    def feed(self, data: bytes) -> None:
        """Take what has come; nothing where the connection has ended."""
        if not data:
            self._end()
            return
        try:
            self._parser.feed_data(data[:-1])
            self._more = self.over  # llhttp passes over a blank line before an answer: the last byte shows it
            if not self.over:
                self._parser.feed_data(data[-1:])
        except (HttpParserError, HttpParserUpgrade) as error:
            self._more = True
            if not self.over:
                self._break(str(error))

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

    def _end(self) -> None:
        self._keeps_alive = False
        if self.status is None:
            self._break("the connection ended without an answer")
        elif self._lengths and not self.over:
            self._break("the connection ended within the answer")
        else:
            self.over = True

    # -- called by llhttp ------------------------------------------------------------------------------------

    def on_message_begin(self) -> None:
        if self.status is None:
            self.headers, self._lengths = [], []

    def on_header(self, name: bytes, value: bytes) -> None:
        if self.status is not None:  # a trailer
            return
        self.headers.append((name, value))
        lowered = name.lower()
        if lowered in (b"content-length", b"transfer-encoding"):
            self._lengths.append(lowered)
            if lowered == b"transfer-encoding" and value.lower() != b"chunked":
                self._break("an unknown transfer encoding")

    def on_headers_complete(self) -> None:
        if self.status is not None or self.fault is not None:
            return
        status = self._parser.get_status_code()
        if status < 100:
            self._break("no status")
        elif status >= 200:
            self.status = status
            certain = self._parser.get_http_version() == "1.1" and len(self._lengths) < 2
            self._keeps_alive = certain and self._parser.should_keep_alive()

    def on_body(self, body: bytes) -> None:
        if not self.over:
            self._body.append(body)

    def on_message_complete(self) -> None:
        self.over = self.over or self.status is not None
