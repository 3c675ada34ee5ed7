"""Failovers that lose a second of commits: what the workers remember is written back, and no ledger lies.

`EFFECTS_TEST_LOSSES` (default 3); `make failover` gives 20.
"""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from tests.failover.conftest import Calling
from tests.failover.load import (
    KINDS,
    TimedStubServer,
    audit_findings,
    await_end,
    await_failover,
    await_orphans,
    judge,
    load,
    received_by,
)
from tests.support import databases
from tests.support.manual_workers import rows
from tests.support.processes import fleet
from tests.support.server_pair import server_pair
from tests.support.waiting import wait_until

LOSSES = int(os.environ.get("EFFECTS_TEST_LOSSES", "3"))
LOST_SECONDS = 1.0
JOBS_PER_SECOND = 50
ENV = {"EFFECTS_LEASE_SECONDS": "15", "EFFECTS_HEARTBEAT_SECONDS": "1", "EFFECTS_THREADS": "20"}
BRISK = {"EFFECTS_LEASE_SECONDS": "6", "EFFECTS_THREADS": "6"}  # what was lost is soon found, and waits in quarantine


@pytest.mark.timeout(120 + 30 * LOSSES)
def test_commits_lost_by_a_failover_are_written_back_or_listed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], calling: Calling
) -> None:
    pause = threading.Event()
    with (
        server_pair(synchronous=False) as pair,
        TimedStubServer() as stub_server,
        fleet(pair.url, tmp_path) as processes,
    ):
        databases.migrated(pair.url)
        app = calling(pair.options_url)
        workers = [processes.worker(**ENV) for _ in range(2)]
        with load(app, stub_server.port, jobs_per_second=JOBS_PER_SECOND, kinds=tuple(KINDS)) as under_way:
            for _ in range(LOSSES):
                pause.wait(1.0)
                pair.cut_off()
                pause.wait(LOST_SECONDS)
                pair.fail_over()
                pause.wait(2.0)
                pair.rejoin()
        await_end(app)
        await_orphans(app, under_way, stub_server)
        received = received_by(stub_server)
        verdict, findings = judge(app, under_way, received), audit_findings(app)
        evidence = rows(app, "evidence")
        failovers = rows(app, "failovers")
        assert [worker.exit_code for worker in workers] == [None, None]
        for worker in workers:
            print(worker.output[-3000:])
    orphans = {row["key"] for row in evidence if row["fate"] == "orphan"}
    summary = (
        f"{LOSSES} failovers: {len(under_way.acknowledged)} acknowledged, {len(verdict.forgotten)} forgotten, "
        f"{len(verdict.lost)} of them without effect, {len(verdict.unlisted)} effects unknown to the ledger, "
        f"{len(orphans)} orphans, {sum(received.values()) - len(received)} repeated, evidence {len(evidence)}"
    )
    with capsys.disabled():
        print(f"\n{summary}")
    print(failovers)
    assert verdict.wrong == [], summary
    assert set(verdict.unlisted) <= orphans, summary
    assert [finding for finding in findings if not finding.startswith("No effect arrived")] == [], summary
    assert (len(findings) > 0) is bool(orphans)


@pytest.mark.timeout(180)
@pytest.mark.parametrize("keeps_file", [False, True], ids=["memory", "file"])
def test_workers_that_are_killed_with_the_primary(
    keeps_file: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str], calling: Calling
) -> None:
    """What only they remembered is lost, and the failover says that they did not compare. A file closes that too."""
    pause = threading.Event()
    env = {**ENV, **BRISK, **({"EFFECTS_EVIDENCE_FOLDER": str(tmp_path / "evidence")} if keeps_file else {})}
    with (
        server_pair(synchronous=False) as pair,
        TimedStubServer() as stub_server,
        fleet(pair.url, tmp_path) as processes,
    ):
        databases.migrated(pair.url)
        app = calling(pair.options_url)
        workers = [processes.worker(**env) for _ in range(2)]
        wait_until(lambda: len(rows(app, "workers")) == 2)
        with load(app, stub_server.port, jobs_per_second=JOBS_PER_SECOND / 2, kinds=tuple(KINDS)) as under_way:
            pause.wait(2.0)
            pair.cut_off()
            pause.wait(LOST_SECONDS)
            for worker in workers:
                worker.kill()
            pair.fail_over()
        restarted = [processes.worker(**env) for _ in range(2)]
        await_failover(app)
        await_end(app)
        received = received_by(stub_server)
        verdict, findings = judge(app, under_way, received), audit_findings(app)
        orphans = {row["key"] for row in rows(app, "evidence", "fate = 'orphan'")}
        [failover] = rows(app, "failovers", "sign = 'name'")
        assert [worker.exit_code for worker in restarted] == [None, None]
    summary = (
        f"{len(under_way.acknowledged)} acknowledged, {len(verdict.forgotten)} forgotten, {len(verdict.unlisted)} "
        f"effects unknown to the ledger, {len(orphans)} orphans, {len(verdict.wrong)} recorded otherwise, "
        f"{failover['compared']} of {failover['workers']} workers compared"
    )
    with capsys.disabled():
        print(f"\n{'with' if keeps_file else 'without'} a file: {summary}")
    gap = [finding for finding in findings if finding.startswith("After a failover every worker")]
    if keeps_file:
        assert (verdict.wrong, gap) == ([], []), summary
        assert set(verdict.unlisted) <= orphans, summary
        assert list((tmp_path / "evidence").glob("*.evidence")) != []  # those of the living
    else:
        assert gap != [], summary
