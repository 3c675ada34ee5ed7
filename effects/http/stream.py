"""Connections whose every wait is clipped to what is left of one deadline.

httpx's and httpcore's own time limits are for each read and write: a peer that drips a byte now and then would hold a
worker forever.
"""

from __future__ import annotations

import socket
import ssl
from typing import Any

import httpcore

from effects.http.exchange import IN_HAND, Exchange
from effects.http.network import check_network

_PLAIN = httpcore.SyncBackend()


def connect(exchange: Exchange, host: str, port: int, seconds: float | None = None) -> DeadlineStream:
    """A connection, within `seconds` and the deadline.

    The system's resolver, which a name needs, has limits of its own.

    Raises:
        httpcore.ConnectError, httpcore.ConnectTimeout: nothing was sent.
        NetworkRefused: a test admits no connection to this host.
    """
    check_network(host)
    clipped = clip(exchange, seconds, httpcore.ConnectTimeout)
    return DeadlineStream(_PLAIN.connect_tcp(host, port, timeout=clipped, socket_options=()))


def clip(exchange: Exchange, seconds: float | None, timeout: type[httpcore.TimeoutException]) -> float:
    """The smaller of `seconds` and the time left to the deadline; raises `timeout` if none is left."""
    left = exchange.remaining()
    if left <= 0:
        raise timeout("the deadline has passed")
    return left if seconds is None or left < seconds else seconds


class Unasked(httpcore.RemoteProtocolError):
    """The peer sent data before the request; no byte of the request was written."""


class DeadlineStream(httpcore.NetworkStream):
    """A connection whose every wait ends with the deadline of the exchange that uses it."""

    def __init__(self, plain: httpcore.NetworkStream, tls: str | None = None) -> None:
        self._plain = plain
        self._tls = tls

    def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        exchange: Exchange = IN_HAND.exchange
        bytes_max = exchange.reading(max_bytes)
        data = self._plain.read(bytes_max, timeout=clip(exchange, timeout, httpcore.ReadTimeout))
        exchange.bytes_read += len(data)
        return data

    def write(self, buffer: bytes, timeout: float | None = None) -> None:
        """Send all of it, unless the peer sent something first, which cannot be the response.

        The plain stream's timeout is for each `send`; a slow reader would get many.
        """
        exchange: Exchange = IN_HAND.exchange
        exchange.tls = self._tls
        exchange.writing()
        if self.heard():  # the write detects a closed peer
            raise Unasked("bytes came before the request")
        connection: socket.socket = self._plain.get_extra_info("socket")
        view = memoryview(buffer)
        try:
            while view:
                connection.settimeout(clip(exchange, timeout, httpcore.WriteTimeout))
                exchange.wrote = True
                view = view[connection.send(view) :]
        except TimeoutError as error:
            raise httpcore.WriteTimeout(str(error)) from error
        except OSError as error:
            raise httpcore.WriteError(str(error)) from error

    def start_tls(
        self, ssl_context: ssl.SSLContext, server_hostname: str | None = None, timeout: float | None = None
    ) -> DeadlineStream:
        exchange: Exchange = IN_HAND.exchange
        exchange.enter("tls")
        try:
            clipped = clip(exchange, timeout, httpcore.ConnectTimeout)
            secure = self._plain.start_tls(ssl_context, server_hostname, timeout=clipped)
        except httpcore.ConnectError as error:
            cause = error.__cause__
            exchange.handshake_failed(cause if isinstance(cause, ssl.SSLCertVerificationError) else None)
            raise
        version = secure.get_extra_info("ssl_object").version()
        if version is None:  # the peer was gone: CPython shakes no hands then
            secure.close()
            exchange.handshake_failed(None)
            raise httpcore.ConnectError("no handshake")
        return DeadlineStream(secure, version)

    def heard(self) -> bytes | None:
        """Unread bytes from the peer: None if there are none, empty if it has closed.

        It is taken from the connection, which must not be read from any more. Under TLS it is what the peer's
        application sent: session tickets and other records between the two ends are no news.
        """
        connection: socket.socket = self._plain.get_extra_info("socket")
        try:
            connection.settimeout(0)
            return connection.recv(1)
        except (BlockingIOError, ssl.SSLWantReadError):
            return None
        except OSError:
            return b""

    def close(self) -> None:
        self._plain.close()

    def get_extra_info(self, info: str) -> Any:
        return self._plain.get_extra_info(info)
