"""Promotions of a synchronous standby under load: nothing acknowledged is lost, nothing is recorded wrongly.

`EFFECTS_TEST_PROMOTIONS` (default 3); `make failover` gives 20, and prints the figures.
"""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path

import pytest

from tests.failover.conftest import Calling
from tests.failover.load import TimedStubServer, audit_findings, await_end, judge, load, received_by
from tests.support import databases
from tests.support.processes import fleet
from tests.support.server_pair import server_pair

PROMOTIONS = int(os.environ.get("EFFECTS_TEST_PROMOTIONS", "3"))
JOBS_PER_SECOND = 200 if PROMOTIONS > 3 else 100
BETWEEN_SECONDS = 1.0
ENV = {"EFFECTS_LEASE_SECONDS": "15", "EFFECTS_HEARTBEAT_SECONDS": "1"}


@pytest.mark.timeout(120 + 20 * PROMOTIONS)
def test_promotions_under_load_lose_nothing_that_was_acknowledged(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], calling: Calling
) -> None:
    pause = threading.Event()
    silences: list[float] = []
    with server_pair() as pair, TimedStubServer() as stub_server, fleet(pair.url, tmp_path) as processes:
        databases.migrated(pair.url)
        app = calling(pair.options_url)
        workers = [processes.worker(**ENV) for _ in range(2)]
        with load(app, stub_server.port, jobs_per_second=JOBS_PER_SECOND) as under_way:
            for _ in range(PROMOTIONS):
                pause.wait(BETWEEN_SECONDS)
                pair.fail_over()
                promoted = time.monotonic()
                silences.append(stub_server.await_effect(promoted) - promoted)
                pair.rejoin()
            pause.wait(BETWEEN_SECONDS)
        await_end(app)
        received = received_by(stub_server)
        verdict, findings = judge(app, under_way, received), audit_findings(app)
        assert [worker.exit_code for worker in workers] == [None, None]
    summary = (
        f"{PROMOTIONS} promotions: {len(under_way.acknowledged)} acknowledged, {len(under_way.refused)} refused, "
        f"{sum(received.values()) - len(received)} repeated; first effect after {max(silences):.2f} s at most"
    )
    with capsys.disabled():
        print(f"\n{summary}")
    assert (verdict.forgotten, verdict.wrong, findings) == ([], [], []), summary
    assert set(verdict.unlisted) == set(), summary
