"""A function from request to answer, as an ASGI and as a WSGI app: what the two small endpoints of mail stand on."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any, TypeAlias

BODY_BYTES_MAX = 1024 * 1024

Scope: TypeAlias = Mapping[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[Mapping[str, Any]]]
Send: TypeAlias = Callable[[dict[str, Any]], Awaitable[None]]
AsgiApp: TypeAlias = Callable[[Scope, Receive, Send], Awaitable[None]]
WsgiApp: TypeAlias = Callable[[Mapping[str, Any], Callable[..., Any]], Iterable[bytes]]


@dataclass(frozen=True, slots=True)
class Request:
    """What came: header names in lower case, the query undecoded. Its repr shows nothing of it."""

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


def asgi_app(handle: Handle, *, body_bytes_max: int = BODY_BYTES_MAX) -> AsgiApp:
    """An ASGI app that answers at every path; `handle` runs in a thread. A longer body is answered 413, unread."""

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await _lifespan(receive, send)
        elif scope["type"] == "http":
            answer = await _take_asgi(handle, scope, receive, body_bytes_max)
            if answer is not None:
                await _send(answer, scope["method"], send)

    return app


async def _take_asgi(handle: Handle, scope: Scope, receive: Receive, body_bytes_max: int) -> Answer | None:
    """The answer; None where the client has gone."""
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
    headers = {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in scope["headers"]}
    query = scope.get("query_string", b"").decode("latin-1")
    return await asyncio.to_thread(handle, Request(scope["method"], query, headers, bytes(body)))


async def _send(answer: Answer, method: str, send: Send) -> None:
    headers = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in _headers(answer)]
    await send({"type": "http.response.start", "status": answer.status, "headers": headers})
    await send({"type": "http.response.body", "body": b"" if method == "HEAD" else answer.body})


async def _lifespan(receive: Receive, send: Send) -> None:
    while True:
        message = await receive()
        await send({"type": f"{message['type']}.complete"})
        if message["type"] == "lifespan.shutdown":
            return


def wsgi_app(handle: Handle, *, body_bytes_max: int = BODY_BYTES_MAX) -> WsgiApp:
    """A WSGI app (PEP 3333) that answers at every path. A body without Content-Length counts as empty."""

    def app(environ: Mapping[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        answer = _take_wsgi(handle, environ, body_bytes_max)
        start_response(f"{answer.status} {HTTPStatus(answer.status).phrase}", _headers(answer))
        return [] if environ["REQUEST_METHOD"] == "HEAD" else [answer.body]

    return app


def _take_wsgi(handle: Handle, environ: Mapping[str, Any], body_bytes_max: int) -> Answer:
    length = environ.get("CONTENT_LENGTH") or "0"
    if not (length.isascii() and length.isdecimal()):
        return Answer(400)
    if int(length) > body_bytes_max:
        return Answer(413)
    body = environ["wsgi.input"].read(int(length)) if int(length) else b""
    headers = {
        name.removeprefix("HTTP_").replace("_", "-").lower(): value
        for name, value in environ.items()
        if name.startswith("HTTP_")
    }
    return handle(Request(environ["REQUEST_METHOD"], environ.get("QUERY_STRING", ""), headers, body))


def _headers(answer: Answer) -> list[tuple[str, str]]:
    length = [] if answer.status == 204 else [("content-length", str(len(answer.body)))]
    return [*length, *answer.headers.items()]
