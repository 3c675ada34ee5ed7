"""One way to knock at an endpoint, whichever protocol it speaks."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, TypeAlias
from wsgiref.simple_server import WSGIRequestHandler, make_server

import httpx

from tests.peers.serving import Serving
from tests.support.waiting import PATIENCE_SECONDS

WebClient: TypeAlias = Callable[..., httpx.Response]


class _Quiet(WSGIRequestHandler):
    def log_message(self, *words: Any) -> None:
        """Nothing on standard error."""


@contextmanager
def wsgi_client(app: Any) -> Iterator[WebClient]:
    """The app behind a real WSGI server on a real socket."""
    with (
        Serving(make_server("127.0.0.1", 0, app, handler_class=_Quiet)) as serving,
        httpx.Client(base_url=f"http://127.0.0.1:{serving.port}", trust_env=False, timeout=PATIENCE_SECONDS) as client,
    ):
        yield client.request


@contextmanager
def asgi_client(app: Any) -> Iterator[WebClient]:
    """The app called by its protocol."""

    def request(method: str, url: str, **options: Any) -> httpx.Response:
        async def send() -> httpx.Response:
            async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://shop") as client:
                return await client.request(method, url, **options)

        return asyncio.run(send())

    yield request


def lifespan(app: Any) -> list[str]:
    """What the app answers to a server that starts and stops."""
    messages = iter([{"type": "lifespan.startup"}, {"type": "lifespan.shutdown"}])
    sent: list[str] = []

    async def receive() -> Mapping[str, Any]:
        return next(messages)

    async def send(message: dict[str, Any]) -> None:
        sent.append(message["type"])

    asyncio.run(app({"type": "lifespan"}, receive, send))
    return sent


def gone(app: Any) -> list[str]:
    """What the app sends to a client that leaves in the midst of its body."""
    messages: Iterator[Mapping[str, Any]] = iter(
        [{"type": "http.request", "body": b"x", "more_body": True}, {"type": "http.disconnect"}]
    )
    sent: list[str] = []

    async def receive() -> Mapping[str, Any]:
        return next(messages)

    async def send(message: dict[str, Any]) -> None:
        sent.append(message["type"])

    asyncio.run(app({"type": "http", "method": "POST", "headers": [], "query_string": b""}, receive, send))
    return sent


def left(app: Any, scope: Mapping[str, Any], after: int) -> list[dict[str, Any]]:
    """What the app sends to a client whose request is whole, and who leaves after so many messages."""
    sent: list[dict[str, Any]] = []

    async def visit() -> None:
        request, leaving = iter([{"type": "http.request", "body": b"", "more_body": False}]), asyncio.Event()

        async def receive() -> Mapping[str, Any]:
            if (message := next(request, None)) is not None:
                return message
            await leaving.wait()
            return {"type": "http.disconnect"}

        async def send(message: dict[str, Any]) -> None:
            sent.append(message)
            if len(sent) == after:
                leaving.set()

        await app(scope, receive, send)

    asyncio.run(visit())
    return sent


class BigFile:
    """A body of a hundred pieces."""

    def __init__(self) -> None:
        self.count, self.is_closed = 0, False

    def pieces(self) -> Generator[bytes, None, None]:
        """Yield them, counted."""
        try:
            for _ in range(100):
                self.count += 1
                yield b"x"
        finally:
            self.is_closed = True
