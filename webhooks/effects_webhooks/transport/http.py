"""Sending one request: one client for each origin, with a few connections; one TLS context for all."""

from __future__ import annotations

import ssl
import threading
import time
import weakref
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import httpx

from effects.extend import HttpClient, point, verifying_context
from effects_webhooks.transport.exchange import WebhookExchange
from effects_webhooks.transport.guard import AddressRefused
from effects_webhooks.transport.network import GuardedBackend

BODY_READ_BYTES = 64 * 1024
BODY_KEPT_BYTES = 16 * 1024
ORIGINS_MAX = 500
IDLE_SECONDS = 60.0
KEEPALIVE_CONNECTIONS = 8
MISDIRECTED = 421


class _ClientUse:
    """A client in use by `users` threads."""

    def __init__(self, client: HttpClient) -> None:
        self.client = client
        self.users = 0
        self.used_at = time.monotonic()


class WebhookTransports:
    """The clients of up to 500 origins, least recently used first out, idle ones out after 60 s.

    Thread-safe. One that a thread is using is never closed under it. Connections are closed by `close`, and
    when the object is collected.
    """

    def __init__(
        self,
        backend: GuardedBackend,
        *,
        ssl_context: ssl.SSLContext | None = None,
        origins_max: int = ORIGINS_MAX,
        idle_seconds: float = IDLE_SECONDS,
    ) -> None:
        self._backend = backend
        self._ssl_context = ssl_context
        self._origins_max = origins_max
        self._idle_seconds = idle_seconds
        self._entries: OrderedDict[str, _ClientUse] = OrderedDict()
        self._lock = threading.Lock()
        self.close = weakref.finalize(self, _close_all, self._entries)

    def __len__(self) -> int:
        return len(self._entries)

    @contextmanager
    def lease(self, url: httpx.URL) -> Iterator[HttpClient]:
        """The client of the URL's origin."""
        origin = f"{url.scheme}://{url.netloc.decode('ascii')}"
        with self._lock:
            entry = self._entries.get(origin)
            if entry is None:
                entry = self._entries[origin] = _ClientUse(self._client(url))
            entry.users += 1
            self._entries.move_to_end(origin)
            leaving = self._leaving()
        for gone in leaving:
            gone.client.close()
        try:
            yield entry.client
        finally:
            with self._lock:
                entry.users -= 1
                entry.used_at = time.monotonic()

    def _client(self, url: httpx.URL) -> HttpClient:
        context = self._context(url.scheme)
        return HttpClient(url, self._backend.connect_tcp, ssl_context=context, idle_max=KEEPALIVE_CONNECTIONS)

    def _context(self, scheme: str) -> ssl.SSLContext | None:
        """None where there is no TLS: a cron job that sends by plain HTTP need not build one."""
        return (self._ssl_context or verifying_context(trust_env=True)) if scheme == "https" else None

    def _leaving(self) -> list[_ClientUse]:
        """Take out what is idle for too long, and the oldest idle ones while there are too many."""
        stale = time.monotonic() - self._idle_seconds
        leaving: list[str] = []
        for origin, entry in self._entries.items():
            crowded = len(self._entries) - len(leaving) > self._origins_max
            if entry.users == 0 and (crowded or entry.used_at < stale):
                leaving.append(origin)
            elif not crowded:
                break
        return [self._entries.pop(origin) for origin in leaving]

    def post(self, url: str, headers: Mapping[str, str], body: bytes, *, seconds: float) -> WebhookExchange:
        """Send one POST and read its answer, all of it within `seconds`.

        Of the answer's body at most 64 KiB are read and 16 KiB kept. What goes wrong with the body after the
        status line changes nothing: the status is the answer. A 421 on a connection that was in use before is asked
        once more at once on a fresh one (RFC 9110 §15.5.20): it says that this connection led to the wrong server.

        Returns:
            What happened. No fault of the network, the peer or the URL raises.
        """
        self._context(url.partition(":")[0].lower())  # before the clock runs: to build the first takes a while
        exchange = WebhookExchange(seconds)
        with exchange:
            try:
                target = _checked(url)
                exchange.secure = target.scheme == "https"
                with self.lease(target) as client:
                    _send(client, exchange, target, headers, body)
                if exchange.status == MISDIRECTED and not exchange.connected:
                    self._send_afresh(exchange, target, headers, body)
            except AddressRefused as refusal:
                exchange.fail("blocked_address", str(refusal))
            except httpx.InvalidURL:
                exchange.fail("bad_url", "the URL cannot be requested")
            if exchange.status is not None:
                point("webhook.answered")
        return exchange

    def _send_afresh(self, exchange: WebhookExchange, url: httpx.URL, headers: Mapping[str, str], body: bytes) -> None:
        """Repeat on a fresh connection. Without a response there, the first one counts."""
        exchange.bytes_read = 0
        client = self._client(url)
        try:
            _send(client, exchange, url, headers, body)
        finally:
            client.close()


def _send(
    client: HttpClient, exchange: WebhookExchange, url: httpx.URL, headers: Mapping[str, str], body: bytes
) -> None:
    client.send(exchange, "POST", url.raw_path, headers, body, body_bytes_max=BODY_READ_BYTES)
    exchange.body = exchange.body[:BODY_KEPT_BYTES]


def _checked(url: str) -> httpx.URL:
    """The URL, if a request can be made of it: a row may have been written by someone else."""
    parsed = httpx.URL(url)
    try:
        host = parsed.host  # decodes `xn--` labels, which may be invalid
    except ValueError:
        host = ""
    if parsed.scheme not in ("http", "https") or not host or not 0 < (parsed.port or 443) < 65536:
        raise httpx.InvalidURL("not a web address")
    return parsed


def _close_all(entries: OrderedDict[str, _ClientUse]) -> None:
    while entries:
        entries.popitem()[1].client.close()
