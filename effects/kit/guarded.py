"""Requests to addresses that others choose: names resolved in bounded time, and addresses vetted at the connect."""

from __future__ import annotations

import errno
import ipaddress
import socket
import time
from collections.abc import Mapping
from typing import TypeAlias

import httpcore

from effects.kit.addresses import AddressRefused, Private, allowed
from effects.kit.http.exchange import Exchange
from effects.kit.http.messages import clip
from effects.kit.http.on_loop import LoopStream, connect_on_loop
from effects.kit.network import Resolver, ResolverThreads, check_network, is_address, system_resolver

RESOLVE_SECONDS = 5.0
CONNECT_SECONDS = 5.0
RESOLVER_SECONDS, RESOLVER_HOSTS = 30.0, 3  # so many names in so long, and no other: it is our resolver
# What only this machine can be short of. A route that is missing may be the partner's doing.
_OURS = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM, errno.EADDRNOTAVAIL, errno.ENETDOWN)
_OURS_REASON = "this machine cannot open a connection"
# What an IPv6 address meets where IPv6 is off, or leads nowhere from here.
_NO_IPV6 = (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT, errno.ENETUNREACH, errno.EHOSTUNREACH)

ConnectFault: TypeAlias = httpcore.ConnectError | httpcore.ConnectTimeout


class GuardedNetwork:
    """Resolves once, refuses if any answer is not allowed, connects to exactly what it vetted. For one event loop.

    The URL is never rewritten, so that Host, SNI and the certificate check stay those of the name.
    """

    def __init__(self, *, allow_private: Private = False, resolver: Resolver = system_resolver) -> None:
        self._allow_private = allow_private
        self._resolver = ResolverThreads(resolver)
        self._watch = ResolverWatch()

    async def connect(self, exchange: Exchange, host: str, port: int) -> LoopStream:
        """Connect to the first vetted address that answers, within 5 s each and the deadline for all.

        Raises:
            AddressRefused: one of the addresses is not allowed; nothing was connected.
            httpcore.ConnectError, httpcore.ConnectTimeout: nothing was sent.
            NetworkRefused: a test admits no connection to this host.
        """
        check_network(host)
        exchange.connected = True
        exchange.enter("resolve")
        addresses = await self._vetted(exchange, host, port)
        exchange.enter("connect")
        faults: dict[str, ConnectFault] = {}
        try:
            for address in addresses:
                try:
                    return await connect_on_loop(exchange, address, port, CONNECT_SECONDS)
                except (httpcore.ConnectError, httpcore.ConnectTimeout) as fault:
                    faults[address] = fault
            raise _judge(exchange, faults)
        finally:
            faults.clear()  # they hold this frame, and it would hold them

    async def _vetted(self, exchange: Exchange, host: str, port: int) -> list[str]:
        addresses = [host] if is_address(host) else await self._resolve(exchange, host, port)
        for address in addresses:
            if not allowed(ipaddress.ip_address(address), allow_private=self._allow_private):
                raise AddressRefused
        return addresses

    async def _resolve(self, exchange: Exchange, host: str, port: int) -> list[str]:
        seconds = clip(exchange, RESOLVE_SECONDS, httpcore.ConnectTimeout)
        answer = await self._resolver.resolve(host, port, seconds)
        if answer is None or getattr(answer, "errno", None) == socket.EAI_AGAIN:
            if self._watch.failed(host):
                exchange.fail("our_resolver", "names of several endpoints do not resolve here")
            exchange.fail("dns_timeout", "the name was not resolved in time")
            raise httpcore.ConnectTimeout("resolver")
        if isinstance(answer, RuntimeError):  # no more threads
            exchange.fail("our_network", _OURS_REASON)
        if isinstance(answer, Exception) or not answer:
            exchange.fail("dns_failed", "the name does not resolve")
            raise httpcore.ConnectError("resolver")
        self._watch.worked()
        return answer


def _judge(exchange: Exchange, faults: Mapping[str, ConnectFault]) -> ConnectFault:
    """Record a fault of ours if no address failed for another reason; return the one that tells why.

    IPv6 that does not work here says nothing where an IPv4 address was tried as well.
    """
    telling = [fault for address, fault in faults.items() if ":" not in address or _number(fault) not in _NO_IPV6]
    telling = telling or list(faults.values())
    theirs = [fault for fault in telling if _number(fault) not in _OURS]
    if not theirs:
        exchange.fail("our_network", _OURS_REASON)
    return (theirs or telling)[-1]


def _number(fault: ConnectFault) -> int | None:
    """The operating system's."""
    return getattr(fault.__cause__, "errno", None)


class ResolverWatch:
    """Tells our resolver's outage from a partner's: names of three hosts time out in 30 s, and none resolves."""

    def __init__(self) -> None:
        self._failed: dict[str, float] = {}
        self._worked_at = float("-inf")

    def worked(self) -> None:
        """A name resolved."""
        self._worked_at = time.monotonic()
        self._failed.clear()

    def failed(self, host: str) -> bool:
        """A name did not resolve in time; whether that is our doing."""
        now = time.monotonic()
        self._failed = {name: at for name, at in self._failed.items() if now - at < RESOLVER_SECONDS}
        self._failed[host] = now
        return len(self._failed) >= RESOLVER_HOSTS and now - self._worked_at >= RESOLVER_SECONDS
