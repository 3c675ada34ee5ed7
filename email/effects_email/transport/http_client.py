"""A provider's API over HTTP/1.1: few connections, kept for seconds, every wait clipped to one deadline.

httpx's and httpcore's own time limits are for each read and write: a peer that drips a byte now and then would hold a
worker for ever. So this is httpcore with streams of our own. No redirects, no proxy from the environment, no retries:
what follows from a failure is the job's to decide.
"""

from __future__ import annotations

import functools
import socket
import ssl
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from typing import Any

import httpcore
import httpx

from effects.crashpoints import declare, point
from effects_email.transport.http_exchange import Exchange, current, running

CONNECT_SECONDS = 15.0
BODY_BYTES_MAX = 64 * 1024
KEEPALIVE_SECONDS = 4.0  # many servers close after 5: a request must not meet a connection that is going
CONNECTIONS_MAX = 32

declare(
    {
        "provider.released": "marked, nothing of the request written",
        "provider.written": "request written, nothing of the answer read",
        "provider.answered": "answer read, nothing recorded",
    }
)


@functools.cache
def _verifying() -> ssl.SSLContext:
    """TLS 1.2 or later, verified by the certificates that httpx trusts; the environment changes nothing."""
    context = httpx.create_ssl_context(trust_env=False)
    context.minimum_version = max(context.minimum_version, ssl.TLSVersion.TLSv1_2)
    return context


class HttpClient:
    """Requests to one origin. Thread-safe; at most 32 connections.

    Args:
        origin: `https://api.example.com`, without a path.
        ssl_context: instead of the verifying one that all share; for a private certificate authority.
    """

    def __init__(self, origin: str, *, ssl_context: ssl.SSLContext | None = None) -> None:
        self._origin = origin
        self._pool = httpcore.ConnectionPool(
            ssl_context=ssl_context or _verifying(),
            max_connections=CONNECTIONS_MAX,
            max_keepalive_connections=CONNECTIONS_MAX,
            keepalive_expiry=KEEPALIVE_SECONDS,
            network_backend=_Backend(),
        )

    def request(
        self,
        method: str,
        target: str,
        headers: Mapping[str, str],
        body: bytes,
        *,
        release: Callable[[], None],
        seconds: float,
    ) -> Exchange:
        """Send one request and read its answer, all of it within `seconds` (but for the system's resolver, which has
        limits of its own). Of the answer's body at most 64 KiB are read; what goes wrong with it after the status
        line changes nothing: the status is the answer.

        Raises:
            Whatever `release` raises; nothing was written then. Nothing else.
        """
        exchange = Exchange(release, seconds)
        request = httpcore.Request(
            method,
            self._origin + target,
            headers=[("host", self._host), ("content-length", str(len(body))), *headers.items()],
            content=body,
            extensions={"timeout": {"pool": seconds}},
        )
        with running(exchange):
            try:
                response = self._pool.handle_request(request)
                _read(exchange, response)
            except (httpcore.NetworkError, httpcore.TimeoutException, httpcore.ProtocolError) as error:
                _explain(exchange, error)
        if exchange.status is not None:
            point("provider.answered")
        return exchange

    @property
    def _host(self) -> str:
        return self._origin.partition("://")[2]

    def close(self) -> None:
        """Close idle connections."""
        self._pool.close()


def _read(exchange: Exchange, response: httpcore.Response) -> None:
    exchange.status = response.status
    exchange.headers = {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in response.headers}
    kept = bytearray()
    try:
        with suppress(httpcore.NetworkError, httpcore.TimeoutException, httpcore.ProtocolError):
            for chunk in response.iter_stream():
                kept += chunk
                if len(kept) > BODY_BYTES_MAX:
                    break
    finally:
        exchange.body = bytes(kept[:BODY_BYTES_MAX])
        response.close()


def _explain(exchange: Exchange, error: Exception) -> None:
    timed_out = isinstance(error, httpcore.TimeoutException)
    if not exchange.wrote:
        exchange.fail("connect_timeout" if timed_out else "tls_failed" if exchange.phase == "tls" else "connect_failed")
    elif timed_out:
        exchange.fail("answer_timeout")
    else:
        exchange.fail("bad_answer" if exchange.read_any else "no_answer")


class _Backend(httpcore.NetworkBackend):
    """Plain sockets, each under the deadline of the exchange that opens it."""

    def __init__(self) -> None:
        self._plain = httpcore.SyncBackend()

    def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[Any] | None = None,
    ) -> httpcore.NetworkStream:
        exchange = current()
        exchange.enter("connect")
        seconds = min(CONNECT_SECONDS, _left(exchange, httpcore.ConnectTimeout))
        return _Stream(self._plain.connect_tcp(host, port, timeout=seconds, socket_options=()))


class _Stream(httpcore.NetworkStream):
    """A connection whose every wait ends with the deadline of the exchange that uses it."""

    def __init__(self, plain: httpcore.NetworkStream) -> None:
        self._plain = plain

    def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        exchange = current()
        if exchange.phase == "body":
            point("provider.written")
            exchange.enter("answer")
        data = self._plain.read(max_bytes, timeout=_left(exchange, httpcore.ReadTimeout))
        exchange.read_any = exchange.read_any or bool(data)
        return data

    def write(self, buffer: bytes, timeout: float | None = None) -> None:
        """Send all of it. The plain stream's timeout is for each `send`; a slow reader would get many."""
        exchange = current()
        if not exchange.wrote:
            exchange.tls = self._tls()
            exchange.release()
            point("provider.released")
        connection: socket.socket = self._plain.get_extra_info("socket")
        view = memoryview(buffer)
        try:
            while view:
                connection.settimeout(_left(exchange, httpcore.WriteTimeout))
                exchange.wrote = True
                view = view[connection.send(view) :]
        except TimeoutError as error:
            raise httpcore.WriteTimeout(str(error)) from error
        except OSError as error:
            raise httpcore.WriteError(str(error)) from error

    def start_tls(
        self, ssl_context: ssl.SSLContext, server_hostname: str | None = None, timeout: float | None = None
    ) -> httpcore.NetworkStream:
        exchange = current()
        exchange.enter("tls")
        try:
            left = _left(exchange, httpcore.ConnectTimeout)
            secure = self._plain.start_tls(ssl_context, server_hostname, timeout=min(CONNECT_SECONDS, left))
        except httpcore.ConnectError as error:
            if isinstance(error.__cause__, ssl.SSLCertVerificationError):
                exchange.fail("tls_unverified")
            raise
        if secure.get_extra_info("ssl_object").version() is None:  # the peer was gone: CPython shakes no hands then
            secure.close()
            raise httpcore.ConnectError("no handshake")
        return _Stream(secure)

    def _tls(self) -> str | None:
        secure = self._plain.get_extra_info("ssl_object")
        return secure.version() if secure is not None else None

    def close(self) -> None:
        self._plain.close()

    def get_extra_info(self, info: str) -> Any:
        return self._plain.get_extra_info(info)


def _left(exchange: Exchange, timeout: type[httpcore.TimeoutException]) -> float:
    """Seconds left of the deadline; raises `timeout` when there are none."""
    left = exchange.remaining()
    if left <= 0:
        raise timeout("the deadline has passed")
    return left
