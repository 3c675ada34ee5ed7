"""Every crash point × kill, raise, pause past the lease: what is on disk, what becomes of it, what the peer saw."""

from __future__ import annotations

import signal
from dataclasses import replace
from typing import Any

import msgspec
import pytest

from effects import Effects, enqueue
from effects.kit import crashpoints
from effects.worker import Worker
from tests.faults.crash_table import HELD, REPEAT, TABLE, Row
from tests.peers.stub_server import StubServer
from tests.support.manual_workers import ManualWorker, all_but_late, rows, run_sql
from tests.support.processes import Child, Fleet, with_crash_point
from tests.support.sampling import sample
from tests.support.step_jobs import StepJob, step_jobs_app
from tests.support.waiting import wait_until

LEASE_SECONDS = 1.2
SHORT_LEASE = {"EFFECTS_LEASE_SECONDS": str(LEASE_SECONDS), "EFFECTS_HEARTBEAT_SECONDS": "0.2"}
# On a busy machine a heartbeat may come after half of the short lease. What was claimed then goes back unbegun, and its
# settlement would be the first to come to a point of `settle`.
LONG_LEASE = {**SHORT_LEASE, "EFFECTS_LEASE_SECONDS": "60"}
KEY = "the:one"
ASYNC = {REPEAT: "step_job.async", HELD: "step_job.async_held"}
HELDS = (HELD, ASYNC[HELD])
ON_LOOP = [
    (database, replace(row, kind=ASYNC[row.kind]))
    for database in ("sqlite", "postgresql")
    for row in TABLE
    if row.point.startswith(("perform.", "release.", "settle."))
]
SAMPLED, ON_LOOP_SAMPLED = 20, 10


@pytest.fixture
def app(database_url: str) -> Any:
    step_app = step_jobs_app(database_url, lease_seconds=LEASE_SECONDS, heartbeat_seconds=0.2, poll_seconds=0.2)
    yield step_app
    step_app.dispose()


def test_the_table_and_the_points_name_each_other() -> None:
    theirs = (
        "webhook.",
        "email.",
        "provider.",
        "report.",
        "fire.",
        "prune.",
        "bulk.",
        "migration.",
        "bucket.",
    )  # in their folders; test_crash_upkeep; tests/upgrades
    core = {name for name in crashpoints.POINTS if not name.startswith(theirs)}
    for action in crashpoints.ACTIONS:
        assert {row.point for row in TABLE if row.action == action} == core


@pytest.mark.parametrize("row", sample(TABLE, SAMPLED), ids=str)
def test_a_crash_leaves_what_the_table_lists(row: Row, app: Effects, stub_server: StubServer, processes: Fleet) -> None:
    step_job = StepJob("one", stub_server.port, row.steps or (("release", "do") if row.kind in HELDS else ("do",)))
    stub_server.hold("one")  # only those that ask stand here
    child = _strike(row, step_job, app, stub_server, processes)
    assert row.state in ("", _state(app))
    stub_server.open("one")
    _recover(row, app, child)
    before = _jobs_and_attempts(app)
    _end(row, child)
    assert _jobs_and_attempts(app) == before  # a late word changes nothing
    _check(row, app, stub_server)


@pytest.mark.parametrize(("database_url", "row"), sample(ON_LOOP, ON_LOOP_SAMPLED), indirect=["database_url"], ids=str)
def test_a_crash_on_the_event_loop_leaves_the_same(
    row: Row, app: Effects, stub_server: StubServer, processes: Fleet
) -> None:
    test_a_crash_leaves_what_the_table_lists(row, app, stub_server, processes)


def _strike(row: Row, step_job: StepJob, app: Effects, stub_server: StubServer, processes: Fleet) -> Child:
    """Bring one job to the point and let the action happen there; returns when it has."""
    lease = SHORT_LEASE if _outlives_its_lease(row) else LONG_LEASE
    plan = {"EFFECTS_CRASHPOINT": f"{row.point}:1:{row.action}", **lease}
    if row.point.startswith("enqueue."):
        child = processes.start(with_crash_point, enqueue_one, row.kind, step_job, **plan)
    else:
        enqueue_one(row.kind, step_job, app)
        if row.point.startswith("rescue."):
            ManualWorker(app, "gone").claim_one()
            _all_silent(app)
        child = processes.worker("--no-housekeeping", **plan)  # whose queue is claimed first
    if row.action == "kill":
        assert child.wait() == -signal.SIGKILL, child.output
    elif row.action == "pause":
        child.wait_frozen()
    else:
        by_itself = "error_type = 'CrashPoint'"  # recorded as the attempt's error, or told in the log
        wait_until(lambda: "CrashPoint" in child.output or rows(app, "job_attempts", by_itself))
    return child


def _outlives_its_lease(row: Row) -> bool:
    return row.action == "pause" and not row.point.startswith("settle.")


def enqueue_one(kind: str, step_job: StepJob, app: Effects | None = None) -> None:
    """Its limit makes the claim a transaction on PostgreSQL too; without one it is a single statement there."""
    enqueue(kind, step_job, key=KEY, limit_key="stub server", effects=app or step_jobs_app())


def _state(app: Effects) -> str:
    """Where the one job is, as the database has it."""
    jobs = rows(app, "jobs", "idempotency_key = :key", key=KEY) or rows(app, "job_history")
    if not jobs:
        return "absent"
    return "released" if jobs[0].get("released_at") else str(jobs[0]["status"])


def _recover(row: Row, app: Effects, child: Child) -> None:
    """A clean worker does what is left to do; of the dead it is enough that their silence is long."""
    if row.ended == "absent":
        Worker(app).drain()
        return
    if _outlives_its_lease(row):
        wait_until(lambda: not _heard_lately(app))
    elif row.action == "pause" and not row.locks:
        run_sql(app, "DELETE FROM effects_workers")  # it is declared dead
    if row.locks:
        child.thaw()
        if row.point.startswith("enqueue."):
            assert child.wait() == 0
            Worker(app).drain()
    elif row.action == "kill" or (row.action == "raise" and _ends_the_worker(row)):
        child.wait()
        _all_silent(app)
    wait_until(lambda: _drained(app, alone=child.frozen or child.exit_code is not None))


def _drained(app: Effects, *, alone: bool) -> bool:
    if alone:
        Worker(app).drain()
    return not rows(app, "jobs")


def _ends_the_worker(row: Row) -> bool:
    return row.point.startswith(("claim.", "enqueue."))


def _end(row: Row, child: Child) -> None:
    """Wake the paused one, let it find that its lease is gone, and stop whoever still lives."""
    child.thaw()
    if row.point.startswith("enqueue."):
        assert child.wait() == {"kill": -signal.SIGKILL, "raise": 1, "pause": 0}[row.action]
        return
    if row.action == "pause" and not row.locks:  # while it held locks, no worker could declare it dead
        child.wait_logged("worker.fenced_off")
    child.send(signal.SIGTERM)
    expected = {"kill": -signal.SIGKILL, "raise": 70 if _ends_the_worker(row) else 0, "pause": 0}
    assert child.wait() == expected[row.action], child.output
    assert "Traceback" not in child.output or _ends_the_worker(row)


def _check(row: Row, app: Effects, stub_server: StubServer) -> None:
    assert stub_server.done.count("one") in row.effects
    assert _state(app) == row.ended
    outcomes = tuple(
        attempt["outcome"] for attempt in rows(app, "job_attempts", "attempt > 0") if attempt["job_id"] == 1
    )
    if row.outcomes is None:
        assert outcomes[-1] == "succeeded"
        assert stub_server.done.count("one") <= 1 + outcomes.count("lost")
    else:
        assert outcomes == row.outcomes
    if "follow" in row.steps:  # all of the outcome or nothing of it
        [following] = rows(app, "job_history", "id <> 1")
        lost = rows(app, "job_attempts", "job_id = :id AND outcome = 'lost'", id=following["id"])
        assert 1 <= stub_server.done.count("one-then") <= 1 + len(lost)  # another thread may have begun it
    if row.ended == "dead":
        assert "(held for an operator)" in rows(app, "job_history")[0]["last_error"]
    if row.ended != "absent":
        [effect] = rows(app, "effect_ledger")
        is_reported = row.ended == "succeeded" or (row.action == "pause" and "one" in stub_server.done)  # late, if held
        assert effect["state"] == ("done" if is_reported else "unknown")
        assert enqueue(row.kind, _payload(app), key=KEY, effects=app).existing  # its caller may safely ask again


def _jobs_and_attempts(app: Effects) -> Any:
    state = all_but_late(app)
    return state["job_history"], state["job_attempts"]


def _payload(app: Effects) -> Any:
    payload = rows(app, "job_history")[0]["payload"]
    return msgspec.json.decode(payload) if isinstance(payload, str) else payload


def _heard_lately(app: Effects) -> bool:
    return bool(rows(app, "workers", f"seen_at >= {app.store.sql.after(str(-LEASE_SECONDS))}"))


def _all_silent(app: Effects) -> None:
    run_sql(app, f"UPDATE {app.store.sql.workers} SET seen_at = {app.store.sql.after('-3600')}")
