"""Reaching hosts: whether this process may, and names resolved beside the event loop."""

from __future__ import annotations

import asyncio
import ipaddress
import socket
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TypeAlias

NetworkRule: TypeAlias = Callable[[str], bool]
_rule: NetworkRule | None = None
Resolver: TypeAlias = Callable[[str, int], Sequence[str]]
Answer: TypeAlias = list[str] | Exception | None
SILENT_SECONDS = 0.1  # a name whose lookup takes longer is a silent one, until it resolves
QUICK_MAX = 64  # names that are not silent: so many lookups at a time
SILENT_MAX = 32  # silent ones: no more are begun
LOOKUPS_MAX = 256  # all, with those whose name turned out to be silent meanwhile
NAMES_MAX = 10_000  # silent names that are remembered


class NetworkRefused(AssertionError):
    """A test was about to leave this process; nothing was looked up and nothing was sent."""


def check_network(host: str) -> None:
    """Ask before a host is looked up or connected to. Every transport of effects and of its packages does.

    Raises:
        NetworkRefused: this process is a test's, whose rule does not admit the host.
    """
    if _rule is not None and not _rule(host):
        raise NetworkRefused(
            f"a test was about to connect to {host}: capture the job type (`toolkit.capture`), or, for a server of the "
            "test's own on this machine, Toolkit(…, allow_loopback=True)"
        )


def replace_network_rule(rule: NetworkRule | None) -> NetworkRule | None:
    """Set which hosts may be connected to and return the previous rule; None admits all."""
    global _rule
    before, _rule = _rule, rule
    return before


def system_resolver(host: str, port: int) -> list[str]:
    """All addresses of a host, as the system's resolver orders them."""
    answers = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(answer[4][0]) for answer in answers))


def is_address(host: str) -> bool:
    """Whether it is an IP address, which no resolver need be asked about."""
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


class _Lookup:
    """Of one name, for all that ask meanwhile."""

    def __init__(self, host: str, port: int, *, silent: bool) -> None:
        self.host, self.port, self.silent = host, port, silent
        self.askers: list[asyncio.Future[Answer]] = []


class ResolverThreads:
    """Asks a resolver that blocks, each time in its own thread. For one event loop.

    The system's resolver waits for a silent name server for many seconds, and cannot be stopped. So a lookup that has
    taken a tenth of a second no longer counts among the quick ones, of which there are 64 at a time, and until it
    resolves its name is known as a silent one. Of these 32 are begun at a time: the others wait for them, and never the
    quick ones. A name that is only slow resolves meanwhile, and is one of the quick ones again.
    """

    def __init__(self, resolver: Resolver) -> None:
        self._resolver = resolver
        self._lookups: dict[tuple[str, int], _Lookup] = {}
        self._waiting: dict[bool, dict[_Lookup, None]] = {False: {}, True: {}}  # by whether they are silent
        self._running = {False: 0, True: 0}
        self._silent: dict[str, None] = {}  # the oldest first

    async def resolve(self, host: str, port: int, seconds: float) -> Answer:
        """The resolver's answer or error; None where neither came in time. RuntimeError: there are no more threads."""
        lookup = self._lookups.get((host, port)) or self._new(host, port)
        loop = asyncio.get_running_loop()
        asker: asyncio.Future[Answer] = loop.create_future()
        lookup.askers.append(asker)
        timer = loop.call_later(seconds, _answer, asker, None)
        self._begin_waiting()
        try:
            return await asker
        finally:
            timer.cancel()
            lookup.askers.remove(asker)
            if not lookup.askers and self._waiting[lookup.silent].pop(lookup, self) is None:
                del self._lookups[host, port]

    def _new(self, host: str, port: int) -> _Lookup:
        lookup = self._lookups[host, port] = _Lookup(host, port, silent=host in self._silent)
        self._waiting[lookup.silent][lookup] = None
        return lookup

    def _begin_waiting(self) -> None:
        for silent, most in ((False, QUICK_MAX), (True, SILENT_MAX)):
            waiting = self._waiting[silent]
            while waiting and self._running[silent] < most and sum(self._running.values()) < LOOKUPS_MAX:
                lookup = next(iter(waiting))
                del waiting[lookup]
                self._begin(lookup)

    def _begin(self, lookup: _Lookup) -> None:
        loop = asyncio.get_running_loop()
        self._running[lookup.silent] += 1

        def ask() -> None:
            answer: Answer
            try:
                answer = list(self._resolver(lookup.host, lookup.port))
            except (OSError, UnicodeError) as error:
                answer = error
            with suppress(RuntimeError):  # the loop has ended
                loop.call_soon_threadsafe(self._end, lookup, answer)

        try:
            threading.Thread(target=ask, name="effects-resolve", daemon=True).start()
        except RuntimeError as error:
            loop.call_soon(self._end, lookup, error)
        else:
            loop.call_later(SILENT_SECONDS, self._note_silent, lookup)

    def _note_silent(self, lookup: _Lookup) -> None:
        """It has taken too long."""
        if self._lookups.get((lookup.host, lookup.port)) is not lookup:
            return  # it is over
        self._silent[lookup.host] = None
        while len(self._silent) > NAMES_MAX:
            del self._silent[next(iter(self._silent))]
        self._running[lookup.silent] -= 1
        lookup.silent = True
        self._running[True] += 1
        self._begin_waiting()

    def _end(self, lookup: _Lookup, answer: Answer) -> None:
        self._running[lookup.silent] -= 1
        del self._lookups[lookup.host, lookup.port]
        if isinstance(answer, list):
            self._silent.pop(lookup.host, None)
        for asker in lookup.askers:
            _answer(asker, answer)
        self._begin_waiting()


def _answer(asker: asyncio.Future[Answer], answer: Answer) -> None:
    if not asker.done():
        asker.set_result(answer)
