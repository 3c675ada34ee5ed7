"""What a process keeps for as long as it lives has a bound: each is filled with more names than it may hold."""

from __future__ import annotations

import gc
import os
import weakref
from collections.abc import Callable

import pytest

from effects import Effects
from effects.kit import process
from effects.kit.process import Newest
from effects.model.job import Job
from effects.model.schedules import Schedule
from effects.model.settlement import Settlement
from effects.operate import metrics
from effects.operate.metrics import WorkerMetrics
from effects.store import schedules
from effects.web.database import Readings
from effects.worker import Worker
from effects.worker.recording import failover_evidence, settler

MOST, NAMES = 20, 500


def test_the_newest_stay_and_the_oldest_leave() -> None:
    newest = Newest[str, int](2)
    newest.update({"a": 1, "b": 2})
    newest["a"] = 3  # set again: the newest now
    newest["c"] = 4
    assert newest == {"a": 3, "c": 4}


def settlement(number: int) -> Settlement:
    job = Job(number, f"type{number}", "{}", "default", 5, 1, None, 1, 0, 0, True, False, 0.0)
    return Settlement(job=job, status="succeeded", outcome="succeeded", verdict="done")


def fill_metrics(app: Effects) -> int:
    """Rows that were written by others name any job type."""
    counts = WorkerMetrics()
    for number in range(NAMES):
        counts.recorded([settlement(number)])
    return max(len(family.samples) for family in counts.families())


def fill_refused(app: Effects) -> int:
    evidence = Worker(app)._parts.evidence
    for number in range(NAMES):
        evidence.refused([settlement(number)])
    return len(evidence._refused)


def fill_unwritable(app: Effects) -> int:
    recorder = Worker(app)._parts.settler
    for number in range(NAMES):
        recorder._writer._unwritable.append(settlement(number))
        recorder._put_aside()
    return len(recorder.unwritable)


def fill_schedules(app: Effects) -> int:
    """One for each customer, who leaves again."""
    scheduler = Worker(app)._parts._scheduler
    for number in range(3 * MOST):
        with app.store.begin() as connection:
            connection.exec_driver_sql(f"DELETE FROM {app.store.sql.job_definitions}")
        schedule = Schedule(f"s{number}", "scripted", payload={}, cron="0 0 1 1 *")
        schedules.add(app.store, schedule, actor="ann")
        scheduler.round()
    return len(scheduler._checked)


def fill_readings(app: Effects) -> int:
    readings = Readings()
    for number in range(NAMES):
        readings.get(("run", number), 60.0, lambda: 1)
        readings.forget()
    return len(readings._locks) + len(readings._kept)


def fill_forks(app: Effects) -> int:
    """Each Effects has its connections and its notifier forgotten in a child."""
    before = len(process._owners)
    for _ in range(MOST):
        Effects("sqlite:///effects.db").dispose()
    gc.collect()
    return len(process._owners) - before


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
@pytest.mark.parametrize(
    "fill", [fill_metrics, fill_refused, fill_unwritable, fill_schedules, fill_readings, fill_forks]
)
def test_it_holds_no_more_than_its_bound(
    fill: Callable[[Effects], int], app: Effects, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module, name in ((metrics, "NAMES_MAX"), (failover_evidence, "KEPT_MAX"), (settler, "UNWRITTEN_MAX")):
        monkeypatch.setattr(module, name, MOST)
    assert fill(app) <= 2 * MOST


def test_an_object_acts_after_a_fork_and_is_not_kept_alive_by_it() -> None:
    class Owner:
        forked = False

    owner = Owner()
    process.after_fork_in_child(owner, lambda owner: setattr(owner, "forked", True))
    child = os.fork()
    if child == 0:
        os._exit(0 if owner.forked else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert not owner.forked
    kept = weakref.ref(owner)
    del owner
    assert kept() is None
