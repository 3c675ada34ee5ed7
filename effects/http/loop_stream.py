"""Connections for code on an event loop, each wait clipped to what is left of one deadline.

They are plain non-blocking sockets, read and written where their exchange is: asyncio's own transports read ahead, so
that one could not tell what the peer sent before a request.
"""

from __future__ import annotations

import asyncio
import functools
import os
import select
import socket
import ssl
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import httpcore

from effects.http.exchange import Exchange
from effects.http.network import check_network
from effects.http.stream import Unasked, clip

_WOULD_BLOCK = (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError)


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
