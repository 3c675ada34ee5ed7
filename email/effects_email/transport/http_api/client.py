"""A provider's API over HTTP, from an event loop: connections that are kept, every wait clipped to one deadline.

Each request has a record: its release, its phases, and what there was instead of an answer.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from contextvars import Context
from weakref import WeakKeyDictionary

import httpcore
import httpx

from effects.extend.http import (
    Exchange,
    LoopHttpClient,
    LoopStream,
    Resolver,
    ResolverThreads,
    check_network,
    clip,
    connect_on_loop,
    is_address,
    system_resolver,
    verifying_context,
)
from effects.extend.process import declare, point

WIRE_BYTES_MAX = 256 * 1024  # of one answer, with its head, the interim answers before it and its framing

_SAME = {"tls_timeout": "connect_timeout", "bad_url": "connect_failed"}  # verdicts do not tell these apart
CONNECT_SECONDS = 15.0  # for the name, for each address of it, and for the handshake
BODY_BYTES_MAX = 64 * 1024
IDLE_MAX = 256  # connections that are kept for 4 s; more may be in use
SWEEP_SECONDS = 4.0

declare(
    {
        "provider.released": "marked, nothing of the request written",
        "provider.written": "request written, nothing of the response read",
        "provider.answered": "answer read, nothing recorded",
    }
)


class ProviderExchange(Exchange):
    """`status` and `failure` are never both set, and one of them is, at the end. Phases: connect, tls, release, body,
    answer.

    Args:
        release: awaited once, when a connection is open and right before the first byte of the request.
        seconds: for everything.
    """

    def __init__(self, release: Callable[[], Awaitable[None]], seconds: float) -> None:
        super().__init__(seconds, "connect")
        self._release = release
        self._released = False

    def fail(self, code: str, reason: str) -> None:
        """Record a fault that `http_table` has a row for."""
        super().fail(_SAME.get(code, code), reason)

    async def clear(self) -> bool:
        """The point of no return, once. What the caller's function raises goes through, and nothing was written."""
        if self._released:
            return False
        self.enter("release")
        await self._release()
        self._released = True
        return True

    def writing(self) -> None:
        if self.phase == "release":
            point("provider.released")
        if self.phase != "body":  # the first connection that is written to, or one after it that was not
            self.enter("body")

    def reading(self, bytes_max: int) -> int:
        """As many as there is room for.

        Raises:
            httpcore.ReadError: no time is left.
        """
        if self.phase == "body":
            point("provider.written")
            self.enter("answer")
        room = WIRE_BYTES_MAX - self.bytes_read
        if room <= 0:
            self.fail("bad_answer", "the answer is too long")
            raise httpcore.ReadError("too much")
        return min(bytes_max, room)

    def handshake_failed(self, refused: ssl.SSLCertVerificationError | None) -> None:
        self.fail("tls_unverified" if refused else "tls_failed", "the TLS handshake failed")


class ProviderClient:
    """Requests to one origin, from any event loop; each has connections of its own. The environment changes nothing.

    Idle connections are closed by `close`, and when their loop cancels its tasks at its end.

    Args:
        origin: `https://api.example.com`, without a path.
        ssl_context: instead of the verifying one that all share; for a private certificate authority.
        resolver: instead of the system's.
    """

    def __init__(
        self, origin: str, *, ssl_context: ssl.SSLContext | None = None, resolver: Resolver = system_resolver
    ) -> None:
        self._origin = httpx.URL(origin)
        secure = self._origin.scheme == "https"
        self._context = (ssl_context or verifying_context(trust_env=False)) if secure else None
        self._resolver = resolver
        self._of_loop: WeakKeyDictionary[asyncio.AbstractEventLoop, _OfLoop] = WeakKeyDictionary()

    async def request(
        self,
        method: str,
        target: str,
        headers: Mapping[str, str],
        body: bytes,
        *,
        release: Callable[[], Awaitable[None]],
        seconds: float,
    ) -> ProviderExchange:
        """Send one request and read its answer, all of it within `seconds` (a release that waits for the database has
        limits of its own). Of the answer's body at most 64 KiB are read; what goes wrong with it after the status line
        changes nothing: the status is the answer. Where the task is cancelled, the connection is closed.

        Raises:
            Whatever `release` raises; nothing was written then. Nothing else.
        """
        exchange = ProviderExchange(release, seconds)
        client = self._client()
        try:
            await client.send(exchange, method, target.encode("ascii"), headers, body, body_bytes_max=BODY_BYTES_MAX)
        finally:
            exchange.end()
        if exchange.status is not None:
            point("provider.answered")
        return exchange

    def close(self) -> None:
        """Close idle connections, from any thread."""
        for loop, of_loop in list(self._of_loop.items()):
            with suppress(RuntimeError):  # the loop has ended, and has closed them
                loop.call_soon_threadsafe(of_loop.client.close)

    def _client(self) -> LoopHttpClient:
        loop = asyncio.get_running_loop()
        of_loop = self._of_loop.get(loop)
        if of_loop is None:
            of_loop = self._of_loop[loop] = _OfLoop(self._origin, self._context, self._resolver)
        of_loop.sweep()
        return of_loop.client


class _OfLoop:
    """The connections of one event loop."""

    def __init__(self, origin: httpx.URL, context: ssl.SSLContext | None, resolver: Resolver) -> None:
        self._threads = ResolverThreads(resolver)
        self._sweeping: asyncio.Task[None] | None = None
        self.client = LoopHttpClient(
            origin, self._connect, ssl_context=context, idle_max=IDLE_MAX, tls_seconds=CONNECT_SECONDS
        )

    def sweep(self) -> None:
        """Have idle connections closed in time; in its own context, because it belongs to no attempt."""
        if self._sweeping is None:
            self._sweeping = Context().run(asyncio.create_task, self._sweep())

    async def _sweep(self) -> None:
        try:
            while True:
                await asyncio.sleep(SWEEP_SECONDS)
                self.client.close_stale()
        finally:
            self._sweeping = None
            self.client.close()

    async def _connect(self, exchange: ProviderExchange, host: str, port: int) -> LoopStream:
        """To the first address of the host that answers."""
        check_network(host)
        exchange.enter("connect")
        addresses = [host] if is_address(host) else await self._resolve(exchange, host, port)
        for address in addresses[:-1]:
            with suppress(httpcore.ConnectError, httpcore.ConnectTimeout):
                return await connect_on_loop(exchange, address, port, CONNECT_SECONDS)
        return await connect_on_loop(exchange, addresses[-1], port, CONNECT_SECONDS)

    async def _resolve(self, exchange: ProviderExchange, host: str, port: int) -> list[str]:
        seconds = clip(exchange, CONNECT_SECONDS, httpcore.ConnectTimeout)
        answer = await self._threads.resolve(host, port, seconds)
        if answer is None:
            raise httpcore.ConnectTimeout("resolver")
        if isinstance(answer, Exception) or not answer:
            raise httpcore.ConnectError("resolver")
        return answer
