"""How bytes leave: addresses vetted at the connect, and every wait clipped to what is left of the deadline.

httpx's own timeouts are for each read and write: a peer that drips a byte now and then holds a request for ever.
"""

from __future__ import annotations

import errno
import ipaddress
import queue
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeAlias

import httpcore

from effects.crashpoints import declare, point
from effects_webhooks.exchange import Exchange, current
from effects_webhooks.guard import AddressRefused, Private, allowed

Resolver: TypeAlias = Callable[[str, int], Sequence[str]]

RESOLVE_SECONDS = 5.0
CONNECT_SECONDS = 5.0
HEAD_BYTES_MAX = 64 * 1024  # of one answer's head, with the interim answers before it
WIRE_BYTES_MAX = 256 * 1024  # of one answer, with the framing of its body
RESOLVER_SECONDS, RESOLVER_HOSTS = 30.0, 3  # so many names in so long, and no other: it is our resolver
# What only this machine can be short of. A route that is missing may be the partner's doing.
_OURS = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM, errno.EADDRNOTAVAIL, errno.ENETDOWN)
_OURS_REASON = "this machine cannot open a connection"

declare(
    {
        "webhook.connected": "connection open, nothing of the request written",
        "webhook.written": "request written, nothing of the answer read",
        "webhook.answered": "answer read, outcome not recorded",
    }
)


def system_resolver(host: str, port: int) -> list[str]:
    """All addresses of a host, as the system's resolver orders them."""
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(answer[4][0]) for answer in found))


class GuardedBackend(httpcore.NetworkBackend):
    """Resolves once, refuses if any answer is not allowed, connects to exactly what it vetted.

    The URL is never rewritten, so that Host, SNI and the certificate check stay those of the name.
    """

    def __init__(self, *, allow_private: Private = False, resolver: Resolver = system_resolver) -> None:
        self._allow_private = allow_private
        self._resolver = resolver
        self._watch = ResolverWatch()
        self._plain = httpcore.SyncBackend()

    def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[Any] | None = None,
    ) -> httpcore.NetworkStream:
        """Connect to the first vetted address that answers, within 5 s each and the deadline for all.

        Raises:
            AddressRefused: one of the addresses is not allowed; nothing was connected.
            httpcore.ConnectError, httpcore.ConnectTimeout: nothing was sent.
        """
        exchange = current()
        exchange.connected = True
        addresses = self._vetted(exchange, host, port)
        exchange.enter("connect")
        for address in addresses[:-1]:
            try:
                return self._connect(exchange, address, port)
            except (httpcore.ConnectError, httpcore.ConnectTimeout):
                continue
        return self._connect(exchange, addresses[-1], port)

    def _vetted(self, exchange: Exchange, host: str, port: int) -> list[str]:
        addresses = [host] if _is_address(host) else self._resolve(exchange, host, port)
        for address in addresses:
            if not allowed(ipaddress.ip_address(address), allow_private=self._allow_private):
                raise AddressRefused
        return addresses

    def _connect(self, exchange: Exchange, address: str, port: int) -> httpcore.NetworkStream:
        seconds = min(CONNECT_SECONDS, _left(exchange, httpcore.ConnectTimeout))
        try:
            return ClippedStream(self._plain.connect_tcp(address, port, timeout=seconds, socket_options=()))
        except httpcore.ConnectError as error:
            if getattr(error.__cause__, "errno", None) in _OURS:
                exchange.fail("our_network", _OURS_REASON)
            raise

    def _resolve(self, exchange: Exchange, host: str, port: int) -> list[str]:
        answer = _ask(self._resolver, host, port, exchange)
        if answer is None or getattr(answer, "errno", None) == socket.EAI_AGAIN:
            if self._watch.failed(host):
                exchange.fail("our_resolver", "names of several endpoints do not resolve here")
            exchange.fail("dns_timeout", "the name was not resolved in time")
            raise httpcore.ConnectTimeout("resolver")
        if isinstance(answer, Exception) or not answer:
            exchange.fail("dns_failed", "the name does not resolve")
            raise httpcore.ConnectError("resolver")
        self._watch.worked()
        return answer


class ClippedStream(httpcore.NetworkStream):
    """A connection whose every wait ends with the deadline of the exchange that uses it."""

    def __init__(self, plain: httpcore.NetworkStream) -> None:
        self._plain = plain

    def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        exchange = current()
        if exchange.phase == "write":
            point("webhook.written")
            exchange.enter("answer")
        room = (HEAD_BYTES_MAX if exchange.phase == "answer" else WIRE_BYTES_MAX) - exchange.bytes_read
        if room <= 0:
            exchange.fail("answer_too_long", "the answer's headers do not end")
            raise httpcore.ReadError("too much")
        data = self._plain.read(min(max_bytes, room), timeout=_left(exchange, httpcore.ReadTimeout))
        exchange.bytes_read += len(data)
        return data

    def write(self, buffer: bytes, timeout: float | None = None) -> None:
        """Send all of it. The plain stream's timeout is for each `send`; a slow reader would get many."""
        exchange = current()
        if exchange.phase != "write":
            point("webhook.connected")
            exchange.enter("write")
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
            secure = self._plain.start_tls(ssl_context, server_hostname, timeout=left)
        except httpcore.ConnectError as error:
            cause = error.__cause__
            words = cause.verify_message if isinstance(cause, ssl.SSLCertVerificationError) else "handshake failed"
            exchange.fail("tls_failed", f"TLS: {words}")
            raise
        if secure.get_extra_info("ssl_object").version() is None:  # the peer was gone: CPython shakes no hands then
            secure.close()
            exchange.fail("tls_failed", "TLS: handshake failed")
            raise httpcore.ConnectError("no handshake")
        return ClippedStream(secure)

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


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


class ResolverWatch:
    """Tells our resolver's outage from a partner's: names of three hosts time out in 30 s, and none resolves."""

    def __init__(self) -> None:
        self._failed: dict[str, float] = {}
        self._worked_at = float("-inf")
        self._lock = threading.Lock()

    def worked(self) -> None:
        """A name resolved."""
        with self._lock:
            self._worked_at = time.monotonic()
            self._failed.clear()

    def failed(self, host: str) -> bool:
        """A name did not resolve in time; whether that is our doing."""
        now = time.monotonic()
        with self._lock:
            self._failed = {name: at for name, at in self._failed.items() if now - at < RESOLVER_SECONDS}
            self._failed[host] = now
            return len(self._failed) >= RESOLVER_HOSTS and now - self._worked_at >= RESOLVER_SECONDS


def _ask(resolver: Resolver, host: str, port: int, exchange: Exchange) -> list[str] | Exception | None:
    """The resolver's answer or error; None where neither came in time.

    It is asked in a thread of its own, because the system's call knows no timeout. One whose answer comes too late
    is left to the resolver's own limits.
    """
    answers: queue.SimpleQueue[list[str] | Exception] = queue.SimpleQueue()

    def ask() -> None:
        try:
            answers.put(list(resolver(host, port)))
        except (OSError, UnicodeError) as error:
            answers.put(error)

    seconds = min(RESOLVE_SECONDS, _left(exchange, httpcore.ConnectTimeout))
    try:
        threading.Thread(target=ask, name="effects-webhooks-resolve", daemon=True).start()
    except RuntimeError:  # no more threads
        exchange.fail("our_network", _OURS_REASON)
        raise httpcore.ConnectError("no thread") from None
    try:
        return answers.get(timeout=seconds)
    except queue.Empty:
        return None
