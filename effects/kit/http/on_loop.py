"""Requests to one origin on an event loop: connections that are kept for seconds, one deadline for each request.

Connections are plain non-blocking sockets, read and written where their exchange is: asyncio's own transports read
ahead, so that one could not tell what the peer sent before a request.
"""

from __future__ import annotations

import asyncio
import functools
import os
import select
import socket
import ssl
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any, TypeAlias

import httpcore

from effects.kit.http.exchange import Exchange
from effects.kit.http.idle import IdleConnections, IdleTotal, Trial
from effects.kit.http.messages import (
    KEEPALIVE_SECONDS,
    WIRE_ERRORS,
    ResponseParser,
    Unasked,
    address_of,
    clip,
    record_fault,
    request_bytes,
    request_to,
)
from effects.kit.network import check_network

if TYPE_CHECKING:
    import httpx


_WOULD_BLOCK = (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError)
READ_BYTES = 64 * 1024


async def connect_on_loop(exchange: Exchange, address: str, port: int, seconds: float | None = None) -> LoopStream:
    """A connection to an IP address, within `seconds` and the deadline.

    Raises:
        httpcore.ConnectError, httpcore.ConnectTimeout: nothing was sent.
        NetworkRefused: a test admits no connection to this address.
    """
    check_network(address)
    clipped = clip(exchange, seconds, httpcore.ConnectTimeout)
    try:
        connection = socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET, socket.SOCK_STREAM)
    except OSError as error:
        raise httpcore.ConnectError(str(error)) from error
    stream = LoopStream(connection)
    try:
        await stream.connect((address, port), clipped)
    except BaseException:
        stream.close()
        raise
    return stream


class LoopStream:
    """A connection whose every wait ends with the deadline of the exchange that uses it. For one loop."""

    def __init__(self, connection: socket.socket) -> None:
        self._loop = asyncio.get_running_loop()
        self._socket = connection
        self._tls: str | None = None
        self._watched = False  # the loop tells when there is something to read; as long as that is read
        self._reading: asyncio.Future[bytes | Exception] | None = None
        self._bytes_max = 0  # of what is being read
        self._poll: select.poll | None = None
        connection.setblocking(False)

    async def connect(self, address: tuple[str, int], seconds: float) -> None:
        """Raises:
        httpcore.ConnectError, httpcore.ConnectTimeout: it did not come about.
        """
        try:
            self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._socket.connect(address)
        except BlockingIOError:
            await self._wait(seconds, httpcore.ConnectTimeout, to_write=True)
        except OSError as error:
            raise httpcore.ConnectError(str(error)) from error
        if number := self._socket.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR):
            raise httpcore.ConnectError(os.strerror(number)) from OSError(number, os.strerror(number))

    async def start_tls(self, exchange: Exchange, context: ssl.SSLContext, host: str, seconds: float | None) -> None:
        """Raises:
        httpcore.ConnectError, httpcore.ConnectTimeout: there is no verified TLS; nothing was sent.
        """
        exchange.enter("tls")
        clipped = clip(exchange, seconds, httpcore.ConnectTimeout)
        try:
            secure = context.wrap_socket(self._socket, server_hostname=host, do_handshake_on_connect=False)
            self._socket = secure
            await self._retry(secure.do_handshake, clipped, httpcore.ConnectTimeout, writes=False)
            self._tls = secure.version()
        except (OSError, ValueError) as error:  # ValueError: a name that no certificate has
            exchange.handshake_failed(error if isinstance(error, ssl.SSLCertVerificationError) else None)
            raise httpcore.ConnectError("no handshake") from error
        if self._tls is None:  # the peer was gone: CPython shakes no hands then
            exchange.handshake_failed(None)
            raise httpcore.ConnectError("no handshake")

    async def read(self, exchange: Exchange, bytes_max: int) -> bytes:
        """What has come, at least a byte; nothing where the connection has ended.

        Raises:
            httpcore.ReadError, httpcore.ReadTimeout: it broke, or nothing came in time.
        """
        self._bytes_max = exchange.reading(bytes_max)
        seconds = clip(exchange, None, httpcore.ReadTimeout)
        reading: asyncio.Future[bytes | Exception] = self._loop.create_future()
        self._reading = reading
        if self._tls is not None and self._socket.pending():  # type: ignore[attr-defined]
            self._receive()
        if not self._watched:
            self._watched = True
            self._loop.add_reader(self._socket.fileno(), self._receive)
        timer = self._loop.call_later(seconds, _expire, reading, httpcore.ReadTimeout)
        try:
            data = await reading
        finally:
            timer.cancel()
            self._reading = None
        if isinstance(data, Exception):
            raise data
        exchange.bytes_read += len(data)
        return data

    def _receive(self) -> None:
        """Something has come. It is read here: the loop would come back for it before the task that waits does."""
        reading = self._reading
        if reading is None or reading.done():
            self._unwatch()
            return
        try:
            reading.set_result(self._socket.recv(self._bytes_max))
        except (BlockingIOError, ssl.SSLWantReadError):
            pass
        except OSError as error:
            fault = httpcore.ReadError(str(error))
            fault.__cause__ = error
            reading.set_result(fault)

    def _unwatch(self) -> None:
        if self._watched:
            self._watched = False
            with suppress(RuntimeError):  # the loop has ended
                self._loop.remove_reader(self._socket.fileno())

    async def write(self, exchange: Exchange, data: bytes, *, quiet: bool = False) -> None:
        """Send all of it, unless the peer sent something first, which cannot be the response.

        Args:
            quiet: this is known since this task last waited.

        Raises:
            Unasked: it did; nothing was written.
            httpcore.WriteError, httpcore.WriteTimeout: how much was sent is not known.
        """
        exchange.tls = self._tls
        waited = await exchange.clear()
        exchange.writing()
        if (waited or not quiet) and self.heard():  # the write detects a closed peer
            raise Unasked("bytes came before the request")
        view = memoryview(data)
        try:
            while view:
                seconds = clip(exchange, None, httpcore.WriteTimeout)
                exchange.wrote = True
                send = functools.partial(self._socket.send, view)
                view = view[await self._retry(send, seconds, httpcore.WriteTimeout, writes=True) :]
        except OSError as error:
            raise httpcore.WriteError(str(error)) from error

    def heard(self) -> bytes | None:
        """Unread bytes from the peer, which are taken: None if there are none, empty if it has closed.

        Under TLS it is what the peer's application sent: session tickets and other records between the two ends are no
        news.
        """
        if not self._is_readable():
            return None
        try:
            return self._socket.recv(1)
        except _WOULD_BLOCK:
            return None
        except OSError:
            return b""

    def _is_readable(self) -> bool:
        """Whether there is anything to look at. Most often there is not, and a read that fails costs more than this."""
        if self._tls is not None and self._socket.pending():  # type: ignore[attr-defined]
            return True
        if self._poll is None:
            self._poll = select.poll()
            self._poll.register(self._socket.fileno(), select.POLLIN)
        return bool(self._poll.poll(0))

    def close(self) -> None:
        self._unwatch()
        self._socket.close()

    async def _retry(
        self, step: Callable[[], Any], seconds: float, timeout: type[httpcore.TimeoutException], *, writes: bool
    ) -> Any:
        """Carry out a step of the socket's once it can go on. `writes` is whether it sends, without TLS."""
        ends_at = self._loop.time() + seconds
        while True:
            try:
                return step()
            except _WOULD_BLOCK as error:
                waits_to_write = isinstance(error, ssl.SSLWantWriteError) or (
                    writes and not isinstance(error, ssl.SSLWantReadError)
                )
            await self._wait(ends_at - self._loop.time(), timeout, to_write=waits_to_write)

    async def _wait(self, seconds: float, timeout: type[httpcore.TimeoutException], *, to_write: bool) -> None:
        self._unwatch()
        loop, number = self._loop, self._socket.fileno()
        ready: asyncio.Future[Exception | None] = loop.create_future()
        add, remove = (loop.add_writer, loop.remove_writer) if to_write else (loop.add_reader, loop.remove_reader)
        add(number, _resolve, ready)
        timer = loop.call_later(max(0.0, seconds), _expire, ready, timeout)
        try:
            fault = await ready
        finally:
            timer.cancel()
            remove(number)
        if fault is not None:
            raise fault


# Faults are results: an exception that a cancelled task does not retrieve would be logged as unhandled.


def _resolve(ready: asyncio.Future[Exception | None]) -> None:
    if not ready.done():
        ready.set_result(None)


def _expire(ready: asyncio.Future[Any], timeout: type[httpcore.TimeoutException]) -> None:
    if not ready.done():
        ready.set_result(timeout("the deadline has passed"))


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

        Once its status line is whole, it is the response: what of its head cannot be read is counted in `unread`, and
        what goes wrong with its body changes nothing but `body_end`. Where the task is cancelled the connection is
        closed, and the exchange has what was so until then.

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
            try:
                await self._read(exchange)
            except WIRE_ERRORS:
                parser.settle()
                if parser.status is None:
                    raise
        exchange.unread = parser.unread
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
