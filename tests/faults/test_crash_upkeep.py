"""Crashes beside the jobs: while a schedule's slot fires, and while old rows are deleted."""

from __future__ import annotations

import signal

import msgspec
import pytest

from effects import Effects, crashpoints, enqueue
from effects.crashpoints import ACTIONS, Action
from effects.prune import prune
from effects.schedules import Schedule
from effects.store import schedules
from effects.store.audit import audit
from effects.worker import Worker
from tests.peers.desk import Desk
from tests.support.errands import Errand, errands_app
from tests.support.hands import rows, run_sql
from tests.support.processes import Child, Fleet, with_crash_point
from tests.support.waiting import wait_until

FIRING = ("fire.before_commit", "fire.committed")
PRUNING = ("prune.before_commit", "prune.committed")
actions = pytest.mark.parametrize("action", ACTIONS)


def test_these_are_all_such_points() -> None:
    named = {name for name in crashpoints.POINTS if name.startswith(("fire.", "prune."))}
    assert named == {*FIRING, *PRUNING}


@actions
@pytest.mark.parametrize("point", FIRING)
def test_a_slot_that_a_crash_interrupts_happens_once(
    point: str, action: Action, errands: Effects, desk: Desk, processes: Fleet
) -> None:
    payload = msgspec.to_builtins(Errand("one", desk.port))
    schedules.add(errands.store, Schedule("yearly", "errand", payload=payload, cron="0 0 1 1 *"))
    run_sql(errands, f"UPDATE effects_job_definitions SET last_slot = {errands.store.sql.after('-400 * 86400')}")
    child = processes.worker(EFFECTS_CRASHPOINT=f"{point}:1:{action}")
    _strike(child, action)
    slots, jobs = rows(errands, "definition_runs"), rows(errands, "jobs") + rows(errands, "job_history")
    if action != "raise":  # that worker lives, and may be further by now
        assert len(slots) == len(jobs) == (point == "fire.committed")
    if (point, action) == ("fire.before_commit", "pause"):
        child.thaw()  # it holds the schedule's row, on SQLite the file
    wait_until(lambda: _drained(errands, child) and rows(errands, "job_history"))
    assert desk.done == ["one"]
    assert [one["outcome"] for one in rows(errands, "definition_runs")] == ["enqueued"]
    assert audit(errands) == []
    child.thaw()
    if action != "kill":
        child.wait_logged("worker.started")
        child.send(signal.SIGTERM)
    assert child.wait() == {"kill": -signal.SIGKILL, "raise": 0, "pause": 0}[action], child.output
    assert desk.done == ["one"]


def _drained(errands: Effects, child: Child) -> bool:
    if child.exit_code is not None or child.frozen or "CrashPoint" in child.output:
        Worker(errands).drain()
    return not rows(errands, "jobs")


@actions
@pytest.mark.parametrize("point", PRUNING)
def test_a_batch_that_a_crash_interrupts_goes_whole_or_not_at_all(
    point: str, action: Action, errands: Effects, desk: Desk, processes: Fleet
) -> None:
    for number in range(3):
        enqueue("errand", Errand("one", desk.port), key=f"k{number}", effects=errands)
    Worker(errands).drain()
    long_ago = errands.store.sql.after("-100 * 86400")
    run_sql(errands, f"UPDATE effects_job_history SET finished_at = {long_ago}")
    run_sql(errands, f"UPDATE effects_effect_ledger SET updated_at = {long_ago}")
    child = processes.start(with_crash_point, _prune, EFFECTS_CRASHPOINT=f"{point}:1:{action}")
    _strike(child, action)
    left = 0 if point == "prune.committed" else 3
    assert len(rows(errands, "job_history")) == len(rows(errands, "job_attempts")) == left
    assert len(rows(errands, "effect_ledger")) == 3
    assert audit(errands) == []
    child.thaw()
    assert child.wait() == {"kill": -signal.SIGKILL, "raise": 1, "pause": 0}[action], child.output
    prune(errands)
    assert rows(errands, "job_history") == rows(errands, "job_attempts") == rows(errands, "effect_ledger") == []
    assert audit(errands) == []


def _prune() -> None:
    prune(errands_app())


def _strike(child: Child, action: Action) -> None:
    if action == "kill":
        assert child.wait() == -signal.SIGKILL, child.output
    elif action == "pause":
        child.wait_frozen()
    else:
        child.wait_logged("CrashPoint")
