"""Sending one request: one client for each origin, with a few connections; one TLS context for all."""

from __future__ import annotations

import asyncio
import functools
import ssl
import time
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import Context
from typing import NamedTuple

import httpx

from effects.extend.http import AddressRefused, GuardedNetwork, IdleTotal, LoopHttpClient, verifying_context
from effects.extend.process import point
from effects_webhooks.transport.exchange import WebhookExchange

_BODY_READ_BYTES = 64 * 1024
BODY_KEPT_BYTES = 16 * 1024
_ORIGINS_MAX = 2_000
_URLS_MAX = 10_000  # that are parsed once; parsing takes a fifth of what a request costs
IDLE_SECONDS = 60.0
_KEEPALIVE_CONNECTIONS = 16  # idle ones to one origin
IDLE_MAX = 1_024  # idle ones to all: as many as are in flight may come to rest at once
SWEEP_SECONDS = 4.0  # as long as a client keeps a connection
_MISDIRECTED = 421


class _Target(NamedTuple):
    """Where a request goes."""

    url: httpx.URL
    origin: str
    path: bytes  # with its query


class _ClientUse:
    """A client in use by `users` requests."""

    def __init__(self, client: LoopHttpClient) -> None:
        self.client = client
        self.users = 0
        self.used_at = time.monotonic()


class WebhookTransports:
    """The clients of up to 2,000 origins, least recently used first out, idle ones out after 60 s. For one event loop.

    One that a request is using is never closed under it. They keep 16 idle connections each, and 1,024 together. These
    are closed by `close`, and when the loop cancels its tasks at its end.
    """

    def __init__(
        self,
        network: GuardedNetwork,
        *,
        ssl_context: ssl.SSLContext | None = None,
        origins_max: int = _ORIGINS_MAX,
        idle_max: int = IDLE_MAX,
        idle_seconds: float = IDLE_SECONDS,
    ) -> None:
        self._network = network
        self._ssl_context = ssl_context
        self._origins_max = origins_max
        self._idle_seconds = idle_seconds
        self._idle_total = IdleTotal(idle_max)
        self._entries: OrderedDict[str, _ClientUse] = OrderedDict()
        self._sweeping: asyncio.Task[None] | None = None

    def __len__(self) -> int:
        return len(self._entries)

    def close(self) -> None:
        """Close idle connections, and those in use when their requests end."""
        while self._entries:
            self._entries.popitem()[1].client.close()

    @contextmanager
    def _lease(self, target: _Target) -> Iterator[LoopHttpClient]:
        """The client of the target's origin."""
        entry = self._entries.get(target.origin)
        if entry is None:
            entry = self._entries[target.origin] = _ClientUse(self._client(target.url))
        entry.users += 1
        self._entries.move_to_end(target.origin)
        self._close_leaving()
        if self._sweeping is None:  # in its own context: it belongs to no attempt
            self._sweeping = Context().run(asyncio.create_task, self._sweep())
        try:
            yield entry.client
        finally:
            entry.users -= 1
            entry.used_at = time.monotonic()

    async def _sweep(self) -> None:
        """Close what is idle for too long, until there is nothing, or the loop ends."""
        try:
            while self._entries:
                await asyncio.sleep(SWEEP_SECONDS)
                self._close_leaving()
                for entry in self._entries.values():
                    entry.client.close_stale()
        finally:
            self._sweeping = None
            self.close()

    def _client(self, url: httpx.URL) -> LoopHttpClient:
        context = self._context(url.scheme)
        return LoopHttpClient(
            url,
            self._network.connect,
            ssl_context=context,
            idle_max=_KEEPALIVE_CONNECTIONS,
            idle_total=self._idle_total,
        )

    def _context(self, scheme: str) -> ssl.SSLContext | None:
        """None where there is no TLS: a cron job that sends by plain HTTP need not build one."""
        return (self._ssl_context or verifying_context(trust_env=True)) if scheme == "https" else None

    def _close_leaving(self) -> None:
        """Take out what is idle for too long, and the oldest idle ones while there are too many."""
        stale = time.monotonic() - self._idle_seconds
        leaving: list[str] = []
        for origin, entry in self._entries.items():
            crowded = len(self._entries) - len(leaving) > self._origins_max
            if entry.users == 0 and (crowded or entry.used_at < stale):
                leaving.append(origin)
            elif not crowded:
                break
        for origin in leaving:
            self._entries.pop(origin).client.close()

    async def post(self, url: str, headers: Mapping[str, str], body: bytes, *, seconds: float) -> WebhookExchange:
        """Send one POST and read its answer, all of it within `seconds`.

        Of the answer's body at most 64 KiB are read and 16 KiB kept. What goes wrong with the body after the
        status line changes nothing: the status is the answer. A 421 on a connection that was in use before is asked
        once more at once on a fresh one (RFC 9110 §15.5.20): it says that this connection led to the wrong server.

        Returns:
            What happened. No fault of the network, the peer or the URL raises.
        """
        self._context(url.partition(":")[0].lower())  # before the clock runs: to build the first takes a while
        exchange = WebhookExchange(seconds)
        await self.carry_out(exchange, url, headers, body)
        return exchange

    async def carry_out(self, exchange: WebhookExchange, url: str, headers: Mapping[str, str], body: bytes) -> None:
        """`post`, for an exchange that the caller has: where its task is cancelled, that has what was so until then."""
        try:
            target = _checked(url)
            exchange.secure = target.url.scheme == "https"
            with self._lease(target) as client:
                await _send(client, exchange, target, headers, body)
            if exchange.status == _MISDIRECTED and not exchange.connected:
                await self._send_afresh(exchange, target, headers, body)
        except AddressRefused as refusal:
            exchange.fail("blocked_address", str(refusal))
        except httpx.InvalidURL:
            exchange.fail("bad_url", "the URL cannot be requested")
        finally:
            exchange.end()
        if exchange.status is not None:
            point("webhook.answered")

    async def _send_afresh(
        self, exchange: WebhookExchange, target: _Target, headers: Mapping[str, str], body: bytes
    ) -> None:
        """Repeat on a fresh connection. Where nothing of the repeat left, the first response counts; one that left
        and has no response may have been handled.
        """
        first = exchange.status
        exchange.status, exchange.wrote, exchange.bytes_read = None, False, 0
        client = self._client(target.url)
        try:
            await _send(client, exchange, target, headers, body)
        finally:
            client.close()
            if not exchange.wrote:
                exchange.status, exchange.wrote = first, True


async def _send(
    client: LoopHttpClient, exchange: WebhookExchange, target: _Target, headers: Mapping[str, str], body: bytes
) -> None:
    await client.send(exchange, "POST", target.path, headers, body, body_bytes_max=_BODY_READ_BYTES)
    exchange.body = exchange.body[:BODY_KEPT_BYTES]


@functools.lru_cache(_URLS_MAX)
def _checked(url: str) -> _Target:
    """The URL's target, if a request can be made of it: a row may have been written by someone else."""
    parsed = httpx.URL(url)
    try:
        host = parsed.host  # decodes `xn--` labels, which may be invalid
    except ValueError:
        host = ""
    if parsed.scheme not in ("http", "https") or not host or not 0 < (parsed.port or 443) < 65536:
        raise httpx.InvalidURL("not a web address")
    return _Target(parsed, f"{parsed.scheme}://{parsed.netloc.decode('ascii')}", parsed.raw_path)
