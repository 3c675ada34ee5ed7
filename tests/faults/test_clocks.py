"""Workers whose hosts have the time wrong, by minutes and by hours: the database's clock decides, theirs nothing."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from effects import Effects, NewJob, enqueue_many
from effects.store.audit import audit
from tests.peers.desk import Desk
from tests.support import needs
from tests.support.errands import Errand
from tests.support.hands import row, rows
from tests.support.waiting import wait_until
from tests.support.wrong_clock import WrongClock

WRONG = {"-1h": -3600.0, "-5m": -300.0, "+5m": 300.0, "+1h": 3600.0}
LEASE = dt.timedelta(seconds=3)  # of these workers
SOON_SECONDS = (4.0, 10.0)  # when the jobs become due, one after the other
PATIENCE_SECONDS = 60.0  # four processes start, on a machine that may be busy
SOON = 400
# Those who believe the clocks that are ahead would take these, in five minutes or an hour too early.
LATER_SECONDS = (60.0, 240.0, 3000.0)

pytestmark = pytest.mark.parametrize("database_url", ["postgresql"], indirect=True)


@pytest.fixture
def wrong(database_url: str, tmp_path: Path) -> Iterator[dict[str, WrongClock]]:
    """One worker a clock, each with a thread for jobs that are held, and four for the others."""
    needs.program("faketime")
    lanes = {"EFFECTS_LANES": "held=1"}
    made = {by: WrongClock(by, database_url, tmp_path / f"{by}.log", "work", **lanes) for by in WRONG}
    yield made
    for one in made.values():
        one.end()


@pytest.mark.timeout(300)
def test_no_wrong_clock_claims_early_or_rescues_early(
    wrong: dict[str, WrongClock], errands: Effects, desk: Desk
) -> None:
    desk.hold("held")
    held = [NewJob(job_type="errand", payload=Errand("held", desk.port, ("ask", "do")), queue="held") for _ in WRONG]
    enqueue_many(held, effects=errands)
    _wait_until(lambda: desk.asked.count("held") >= len(WRONG))
    for by, one in wrong.items():
        assert one.first_log_time == pytest.approx(_now(errands) + WRONG[by], abs=100)
    due = _enqueue_for_the_future(errands, desk)

    _wait_until(lambda: len(rows(errands, "job_attempts")) >= SOON)
    _wait_for_leases(errands, 2.5)
    attempts = rows(errands, "job_attempts")
    assert [one for one in attempts if one["started_at"] < due[one["job_id"]]] == []
    assert {one["outcome"] for one in attempts} == {"succeeded"}
    assert len({one["worker"] for one in attempts}) == len(WRONG)
    standing = rows(errands, "jobs", "queue = 'held'")
    assert [(one["status"], one["lease_token"]) for one in standing] == [("running", 1)] * len(WRONG)
    assert len({one["locked_by"] for one in standing}) == len(WRONG)
    later = rows(errands, "jobs", "queue <> 'held'")
    assert [(one["status"], one["attempts"]) for one in later] == [("queued", 0)] * len(LATER_SECONDS)

    _lose_one(errands, wrong["+1h"], desk)
    assert len(desk.done) == SOON + len(WRONG)  # the lost one had not been done
    assert audit(errands) == []


def _lose_one(errands: Effects, worker: WrongClock, desk: Desk) -> None:
    """The others, ahead and behind, wait for a whole lease of silence; then they take its job back."""
    worker.end()
    silent = row(errands, "workers", "pid = :pid", pid=worker.process.pid)
    _wait_until(lambda: rows(errands, "job_attempts", "outcome = 'lost'"))
    lost = row(errands, "job_attempts", "outcome = 'lost'")
    assert lost["worker"] == silent["id"]
    assert lost["finished_at"] >= silent["seen_at"] + LEASE
    desk.open("held")
    _wait_until(lambda: not rows(errands, "jobs", "queue <> 'default'"))


def _enqueue_for_the_future(errands: Effects, desk: Desk) -> dict[int, Any]:
    """Jobs that become due one after the other, and some that do not; job id → when, by the database."""
    now = dt.datetime.fromtimestamp(_now(errands), dt.UTC)
    first, last = SOON_SECONDS
    delays = [*(first + (last - first) * number / SOON for number in range(SOON)), *LATER_SECONDS]
    errand = Errand("soon", desk.port)
    jobs = [NewJob(job_type="errand", payload=errand, run_at=now + dt.timedelta(seconds=one)) for one in delays]
    ids = {receipt.job_id for receipt in enqueue_many(jobs, effects=errands)}
    due = {one["id"]: one["run_at"] for one in rows(errands, "jobs") if one["id"] in ids}
    assert len(due) == len(jobs)  # none was claimed and done before we looked
    return due


def _wait_for_leases(errands: Effects, leases: float) -> None:
    """Until every worker has lived that long by the database's clock: leases that are alive outlive themselves."""

    def all_old() -> bool:
        found = rows(errands, "workers")
        return len(found) == len(WRONG) and all(one["seen_at"] - one["started_at"] > leases * LEASE for one in found)

    _wait_until(all_old)


def _wait_until(condition: Callable[[], object]) -> None:
    wait_until(condition, seconds=PATIENCE_SECONDS)


def _now(errands: Effects) -> float:
    with errands.store.read() as connection:
        return errands.store.now(connection)


def test_the_doctor_says_which_way_a_clock_is_wrong(errands: Effects, tmp_path: Path) -> None:
    doctor = WrongClock("+1h", errands.settings.database_url, tmp_path / "doctor.log", "doctor")
    output, _ = doctor.process.communicate(timeout=60)
    assert doctor.process.returncode == 2
    assert "ahead of the database's" in output
