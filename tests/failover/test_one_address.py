"""One address for whichever server is the primary: HAProxy, and an address that moves."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import TypeAlias

import pytest

from tests.failover.conftest import Calling
from tests.failover.load import KINDS, TimedStubServer, audit_findings, await_end, judge, load, received_by
from tests.peers.haproxy import HAProxy
from tests.peers.moved_address import MovedAddress
from tests.support import databases
from tests.support.processes import fleet
from tests.support.server_pair import ServerPair, server_pair
from tests.support.waiting import wait_until

ENV = {"EFFECTS_LEASE_SECONDS": "15", "EFFECTS_HEARTBEAT_SECONDS": "1", "EFFECTS_THREADS": "20"}

Way: TypeAlias = Callable[[ServerPair], AbstractContextManager[tuple[str, Callable[[], object]]]]


@contextmanager
def _haproxy(pair: ServerPair) -> Iterator[tuple[str, Callable[[], object]]]:
    with HAProxy([pair.primary, pair.standby]) as haproxy:
        yield haproxy.url, pair.fail_over


@contextmanager
def _moved_address(pair: ServerPair) -> Iterator[tuple[str, Callable[[], object]]]:
    with MovedAddress(pair.primary.port) as address:

        def fail_over() -> None:
            pair.fail_over()
            address.move(pair.primary.port)

        yield address.url, fail_over


@contextmanager
def _hung_server(pair: ServerPair) -> Iterator[tuple[str, Callable[[], object]]]:
    """The old primary is cut off without a word: it runs, and its connections stay open."""
    with MovedAddress(pair.primary.port) as address:

        def fail_over() -> None:
            pair.primary.freeze()
            pair.promote()
            address.move(pair.primary.port)

        yield address.url, fail_over


@pytest.mark.timeout(180)
@pytest.mark.parametrize("way", [_haproxy, _moved_address, _hung_server], ids=["haproxy", "moved", "moved silently"])
def test_a_failover_behind_one_address(way: Way, tmp_path: Path, calling: Calling) -> None:
    with (
        server_pair() as pair,
        way(pair) as (url, fail_over),
        TimedStubServer() as stub_server,
        fleet(url, tmp_path) as processes,
    ):
        databases.migrated(pair.primary.url)
        app = calling(url)
        workers = [processes.worker(**ENV) for _ in range(2)]
        with load(app, stub_server.port, jobs_per_second=40, kinds=tuple(KINDS)) as under_way:
            wait_until(lambda: len(stub_server.done) > 40)
            fail_over()
            acknowledged = len(under_way.acknowledged)
            if way is _hung_server:
                pair.standby.kill()  # fenced off: a call of the app's that it holds ends only now
            wait_until(lambda: len(under_way.acknowledged) > acknowledged + 40)
        await_end(app)
        verdict, findings = judge(app, under_way, received_by(stub_server)), audit_findings(app)
        assert [worker.exit_code for worker in workers] == [None, None]
    assert (verdict.forgotten, verdict.wrong, verdict.unlisted, findings) == ([], [], [], [])
