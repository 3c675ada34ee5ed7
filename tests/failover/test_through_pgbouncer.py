"""A failover behind PgBouncer, whose target is moved: workers see one address, and some of them no outage."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.failover.conftest import Calling
from tests.failover.load import (
    KINDS,
    TimedStubServer,
    audit_findings,
    await_end,
    await_orphans,
    judge,
    load,
    received_by,
)
from tests.peers.pgbouncer import PgBouncer
from tests.support import databases
from tests.support.manual_workers import rows
from tests.support.processes import fleet
from tests.support.server_pair import server_pair
from tests.support.waiting import wait_until

ENV = {"EFFECTS_LEASE_SECONDS": "15", "EFFECTS_HEARTBEAT_SECONDS": "1", "EFFECTS_THREADS": "20"}


@pytest.mark.timeout(180)
@pytest.mark.parametrize("synchronous", [True, False], ids=["synchronous", "without the last commits"])
def test_a_failover_behind_a_pooler(synchronous: bool, tmp_path: Path, calling: Calling) -> None:
    with server_pair(synchronous=synchronous) as pair, PgBouncer(pair.primary.url) as bouncer:
        url = bouncer.url("postgres").replace("effects@", "postgres@")
        with TimedStubServer() as stub_server, fleet(url, tmp_path) as processes:
            databases.migrated(pair.primary.url)
            app = calling(url)
            workers = [processes.worker(**ENV) for _ in range(2)]
            with load(app, stub_server.port, jobs_per_second=40, kinds=tuple(KINDS)) as under_way:
                wait_until(lambda: len(stub_server.done) > 40)
                if not synchronous:
                    pair.cut_off()
                    count = len(stub_server.done)
                    wait_until(lambda: len(stub_server.done) > count + 20)
                pair.fail_over()
                bouncer.lead_to(pair.primary.url)
                acknowledged = len(under_way.acknowledged)
                wait_until(lambda: len(under_way.acknowledged) > acknowledged + 40)
            await_end(app)
            await_orphans(app, under_way, stub_server)
            verdict, findings = judge(app, under_way, received_by(stub_server)), audit_findings(app)
            orphans = {row["key"] for row in rows(app, "evidence", "fate = 'orphan'")}
            assert [worker.exit_code for worker in workers] == [None, None], [worker.output for worker in workers]
    assert verdict.wrong == []
    assert set(verdict.unlisted) <= orphans
    if synchronous:
        assert (verdict.forgotten, findings) == ([], [])
