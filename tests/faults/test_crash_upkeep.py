"""Crashes beside the jobs: while a schedule's slot fires, while old rows are deleted, and in a bulk action."""

from __future__ import annotations

import signal
from itertools import product

import msgspec
import pytest

from effects import Effects, enqueue
from effects.app.retention import prune
from effects.kit import crashpoints
from effects.kit.crashpoints import ACTIONS, Action
from effects.model.schedules import Schedule
from effects.operate.bulk import BulkStarted, carry_out, find_bulk, preview
from effects.operate.tables.audit import audit
from effects.operate.tables.bulk_selection import BulkAction
from effects.operate.tables.dead_letters import DeadFilters
from effects.store import schedules as schedule_definitions
from effects.worker import Worker
from tests.peers.stub_server import StubServer
from tests.support.manual_workers import rows, run_sql
from tests.support.many_dead import many_dead
from tests.support.processes import Child, Fleet, with_crash_point
from tests.support.sampling import sample
from tests.support.step_jobs import StepJob, step_jobs_app
from tests.support.waiting import wait_until

FIRING = ("fire.before_commit", "fire.committed")
PRUNING = ("prune.before_commit", "prune.committed")
BULK = ("bulk.before_commit", "bulk.committed")
actions = pytest.mark.parametrize("action", ACTIONS)


def test_the_lists_of_crash_points_are_complete() -> None:
    named = {name for name in crashpoints.POINTS if name.startswith(("fire.", "prune.", "bulk."))}
    assert named == {*FIRING, *PRUNING, *BULK}


@actions
@pytest.mark.parametrize("point", FIRING)
def test_a_slot_that_a_crash_interrupts_happens_once(
    point: str, action: Action, step_jobs: Effects, stub_server: StubServer, processes: Fleet
) -> None:
    payload = msgspec.to_builtins(StepJob("one", stub_server.port))
    schedule_definitions.add(
        step_jobs.store, Schedule("yearly", "step_job", payload=payload, cron="0 0 1 1 *"), actor="ann"
    )
    run_sql(step_jobs, f"UPDATE effects_job_definitions SET last_slot = {step_jobs.store.sql.after('-400 * 86400')}")
    child = processes.worker(EFFECTS_CRASHPOINT=f"{point}:1:{action}")
    _strike(child, action)
    slots, jobs = rows(step_jobs, "definition_runs"), rows(step_jobs, "jobs") + rows(step_jobs, "job_history")
    if action != "raise":  # that worker lives, and may be further by now
        assert len(slots) == len(jobs) == (point == "fire.committed")
    if (point, action) == ("fire.before_commit", "pause"):
        child.thaw()  # it holds the schedule's row, on SQLite the file
    wait_until(lambda: _drained(step_jobs, child) and rows(step_jobs, "job_history"))
    assert stub_server.done == ["one"]
    assert [run["outcome"] for run in rows(step_jobs, "definition_runs")] == ["enqueued"]
    assert audit(step_jobs.store, step_jobs.ledgers) == []
    child.thaw()
    if action != "kill":
        child.wait_logged("worker.started")
        child.send(signal.SIGTERM)
    assert child.wait() == {"kill": -signal.SIGKILL, "raise": 0, "pause": 0}[action], child.output
    assert stub_server.done == ["one"]


def _drained(step_jobs: Effects, child: Child) -> bool:
    if child.exit_code is not None or child.frozen or "CrashPoint" in child.output:
        Worker(step_jobs).drain()
    return not rows(step_jobs, "jobs")


@actions
@pytest.mark.parametrize("point", PRUNING)
def test_a_batch_that_a_crash_interrupts_goes_whole_or_not_at_all(
    point: str, action: Action, step_jobs: Effects, stub_server: StubServer, processes: Fleet
) -> None:
    for number in range(3):
        enqueue("step_job", StepJob("one", stub_server.port), key=f"k{number}", effects=step_jobs)
    Worker(step_jobs).drain()
    long_ago = step_jobs.store.sql.after("-100 * 86400")
    run_sql(step_jobs, f"UPDATE effects_job_history SET finished_at = {long_ago}")
    run_sql(step_jobs, f"UPDATE effects_effect_ledger SET updated_at = {long_ago}")
    child = processes.start(with_crash_point, _prune, EFFECTS_CRASHPOINT=f"{point}:1:{action}")
    _strike(child, action)
    left = 0 if point == "prune.committed" else 3
    assert len(rows(step_jobs, "job_history")) == len(rows(step_jobs, "job_attempts")) == left
    assert len(rows(step_jobs, "effect_ledger")) == 3
    assert audit(step_jobs.store, step_jobs.ledgers) == []
    child.thaw()
    assert child.wait() == {"kill": -signal.SIGKILL, "raise": 1, "pause": 0}[action], child.output
    prune(step_jobs)
    assert rows(step_jobs, "job_history") == rows(step_jobs, "job_attempts") == rows(step_jobs, "effect_ledger") == []
    assert audit(step_jobs.store, step_jobs.ledgers) == []


@pytest.mark.parametrize(("point", "action"), sample(product(BULK, ACTIONS), 3))
def test_a_chunk_that_a_crash_interrupts_acts_on_each_job_once(
    point: str, action: Action, step_jobs: Effects, stub_server: StubServer, processes: Fleet
) -> None:
    ids = many_dead(step_jobs, 3, "step_job", payload=msgspec.to_builtins(StepJob("one", stub_server.port)))
    previewed = msgspec.structs.replace(preview(BulkAction("requeue"), DeadFilters(), effects=step_jobs), job_ids=None)
    started = carry_out(previewed, actor="ann", effects=step_jobs)
    assert isinstance(started, BulkStarted)
    child = processes.worker(EFFECTS_CRASHPOINT=f"{point}:1:{action}")
    _strike(child, action)
    if action != "raise":
        assert len(rows(step_jobs, "audit_log", "action = 'requeue'")) == (3 if point == "bulk.committed" else 0)
    if (point, action) == ("bulk.before_commit", "pause"):
        child.thaw()  # it holds the rows, on SQLite the file
    wait_until(lambda: _drained(step_jobs, child))
    assert find_bulk(started.bulk_id, effects=step_jobs).status == "done"
    acted_on = [int(entry["subject"]) for entry in rows(step_jobs, "audit_log", "action = 'requeue'")]
    assert acted_on == ids
    assert stub_server.done == ["one"] * 3
    assert audit(step_jobs.store, step_jobs.ledgers) == []
    child.thaw()
    if action != "kill":
        child.send(signal.SIGTERM)
    assert child.wait() == {"kill": -signal.SIGKILL, "raise": 0, "pause": 0}[action], child.output
    assert len(rows(step_jobs, "audit_log", "action = 'requeue'")) == 3


def _prune() -> None:
    prune(step_jobs_app())


def _strike(child: Child, action: Action) -> None:
    if action == "kill":
        assert child.wait() == -signal.SIGKILL, child.output
    elif action == "pause":
        child.wait_frozen()
    else:
        child.wait_logged("CrashPoint")
