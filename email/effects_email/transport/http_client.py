"""A provider's API over HTTP/1.1: few connections, kept for seconds, every wait clipped to one deadline.

No redirects, no proxy from the environment, no retries: what follows from a failure is the job's to decide.
"""

from __future__ import annotations

import functools
import ssl
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from typing import Any

import httpcore
import httpx

from effects.crashpoints import point
from effects.http import stream
from effects_email.transport.http_exchange import ProviderExchange

CONNECT_SECONDS = 15.0
BODY_BYTES_MAX = 64 * 1024
KEEPALIVE_SECONDS = 4.0  # many servers close after 5: a request must not meet a connection that is going
CONNECTIONS_MAX = 32


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
    ) -> ProviderExchange:
        """Send one request and read its answer, all of it within `seconds` (but for the system's resolver, which has
        limits of its own). Of the answer's body at most 64 KiB are read; what goes wrong with it after the status
        line changes nothing: the status is the answer.

        Raises:
            Whatever `release` raises; nothing was written then. Nothing else.
        """
        exchange = ProviderExchange(release, seconds)
        request = httpcore.Request(
            method,
            self._origin + target,
            headers=[("host", self._host), ("content-length", str(len(body))), *headers.items()],
            content=body,
            extensions={"timeout": {"pool": seconds, "connect": CONNECT_SECONDS}},
        )
        with exchange:
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


def _read(exchange: ProviderExchange, response: httpcore.Response) -> None:
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


def _explain(exchange: ProviderExchange, error: Exception) -> None:
    timed_out = isinstance(error, httpcore.TimeoutException)
    if not exchange.wrote:
        exchange.fail("connect_timeout" if timed_out else "tls_failed" if exchange.phase == "tls" else "connect_failed")
    elif timed_out:
        exchange.fail("answer_timeout")
    else:
        exchange.fail("bad_answer" if exchange.bytes_read else "no_answer")


class _Backend(httpcore.NetworkBackend):
    """Plain sockets, each under the deadline of the exchange that opens it."""

    def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[Any] | None = None,
    ) -> httpcore.NetworkStream:
        exchange = ProviderExchange.current()
        exchange.enter("connect")
        return stream.connect(exchange, host, port, timeout)
