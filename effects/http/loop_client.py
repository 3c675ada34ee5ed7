"""Requests to one origin on an event loop: connections that are kept for seconds, one deadline for each request."""

from __future__ import annotations

import functools
import ssl
from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Any, TypeAlias

import httpcore

from effects.http.client import KEEPALIVE_SECONDS, WIRE_ERRORS, address_of, record_fault, request_to
from effects.http.exchange import Exchange
from effects.http.idle import IdleConnections, IdleTotal, Trial
from effects.http.loop_stream import LoopStream
from effects.http.messages import ResponseParser, request_bytes

if TYPE_CHECKING:
    import httpx

READ_BYTES = 64 * 1024

ConnectOnLoop: TypeAlias = Callable[[Any, str, int], Awaitable[LoopStream]]  # given the exchange, host and port


class LoopHttpClient:
    """Requests to one origin, from the event loop that first uses it; no redirects, no proxy, no retries, HTTP/1.1.

    Args:
        origin: scheme, host and port count.
        connect: opens a connection to a host and port, within the deadline of the exchange.
        ssl_context: for `https`; None for plain HTTP.
        idle_max: so many idle connections are kept, for 4 s.
        idle_total: which they share with those of other clients.
        tls_seconds: limit of a handshake; default the exchange's deadline.
    """

    def __init__(
        self,
        origin: httpx.URL,
        connect: ConnectOnLoop,
        *,
        ssl_context: ssl.SSLContext | None,
        idle_max: int,
        idle_total: IdleTotal | None = None,
        tls_seconds: float | None = None,
    ) -> None:
        self._host = origin.netloc.decode("ascii")
        self._connect = functools.partial(_connect, origin, connect, ssl_context, tls_seconds)
        self._idle: IdleConnections[_Connection] = IdleConnections(idle_max, KEEPALIVE_SECONDS, idle_total)

    async def send(
        self,
        exchange: Exchange,
        method: str,
        target: bytes,
        headers: Mapping[str, str],
        body: bytes,
        *,
        body_bytes_max: int,
    ) -> None:
        """Send one request and record its response, or its fault, in the exchange.

        What goes wrong with the response's body after its head changes nothing but `body_end`. Where the task is
        cancelled the connection is closed, and the exchange has what was so until then.

        Args:
            headers: all but Host and Content-Length.
            body_bytes_max: how much of the response's body is read.

        Raises:
            Whatever `connect` and the exchange raise beside the errors of the network. No fault of network or peer.
        """
        try:
            data = request_bytes(request_to(self._host, method, target, headers, body))
            connection = await self._begin(exchange, data)
            reusable = False
            try:
                await connection.read_body(exchange, body_bytes_max)
                reusable = connection.finish()
            finally:
                self._idle.put(connection, reusable=reusable)
        except WIRE_ERRORS as error:
            record_fault(exchange, error)

    def close(self) -> None:
        """Close idle connections, and those in use when their requests end."""
        self._idle.close()

    def close_stale(self) -> None:
        """Close the idle connections that are kept for too long."""
        self._idle.close_stale()

    async def _begin(self, exchange: Exchange, data: bytes) -> _Connection:
        while True:
            kept = self._idle.take()
            connection = kept or _Connection(await self._connect(exchange))
            with Trial(connection, kept=kept is not None):
                await connection.ask(exchange, data, quiet=kept is not None)
                return connection


class _Connection:
    """A connection that carries one exchange after the other, and none after one that is in doubt.

    What a peer sends beyond an answer, or before a request, belongs to no request of ours. The next answer would be
    read from it, and a delivery recorded as done that no one has answered. So the connection is given up, as Go's
    net/http does.
    """

    def __init__(self, stream: LoopStream) -> None:
        self._stream = stream
        self._parser = ResponseParser()
        self._whole = True  # each request was written to its end

    async def ask(self, exchange: Exchange, data: bytes, *, quiet: bool) -> None:
        """Send a request and read the head of its answer. `quiet`: the connection was just found to be.

        An answer that comes before all of the request is written counts: the peer may refuse it by its head.
        """
        parser = self._parser
        parser.begin()
        try:
            await self._stream.write(exchange, data, quiet=quiet)
        except httpcore.WriteError:
            self._whole = False
        while parser.status is None:
            await self._read(exchange)
        exchange.answered(parser.status, parser.headers)

    async def read_body(self, exchange: Exchange, bytes_max: int) -> None:
        """Read the answer's body, or as much of it as is kept."""
        body = bytearray()
        try:
            body += self._parser.take()
            while len(body) <= bytes_max and not self._parser.over:
                await self._read(exchange)
                body += self._parser.take()
            if len(body) > bytes_max:
                exchange.body_end = "cut"
        except WIRE_ERRORS:
            exchange.body_end = "broken"
        finally:
            exchange.body = bytes(body[:bytes_max])

    async def _read(self, exchange: Exchange) -> None:
        if self._parser.fault is not None:
            raise self._parser.fault
        self._parser.feed(await self._stream.read(exchange, READ_BYTES))

    def finish(self) -> bool:
        return self._whole and self._parser.is_reusable

    def is_quiet(self) -> bool:
        return self._stream.heard() is None

    def close(self) -> None:
        self._stream.close()


async def _connect(
    origin: httpx.URL, connect: ConnectOnLoop, context: ssl.SSLContext | None, tls_seconds: float | None,
    exchange: Exchange,
) -> LoopStream:  # fmt: skip
    """A connection to the origin; with a context, TLS for its name."""
    host, port = address_of(origin)
    stream = await connect(exchange, host, port)
    if context is not None:
        try:
            await stream.start_tls(exchange, context, host, tls_seconds)
        except BaseException:
            stream.close()
            raise
    return stream
