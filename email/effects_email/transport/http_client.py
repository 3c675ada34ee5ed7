"""A provider's API over HTTP: few connections, every wait clipped to one deadline."""

from __future__ import annotations

import ssl
from collections.abc import Callable, Mapping

import httpx

from effects.extend import DeadlineStream, HttpClient, connect, point, verifying_context
from effects_email.transport.http_exchange import ProviderExchange

CONNECT_SECONDS = 15.0
BODY_BYTES_MAX = 64 * 1024
CONNECTIONS_MAX = 32


class ProviderClient:
    """Requests to one origin. Thread-safe; at most 32 connections. The environment changes nothing.

    Args:
        origin: `https://api.example.com`, without a path.
        ssl_context: instead of the verifying one that all share; for a private certificate authority.
    """

    def __init__(self, origin: str, *, ssl_context: ssl.SSLContext | None = None) -> None:
        url = httpx.URL(origin)
        context = (ssl_context or verifying_context(trust_env=False)) if url.scheme == "https" else None
        self._client = HttpClient(
            url,
            _connect,
            ssl_context=context,
            idle_max=CONNECTIONS_MAX,
            connections_max=CONNECTIONS_MAX,
            tls_seconds=CONNECT_SECONDS,
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
        with exchange:
            self._client.send(exchange, method, target.encode("ascii"), headers, body, body_bytes_max=BODY_BYTES_MAX)
        if exchange.status is not None:
            point("provider.answered")
        return exchange

    def close(self) -> None:
        """Close idle connections."""
        self._client.close()


def _connect(host: str, port: int) -> DeadlineStream:
    """A connection to the provider, under the deadline of the exchange that opens it."""
    exchange = ProviderExchange.current()
    exchange.enter("connect")
    return connect(exchange, host, port, CONNECT_SECONDS)
