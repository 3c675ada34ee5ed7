"""Network access: addresses vetted at the connect, and name resolution in bounded time."""

from __future__ import annotations

import errno
import ipaddress
import queue
import socket
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeAlias

import httpcore

from effects.extend import check_network, stream
from effects_webhooks.transport.exchange import WebhookExchange
from effects_webhooks.transport.guard import AddressRefused, Private, allowed

Resolver: TypeAlias = Callable[[str, int], Sequence[str]]

RESOLVE_SECONDS = 5.0
CONNECT_SECONDS = 5.0
RESOLVER_SECONDS, RESOLVER_HOSTS = 30.0, 3  # so many names in so long, and no other: it is our resolver
# What only this machine can be short of. A route that is missing may be the partner's doing.
_OURS = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM, errno.EADDRNOTAVAIL, errno.ENETDOWN)
_OURS_REASON = "this machine cannot open a connection"


def system_resolver(host: str, port: int) -> list[str]:
    """All addresses of a host, as the system's resolver orders them."""
    answers = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(answer[4][0]) for answer in answers))


class GuardedBackend(httpcore.NetworkBackend):
    """Resolves once, refuses if any answer is not allowed, connects to exactly what it vetted.

    The URL is never rewritten, so that Host, SNI and the certificate check stay those of the name.
    """

    def __init__(self, *, allow_private: Private = False, resolver: Resolver = system_resolver) -> None:
        self._allow_private = allow_private
        self._resolver = resolver
        self._watch = ResolverWatch()

    def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[Any] | None = None,
    ) -> stream.DeadlineStream:
        """Connect to the first vetted address that answers, within 5 s each and the deadline for all.

        Raises:
            AddressRefused: one of the addresses is not allowed; nothing was connected.
            httpcore.ConnectError, httpcore.ConnectTimeout: nothing was sent.
            NetworkRefused: a test admits no connection to this host.
        """
        check_network(host)
        exchange = WebhookExchange.current()
        exchange.connected = True
        exchange.enter("resolve")
        addresses = self._vetted(exchange, host, port)
        exchange.enter("connect")
        for address in addresses[:-1]:
            try:
                return self._connect(exchange, address, port)
            except (httpcore.ConnectError, httpcore.ConnectTimeout):
                continue
        return self._connect(exchange, addresses[-1], port)

    def _vetted(self, exchange: WebhookExchange, host: str, port: int) -> list[str]:
        addresses = [host] if _is_address(host) else self._resolve(exchange, host, port)
        for address in addresses:
            if not allowed(ipaddress.ip_address(address), allow_private=self._allow_private):
                raise AddressRefused
        return addresses

    def _connect(self, exchange: WebhookExchange, address: str, port: int) -> stream.DeadlineStream:
        try:
            return stream.connect(exchange, address, port, CONNECT_SECONDS)
        except httpcore.ConnectError as error:
            if getattr(error.__cause__, "errno", None) in _OURS:
                exchange.fail("our_network", _OURS_REASON)
            raise

    def _resolve(self, exchange: WebhookExchange, host: str, port: int) -> list[str]:
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


def _ask(resolver: Resolver, host: str, port: int, exchange: WebhookExchange) -> list[str] | Exception | None:
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

    seconds = stream.clip(exchange, RESOLVE_SECONDS, httpcore.ConnectTimeout)
    try:
        threading.Thread(target=ask, name="effects-webhooks-resolve", daemon=True).start()
    except RuntimeError:  # no more threads
        exchange.fail("our_network", _OURS_REASON)
        raise httpcore.ConnectError("no thread") from None
    try:
        return answers.get(timeout=seconds)
    except queue.Empty:
        return None
