"""Workers whose hosts have the time wrong, by minutes and by hours: the database's clock decides, theirs nothing."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from effects import Effects, NewJob, enqueue_many
from effects.operate.tables.audit import audit
from tests.peers.stub_server import StubServer
from tests.support import needs
from tests.support.manual_workers import row, rows
from tests.support.step_jobs import StepJob
from tests.support.waiting import wait_until
from tests.support.wrong_clock import WrongClock

WRONG = {"-1h": -3600.0, "-5m": -300.0, "+5m": 300.0, "+1h": 3600.0}
LEASE_SECONDS = 10  # a busy machine holds a process up for seconds, and is not the clock that is meant
LEASE = dt.timedelta(seconds=LEASE_SECONDS)
SOON_SECONDS = (4.0, 10.0)  # when the jobs become due, one after the other
SOON = 400
# Those who believe the clocks that are ahead would take these, in five minutes or an hour too early.
LATER_SECONDS = (60.0, 240.0, 3000.0)

pytestmark = pytest.mark.parametrize("database_url", ["postgresql"], indirect=True)


@pytest.fixture
def wrong(database_url: str, tmp_path: Path) -> Iterator[dict[str, WrongClock]]:
    """One worker a clock, each with a thread for jobs that are held, and four for the others."""
    needs.program("faketime")
    env = {"EFFECTS_QUEUES": "held=1", "EFFECTS_LEASE_SECONDS": str(LEASE_SECONDS)}
    clocks = {by: WrongClock(by, database_url, tmp_path / f"{by}.log", "work", **env) for by in WRONG}
    yield clocks
    for clock in clocks.values():
        clock.end()


@pytest.mark.timeout(300)
def test_no_wrong_clock_claims_early_or_rescues_early(
    wrong: dict[str, WrongClock], step_jobs: Effects, stub_server: StubServer
) -> None:
    stub_server.hold("held")
    held = [
        NewJob(job_type="step_job", payload=StepJob("held", stub_server.port, ("ask", "do")), queue="held")
        for _ in WRONG
    ]
    enqueue_many(held, effects=step_jobs)
    wait_until(lambda: stub_server.asked.count("held") >= len(WRONG))
    for by, clock in wrong.items():
        assert clock.first_log_time == pytest.approx(_now(step_jobs) + WRONG[by], abs=100)
    due = _enqueue_for_the_future(step_jobs, stub_server)

    wait_until(lambda: len(rows(step_jobs, "job_attempts")) >= SOON)
    _wait_for_leases(step_jobs, 1.5)
    attempts = rows(step_jobs, "job_attempts")
    assert [attempt for attempt in attempts if attempt["started_at"] < due[attempt["job_id"]]] == []
    assert {attempt["outcome"] for attempt in attempts} == {"succeeded"}
    assert len({attempt["worker"] for attempt in attempts}) == len(WRONG)
    standing = rows(step_jobs, "jobs", "queue = 'held'")
    assert [(job["status"], job["attempts"]) for job in standing] == [("running", 1)] * len(WRONG)
    assert len({job["locked_by"] for job in standing}) == len(WRONG)
    later = rows(step_jobs, "jobs", "queue <> 'held'")
    assert [(job["status"], job["attempts"]) for job in later] == [("queued", 0)] * len(LATER_SECONDS)

    _lose_one(step_jobs, wrong["+1h"], stub_server)
    assert len(stub_server.done) == SOON + len(WRONG)  # the lost one had not been done
    assert audit(step_jobs.store, step_jobs.ledgers) == []


def _lose_one(step_jobs: Effects, worker: WrongClock, stub_server: StubServer) -> None:
    """The others, ahead and behind, wait for a whole lease of silence; then they take its job back."""
    worker.end()
    silent = row(step_jobs, "workers", "pid = :pid", pid=worker.process.pid)
    wait_until(lambda: rows(step_jobs, "job_attempts", "outcome = 'lost'"))
    lost = row(step_jobs, "job_attempts", "outcome = 'lost'")
    assert lost["worker"] == silent["id"]
    assert lost["finished_at"] >= silent["seen_at"] + LEASE
    stub_server.open("held")
    wait_until(lambda: not rows(step_jobs, "jobs", "queue <> 'default'"))


def _enqueue_for_the_future(step_jobs: Effects, stub_server: StubServer) -> dict[int, Any]:
    """Jobs that become due one after the other, and some that do not; job id → when, by the database."""
    now = dt.datetime.fromtimestamp(_now(step_jobs), dt.UTC)
    first, last = SOON_SECONDS
    delays = [*(first + (last - first) * number / SOON for number in range(SOON)), *LATER_SECONDS]
    step_job = StepJob("soon", stub_server.port)
    jobs = [NewJob(job_type="step_job", payload=step_job, run_at=now + dt.timedelta(seconds=delay)) for delay in delays]
    ids = {receipt.job_id for receipt in enqueue_many(jobs, effects=step_jobs)}
    due = {job["id"]: job["run_at"] for job in rows(step_jobs, "jobs") if job["id"] in ids}
    assert len(due) == len(jobs)  # none was claimed and done before we looked
    return due


def _wait_for_leases(step_jobs: Effects, leases: float) -> None:
    """Until every worker has lived that long by the database's clock: leases that are alive outlive themselves."""

    def all_old() -> bool:
        workers = rows(step_jobs, "workers")
        return len(workers) == len(WRONG) and all(
            worker["seen_at"] - worker["started_at"] > leases * LEASE for worker in workers
        )

    wait_until(all_old)


def _now(step_jobs: Effects) -> float:
    with step_jobs.store.read() as connection:
        return step_jobs.store.now(connection)


def test_the_doctor_names_the_direction_of_a_wrong_clock(step_jobs: Effects, tmp_path: Path) -> None:
    doctor = WrongClock("+1h", step_jobs.settings.database_url, tmp_path / "doctor.log", "doctor")
    output, _ = doctor.process.communicate(timeout=60)
    assert doctor.process.returncode == 2
    assert "ahead of the database's" in output
