"""Names resolved in threads: silent name servers hold up no other names, and few threads ask for them."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from effects.kit import network
from effects.kit.guarded import GuardedNetwork
from effects.kit.network import QUICK_MAX, SILENT_MAX, ResolverThreads
from tests.support.blocking_posts import BlockingTransports

SECONDS = 20.0
NAMES = [f"silent{number}.test" for number in range(QUICK_MAX + SILENT_MAX + 30)]


class NameServer:
    """Answers at once for names that begin with `good`; for others, that it does not know, once its gate is open."""

    def __init__(self) -> None:
        self.gate = threading.Event()
        self.asked: Counter[str] = Counter()
        self.asking = self.most = 0
        self._lock = threading.Lock()

    def __call__(self, host: str, port: int) -> list[str]:
        with self._lock:
            self.asked[host] += 1
        if host.startswith("good"):
            return ["192.0.2.1"]
        with self._lock:
            self.asking += 1
            self.most = max(self.most, self.asking)
        self.gate.wait(SECONDS)
        with self._lock:
            self.asking -= 1
        raise socket.gaierror(socket.EAI_AGAIN, "try again")


@pytest.fixture
def server() -> Iterator[NameServer]:
    server = NameServer()
    yield server
    server.gate.set()


@contextmanager
def asking(threads: ResolverThreads, names: list[str]) -> Iterator[list[asyncio.Task[network.Answer]]]:
    yield [asyncio.create_task(threads.resolve(name, 443, SECONDS)) for name in names]


async def turns(server: NameServer, count: int) -> None:
    """Until so many are being asked."""
    while server.asking < count:
        await asyncio.sleep(0.005)


def test_names_that_all_stop_resolving_delay_others_only_briefly(
    server: NameServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(network, "SILENT_SECONDS", 0.05)

    async def run() -> None:
        threads = ResolverThreads(server)
        with asking(threads, NAMES) as tasks:
            assert await threads.resolve("good.test", 443, SECONDS) == ["192.0.2.1"]
            await turns(server, len(NAMES))  # each was a quick one until then
            server.gate.set()
            assert {getattr(answer, "errno", None) for answer in await asyncio.gather(*tasks)} == {socket.EAI_AGAIN}

    asyncio.run(run())


def test_names_that_are_known_as_silent_are_asked_by_few_threads(
    server: NameServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(network, "SILENT_SECONDS", 0.0)

    async def run() -> None:
        threads = ResolverThreads(server)
        with asking(threads, NAMES) as tasks:
            await turns(server, len(NAMES))
            server.gate.set()
            await asyncio.gather(*tasks)
        server.gate.clear()
        server.most = 0
        with asking(threads, NAMES) as tasks:
            await turns(server, SILENT_MAX)
            for number in range(3 * QUICK_MAX):
                assert await threads.resolve(f"good{number}.test", 443, SECONDS) == ["192.0.2.1"]
            assert server.most == SILENT_MAX
            server.gate.set()
            await asyncio.gather(*tasks)
        assert {server.asked[name] for name in NAMES} == {2}

    asyncio.run(run())


def test_a_name_that_resolves_again_is_no_longer_a_silent_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(network, "SILENT_SECONDS", 0.0)
    gate = threading.Event()

    def late(host: str, port: int) -> list[str]:
        gate.wait(SECONDS)
        return ["192.0.2.1"]

    async def run() -> None:
        threads = ResolverThreads(late)
        task = asyncio.create_task(threads.resolve("late.test", 443, SECONDS))
        while not threads._silent:
            await asyncio.sleep(0)
        gate.set()
        assert await task == ["192.0.2.1"]
        assert threads._silent == {}
        assert threads._lookups == {}
        assert threads._running == {False: 0, True: 0}

    asyncio.run(run())


def test_all_who_ask_for_a_name_meanwhile_get_one_answer(server: NameServer) -> None:
    async def run() -> None:
        threads = ResolverThreads(server)
        with asking(threads, ["slow.test"] * 50) as tasks:
            await turns(server, 1)
            server.gate.set()
            assert len(set(map(str, await asyncio.gather(*tasks)))) == 1
        assert server.asked["slow.test"] == 1

    asyncio.run(run())


def test_a_caller_that_waits_too_long_gets_no_answer(monkeypatch: pytest.MonkeyPatch, server: NameServer) -> None:
    monkeypatch.setattr(network, "SILENT_SECONDS", SECONDS)  # the lookups stay quick ones

    async def run() -> None:
        threads = ResolverThreads(server)
        with asking(threads, NAMES[:QUICK_MAX]) as tasks:
            await turns(server, QUICK_MAX)
            assert await threads.resolve("late.test", 443, 0.01) is None
            server.gate.set()
            await asyncio.gather(*tasks)
        assert server.asked["late.test"] == 0
        assert threads._lookups == {}

    asyncio.run(run())


def test_without_a_thread_the_fault_is_ours(monkeypatch: pytest.MonkeyPatch, server: NameServer) -> None:
    transports = BlockingTransports(GuardedNetwork(allow_private=True, resolver=server))
    start = threading.Thread.start

    def refuse(thread: threading.Thread) -> None:
        if thread.name == "effects-resolve":
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", refuse)
    exchange = transports.post("http://good.test/", {}, b"{}", seconds=SECONDS)
    transports.close()
    assert (exchange.failure, exchange.wrote) == ("our_network", False)
