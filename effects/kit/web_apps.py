"""Adapters that turn a function from request to response into an ASGI and a WSGI app, for what providers call.

Pages for people are in `effects.web`.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncGenerator, Awaitable, Callable, Collection, Generator, Iterable, Mapping
from concurrent.futures import Executor
from contextlib import aclosing, suppress
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any, TypeAlias

from effects.kit.text.unsafe import DIGITS_MAX, whole_number

BODY_BYTES_MAX = 1024 * 1024
_DIGITS = re.compile("[0-9]+")
_WSGI_HEADERS = ("CONTENT_TYPE", "CONTENT_LENGTH")  # these two come without the prefix (PEP 3333)

Scope: TypeAlias = Mapping[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[Mapping[str, Any]]]
Send: TypeAlias = Callable[[dict[str, Any]], Awaitable[None]]
AsgiApp: TypeAlias = Callable[[Scope, Receive, Send], Awaitable[None]]
WsgiApp: TypeAlias = Callable[[Mapping[str, Any], Callable[..., Any]], Iterable[bytes]]


@dataclass(frozen=True, slots=True)
class Request:
    """A received request: header names in lower case, repeated headers joined, the query undecoded.

    Its repr shows no contents.
    """

    method: str
    query: str = field(repr=False)
    headers: Mapping[str, str] = field(repr=False)
    body: bytes = field(repr=False)


@dataclass(frozen=True, slots=True)
class Answer:
    """What to send back."""

    status: int
    body: bytes = b""
    headers: Mapping[str, str] = field(default_factory=dict)


Handle: TypeAlias = Callable[[Request], Answer]


def asgi_app(handle: Handle, *, methods: Collection[str], body_bytes_max: int = BODY_BYTES_MAX) -> AsgiApp:
    """An ASGI app that answers at every path; `handle` runs in a thread.

    Another method is answered 405, and a longer body (default 1 MiB) 413, unread. To a client that goes before its
    request is whole nothing is done.
    """

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await lifespan(receive, send)
        elif scope["type"] == "http":
            answer = await _take_asgi(handle, scope, receive, methods, body_bytes_max)
            if answer is not None:
                await _send(answer, scope["method"], send)

    return app


async def _take_asgi(
    handle: Handle, scope: Scope, receive: Receive, methods: Collection[str], body_bytes_max: int
) -> Answer | None:
    """The answer; None where the client has gone."""
    if scope["method"] not in methods:
        return _not_allowed(methods)
    body = bytearray()
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            return None
        body += message.get("body", b"")
        if len(body) > body_bytes_max:
            return Answer(413)
        if not message.get("more_body"):
            break
    headers = _joined((name.decode("latin-1"), value.decode("latin-1")) for name, value in scope["headers"])
    query = scope.get("query_string", b"").decode("latin-1")
    return await asyncio.to_thread(handle, Request(scope["method"], query, headers, bytes(body)))


async def _send(answer: Answer, method: str, send: Send) -> None:
    headers = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in _headers(answer)]
    await send({"type": "http.response.start", "status": answer.status, "headers": headers})
    await send({"type": "http.response.body", "body": b"" if method == "HEAD" else answer.body})


async def send_pieces(
    pieces: Generator[bytes, None, None], receive: Receive, send: Send, threads: Executor | None = None
) -> None:
    """Send a body whose headers are sent, piece by piece, until its end or until the client has left; then close it.

    Servers take what is sent to a client that has left without a word, as fast as it is read.

    Args:
        threads: in which the pieces are read; default those of the event loop.
    """
    leaving = asyncio.ensure_future(_disconnected(receive))
    try:
        async with aclosing(read_in_threads(pieces, threads)) as body:
            async for piece in body:
                if leaving.done():
                    leaving.result()  # raises what `receive` has raised
                    return
                await send({"type": "http.response.body", "body": piece, "more_body": True})
        await send({"type": "http.response.body", "body": b""})
    finally:
        leaving.cancel()


async def read_in_threads(
    pieces: Generator[bytes, None, None], threads: Executor | None = None
) -> AsyncGenerator[bytes, None]:
    """The pieces, each read in a thread; at the end they are closed."""
    loop = asyncio.get_running_loop()
    try:
        while piece := await loop.run_in_executor(threads, next, pieces, b""):
            yield piece
    finally:
        with suppress(ValueError):  # a thread still reads, as this was cancelled; it closes them by dropping them
            pieces.close()


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass  # the rest of the request


async def lifespan(receive: Receive, send: Send) -> None:
    """Acknowledge the server's start and stop."""
    while True:
        message = await receive()
        await send({"type": f"{message['type']}.complete"})
        if message["type"] == "lifespan.shutdown":
            return


def wsgi_app(handle: Handle, *, methods: Collection[str], body_bytes_max: int = BODY_BYTES_MAX) -> WsgiApp:
    """The same as a WSGI app (PEP 3333). A body without Content-Length counts as empty."""

    def app(environ: Mapping[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        answer = _take_wsgi(handle, environ, methods, body_bytes_max)
        start_response(f"{answer.status} {HTTPStatus(answer.status).phrase}", _headers(answer))
        return [] if environ["REQUEST_METHOD"] == "HEAD" else [answer.body]

    return app


def _take_wsgi(handle: Handle, environ: Mapping[str, Any], methods: Collection[str], body_bytes_max: int) -> Answer:
    if environ["REQUEST_METHOD"] not in methods:
        return _not_allowed(methods)
    length = content_length(environ.get("CONTENT_LENGTH") or "0")
    if length is None:
        return Answer(400)
    if length > body_bytes_max:
        return Answer(413)
    body = environ["wsgi.input"].read(length) if length else b""
    headers = _joined(
        (name.removeprefix("HTTP_").replace("_", "-"), value)
        for name, value in environ.items()
        if name.startswith("HTTP_") or name in _WSGI_HEADERS
    )
    return handle(Request(environ["REQUEST_METHOD"], environ.get("QUERY_STRING", ""), headers, body))


def _joined(pairs: Iterable[tuple[str, str]]) -> dict[str, str]:
    """Headers by name in lower case; the values of a repeated one joined, as HTTP allows (RFC 9110 §5.3, RFC 6265)."""
    headers: dict[str, str] = {}
    for name, value in pairs:
        key = name.lower()
        headers[key] = f"{headers[key]}{'; ' if key == 'cookie' else ', '}{value}" if key in headers else value
    return headers


def content_length(text: str) -> int | None:
    """The value of a Content-Length (RFC 9110 §8.6), any huge one as 10^18; None where it is no number.

    Python refuses to read a number of thousands of digits, and raises.
    """
    if not _DIGITS.fullmatch(text):
        return None
    length = whole_number(text.lstrip("0") or "0")
    return 10**DIGITS_MAX if length is None else length


def _not_allowed(methods: Collection[str]) -> Answer:
    return Answer(405, headers={"allow": ", ".join(methods)})


def _headers(answer: Answer) -> list[tuple[str, str]]:
    length = [] if answer.status == 204 else [("content-length", str(len(answer.body)))]
    return [*length, *answer.headers.items()]
