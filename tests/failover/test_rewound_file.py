"""A database without names for its histories goes back under a running worker: its heartbeats do, too."""

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from effects import Effects, enqueue
from effects.operate.tables.audit import audit
from effects.store.limits import queue_pauses
from effects.worker import Worker
from tests.peers.stub_server import StubServer
from tests.support.manual_workers import row, rows
from tests.support.running import running
from tests.support.step_jobs import StepJob, step_jobs_app
from tests.support.waiting import wait_until

STEPS = ("release", "do")


@pytest.fixture
def app(tmp_path: Path, sqlite_template: Path) -> Iterator[Effects]:
    shutil.copy(sqlite_template, tmp_path / "effects.db")
    step_app = step_jobs_app(f"sqlite:///{tmp_path / 'effects.db'}", lease_seconds=10.0, heartbeat_seconds=0.2)
    yield step_app
    step_app.dispose()


def _copy(source: Path, target: Path) -> None:
    """Page by page into the same file, as a restore in place does."""
    with closing(sqlite3.connect(source)) as origin, closing(sqlite3.connect(target)) as copy:
        origin.backup(copy)


def _pause(app: Effects, *, paused: bool) -> None:
    with app.store.begin() as connection:
        if paused:
            queue_pauses.pause(app.store, connection, "default", actor="test", create=True)
        else:
            queue_pauses.resume(app.store, connection, "default", actor="test")


@pytest.mark.parametrize("job_type", ["step_job", "step_job.held"])
def test_done_effects_stay_done(app: Effects, job_type: str, tmp_path: Path) -> None:
    live, backup = tmp_path / "effects.db", tmp_path / "backup.db"
    with StubServer() as stub_server, running(Worker(app)):
        wait_until(lambda: [worker["beat"] > 0 for worker in rows(app, "workers")] == [True])
        _pause(app, paused=True)
        enqueue(job_type, StepJob("one", stub_server.port, STEPS), key="one", effects=app)
        _copy(live, backup)
        beat = row(app, "workers")["beat"]
        _pause(app, paused=False)
        enqueue(job_type, StepJob("two", stub_server.port, STEPS), key="two", effects=app)
        wait_until(lambda: len(stub_server.done) == 2 and not rows(app, "jobs"))
        wait_until(lambda: row(app, "workers")["beat"] > beat + 2)
        _copy(backup, live)
        wait_until(lambda: len(rows(app, "evidence")) == 2)
        _pause(app, paused=False)
        assert rows(app, "jobs") == []
    assert sorted(stub_server.done) == ["one", "two"]
    assert [failover["sign"] for failover in rows(app, "failovers")] == ["first", "heartbeat"]
    assert {(evidence["key"], evidence["fate"]) for evidence in rows(app, "evidence")} == {
        ("one", "recorded"),
        ("two", "orphan"),
    }
    assert row(app, "effect_ledger")["state"] == "done"
    assert [finding.check for finding in audit(app.store, app.ledgers)] == ["effects_known"]


def test_a_worker_that_ends_in_order_leaves_no_file(app: Effects, tmp_path: Path) -> None:
    """Its file is for its owner alone, and names no payload."""
    folder = tmp_path / "evidence"
    keeping = step_jobs_app(app.engine.url.render_as_string(), evidence_folder=str(folder))
    with StubServer() as stub_server, running(Worker(keeping)):
        enqueue("step_job.held", StepJob("one", stub_server.port, STEPS), key="one", effects=keeping)
        wait_until(lambda: stub_server.done and not rows(app, "jobs"))
        wait_until(lambda: any(b'"succeeded"' in file.read_bytes() for file in folder.iterdir()))
        files = list(folder.iterdir())
        assert {file.stat().st_mode & 0o777 for file in files} == {0o600}
        assert not any(b'"steps"' in file.read_bytes() for file in files)
    assert list(folder.iterdir()) == []
    keeping.dispose()
