"""Sending one request: one small transport for each origin, one TLS context for all.

Small, because httpcore looks through the whole pool at every request: one pool for 200 partners costs fifty
times as much. Synchronous, because the async pool costs ten times as much under load.
"""

from __future__ import annotations

import functools
import ssl
import threading
import time
import weakref
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import httpcore
import httpx

from effects.crashpoints import point
from effects_webhooks.exchange import WebhookExchange
from effects_webhooks.guard import AddressRefused
from effects_webhooks.network import GuardedBackend

DEADLINE_SECONDS = 15.0
BODY_READ_BYTES = 64 * 1024
BODY_KEPT_BYTES = 16 * 1024
ORIGINS_MAX = 500
IDLE_SECONDS = 60.0
KEEPALIVE_SECONDS = 4.0  # many servers close after 5: a request must not meet a connection that is going
KEEPALIVE_CONNECTIONS = 8
MISDIRECTED = 421


@functools.cache
def shared_ssl_context() -> ssl.SSLContext:
    """The context of every connection: TLS 1.2 or later, verified. Building one costs tens of milliseconds."""
    context = httpx.create_ssl_context()
    context.minimum_version = max(context.minimum_version, ssl.TLSVersion.TLSv1_2)  # whatever the system's default is
    return context


class OriginTransport(httpx.BaseTransport):
    """An httpx transport for one origin, over a pool with our own network backend.

    No redirects, no proxy, no retries, HTTP/1.1.
    """

    def __init__(self, backend: httpcore.NetworkBackend, ssl_context: ssl.SSLContext | None) -> None:
        self._pool = httpcore.ConnectionPool(
            ssl_context=ssl_context,
            max_connections=None,
            max_keepalive_connections=KEEPALIVE_CONNECTIONS,
            keepalive_expiry=KEEPALIVE_SECONDS,
            network_backend=backend,
        )

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        """Send it and give the answer, its body unread.

        Raises:
            AddressRefused: nothing was connected.
            httpx.TransportError: by its class.
        """
        url = request.url
        plain = httpcore.Request(
            method=request.method,
            url=httpcore.URL(scheme=url.raw_scheme, host=url.raw_host, port=url.port, target=url.raw_path),
            headers=request.headers.raw,
            content=request.stream,
            extensions=request.extensions,
        )
        with _as_httpx():
            answer = self._pool.handle_request(plain)
        return httpx.Response(answer.status, headers=answer.headers, stream=_Body(answer))

    def close(self) -> None:
        self._pool.close()


class _Body(httpx.SyncByteStream):
    """An answer's body as it comes from the wire: nothing is decompressed."""

    def __init__(self, answer: httpcore.Response) -> None:
        self._answer = answer

    def __iter__(self) -> Iterator[bytes]:
        with _as_httpx():
            yield from self._answer.iter_stream()

    def close(self) -> None:
        self._answer.close()


@contextmanager
def _as_httpx() -> Iterator[None]:
    """httpcore's errors under httpx's names; they are the same names."""
    try:
        yield
    except (httpcore.NetworkError, httpcore.TimeoutException, httpcore.ProtocolError) as error:
        raise getattr(httpx, type(error).__name__)(str(error)) from error


class _Entry:
    """A transport in use by `users` threads."""

    def __init__(self, transport: OriginTransport) -> None:
        self.transport = transport
        self.users = 0
        self.used_at = time.monotonic()


class Transports:
    """The transports of up to 500 origins, least recently used first out, idle ones out after 60 s.

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
        self._entries: OrderedDict[str, _Entry] = OrderedDict()
        self._lock = threading.Lock()
        self.close = weakref.finalize(self, _close_all, self._entries)

    def __len__(self) -> int:
        return len(self._entries)

    @contextmanager
    def lease(self, url: httpx.URL) -> Iterator[OriginTransport]:
        """The transport of the URL's origin."""
        origin = f"{url.scheme}://{url.netloc.decode('ascii')}"
        with self._lock:
            entry = self._entries.get(origin)
            if entry is None:
                entry = self._entries[origin] = _Entry(self._transport(url.scheme))
            entry.users += 1
            self._entries.move_to_end(origin)
            leaving = self._leaving()
        for gone in leaving:
            gone.transport.close()
        try:
            yield entry.transport
        finally:
            with self._lock:
                entry.users -= 1
                entry.used_at = time.monotonic()

    def _transport(self, scheme: str) -> OriginTransport:
        return OriginTransport(self._backend, self._context(scheme))

    def _context(self, scheme: str) -> ssl.SSLContext | None:
        """None where there is no TLS: a cron job that sends by plain HTTP need not build one."""
        return (self._ssl_context or shared_ssl_context()) if scheme == "https" else None

    def _leaving(self) -> list[_Entry]:
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
                request = httpx.Request("POST", _checked(url), headers=dict(headers), content=body)
                exchange.secure = request.url.scheme == "https"
                with self.lease(request.url) as transport:
                    _read(exchange, transport.handle_request(request))
                if exchange.status == MISDIRECTED and not exchange.connected:
                    self._ask_afresh(exchange, request)
            except AddressRefused as refusal:
                exchange.fail("blocked_address", str(refusal))
            except (httpx.InvalidURL, httpx.LocalProtocolError):
                exchange.fail("bad_url", "the URL cannot be requested")
            except httpx.TransportError as error:
                explain(exchange, error)
            if exchange.status is not None:
                point("webhook.answered")
        return exchange

    def _ask_afresh(self, exchange: WebhookExchange, request: httpx.Request) -> None:
        """On a connection of its own. Where that brings no answer, the one before it stands."""
        exchange.bytes_read = 0
        transport = self._transport(request.url.scheme)
        try:
            _read(exchange, transport.handle_request(request))
        finally:
            transport.close()


def _checked(url: str) -> httpx.URL:
    """The URL, if a request can be made of it: a row may have been written by somebody else."""
    parsed = httpx.URL(url)
    try:
        host = parsed.host  # decodes `xn--` labels, which may be none
    except ValueError:
        host = ""
    if parsed.scheme not in ("http", "https") or not host or not 0 < (parsed.port or 443) < 65536:
        raise httpx.InvalidURL("not a web address")
    return parsed


def _close_all(entries: OrderedDict[str, _Entry]) -> None:
    while entries:
        entries.popitem()[1].transport.close()


def _read(exchange: WebhookExchange, response: httpx.Response) -> None:
    exchange.status = response.status_code
    exchange.head = response.headers.raw
    exchange.answered_at = time.time()
    exchange.enter("body")
    kept = bytearray()
    try:
        for chunk in response.stream:  # type: ignore[union-attr]
            kept += chunk
            if len(kept) > BODY_READ_BYTES:
                exchange.body_end = "cut"
                break
    except httpx.TransportError:
        exchange.body_end = "broken"
    finally:
        exchange.body = bytes(kept[:BODY_KEPT_BYTES])
        response.close()


def explain(exchange: WebhookExchange, error: httpx.TransportError) -> None:
    """Give the fault its code, by its class and the phase in which it came."""
    timed_out = isinstance(error, httpx.TimeoutException)
    if exchange.wrote:
        if timed_out:
            exchange.fail("answer_timeout", "the request left and no answer came in time")
        elif isinstance(error, httpx.ProtocolError) and not _silent(exchange):
            exchange.fail("bad_answer", "the request left and its answer broke off or is not HTTP")
        else:
            exchange.fail("no_answer", "the request left and the connection ended without an answer")
    elif timed_out:
        exchange.fail(f"{_stage(exchange)}_timeout", "no connection within the time limit")
    else:
        exchange.fail(f"{_stage(exchange)}_failed", "no connection to the endpoint")


def _silent(exchange: WebhookExchange) -> bool:
    """httpcore calls a connection that closes without a word a protocol error, too."""
    return exchange.bytes_read == 0


def _stage(exchange: WebhookExchange) -> str:
    return "tls" if exchange.phase == "tls" else "connect"
