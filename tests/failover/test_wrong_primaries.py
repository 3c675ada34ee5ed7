"""A primary that hangs, and one that turns read-only, while the standby is promoted: workers go over to the new one."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.failover.conftest import Calling
from tests.failover.load import TimedStubServer, audit_findings, await_end, judge, load, received_by
from tests.support import databases
from tests.support.processes import fleet
from tests.support.server_pair import ServerPair, server_pair
from tests.support.waiting import wait_until

LEASE_SECONDS = 15.0
ENV = {"EFFECTS_LEASE_SECONDS": str(LEASE_SECONDS), "EFFECTS_HEARTBEAT_SECONDS": "1"}
PROCESSES = 2


def _hang(pair: ServerPair) -> None:
    pair.primary.freeze()


def _turn_read_only(pair: ServerPair) -> None:
    """For every transaction that begins from now on, on the connections that there are too."""
    pair.primary.configure(default_transaction_read_only="on")


@pytest.mark.parametrize("harm", [_hang, _turn_read_only], ids=["hangs", "read-only"])
@pytest.mark.timeout(180)
def test_workers_go_over_to_the_new_primary_within_a_lease(
    harm: Callable[[ServerPair], None], tmp_path: Path, capsys: pytest.CaptureFixture[str], calling: Calling
) -> None:
    with server_pair() as pair, TimedStubServer() as stub_server, fleet(pair.url, tmp_path) as processes:
        databases.migrated(pair.url)
        app = calling(pair.url)
        workers = [processes.worker(**ENV) for _ in range(PROCESSES)]
        with load(app, stub_server.port, jobs_per_second=50) as under_way:
            wait_until(lambda: len(stub_server.done) > 20)
            harm(pair)
            harmed = time.monotonic()
            pair.promote()
            wait_until(lambda: len(_registered(pair)) == PROCESSES)
            went_over = time.monotonic() - harmed
            pair.standby.kill()  # the cluster manager fences it off; a call of the app's that it holds ends only now
            acknowledged = len(under_way.acknowledged)
            wait_until(lambda: len(under_way.acknowledged) > acknowledged + 10)
        await_end(app)
        verdict, findings = judge(app, under_way, received_by(stub_server)), audit_findings(app)
        assert [worker.exit_code for worker in workers] == [None] * PROCESSES
    with capsys.disabled():
        print(f"\nevery worker on the new primary after {went_over:.1f} s")
    assert (verdict.forgotten, verdict.wrong, verdict.unlisted, findings) == ([], [], [], [])


def _registered(pair: ServerPair) -> list[object]:
    """The workers that have sent a heartbeat to the new primary since its promotion was noticed."""
    return pair.primary.sql(
        "SELECT id FROM effects_workers WHERE seen_at > (SELECT noticed_at FROM effects_failovers WHERE sign = 'name')"
    )  # type: ignore[return-value]
