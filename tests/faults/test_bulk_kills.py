"""A bulk requeue whose workers are killed at random points, and that is cancelled half-way: each job acted on once.

A few hundred jobs; `EFFECTS_TEST_FULL=1` (`make soak`) takes 20,000. `EFFECTS_TEST_SEED` repeats a run.
"""

from __future__ import annotations

import os
import random
import signal
from collections import Counter

import pytest

from effects import Effects
from effects.operate.bulk import BulkStarted, cancel_bulk, carry_out, find_bulk, preview
from effects.operate.tables.audit import audit
from effects.operate.tables.bulk_selection import BulkAction
from effects.operate.tables.dead_letters import DeadFilters
from effects.store.effects.requeue import requeue
from effects.worker import Worker
from tests.support.manual_workers import rows, run_sql
from tests.support.many_dead import many_dead
from tests.support.processes import Child, Fleet
from tests.support.waiting import PATIENCE_SECONDS, wait_until

JOBS, CHUNK, KILLS = (20_000, 200, 30) if os.environ.get("EFFECTS_TEST_FULL") else (600, 20, 5)
POINTS = ("bulk.before_commit", "bulk.committed", "settle.before", "settle.applied", "claim.committed", "perform.after")


@pytest.mark.timeout(60 + JOBS // 10)
def test_random_kills_and_a_cancel_half_way_act_on_each_job_once(step_jobs: Effects, processes: Fleet) -> None:
    draw = random.Random(int(os.environ["EFFECTS_TEST_SEED"]))
    ids = many_dead(step_jobs, JOBS, "step_job", payload={"name": "x", "port": 9, "steps": []})
    previewed = preview(BulkAction("requeue"), DeadFilters(), effects=step_jobs)
    assert previewed.job_ids is None
    started = carry_out(previewed, actor="ann", reason="fixed", effects=step_jobs)
    assert isinstance(started, BulkStarted)
    kills = Counter[str]()
    while kills.total() < KILLS and find_bulk(started.bulk_id, effects=step_jobs).done < JOBS // 2:
        kills[kill_one(step_jobs, started.bulk_id, processes, draw)] += 1
    last = worker(processes)
    last.wait_logged("worker.started")
    wait_until(lambda: progress(step_jobs, started.bulk_id) >= JOBS // 2, seconds=PATIENCE_SECONDS + JOBS / 20)
    record = cancel_bulk(started.bulk_id, actor="bob", reason="enough", effects=step_jobs)
    last.send(signal.SIGTERM)
    assert last.wait() == 0, last.output
    Worker(step_jobs).drain()

    acted_on = Counter(int(entry["subject"]) for entry in rows(step_jobs, "audit_log", "action = 'requeue'"))
    for entry in rows(step_jobs, "audit_log", "actor = 'carl'"):
        acted_on.pop(int(entry["subject"]))
    assert set(acted_on.values()) == {1}, kills
    assert acted_on.keys() <= set(ids)
    assert record.done == len(acted_on) >= JOBS // 2
    assert find_bulk(started.bulk_id, effects=step_jobs) == record
    assert record.refused == 0
    of_steps = "requeued_from IS NOT NULL AND job_type = 'step_job'"
    copies = Counter(job["requeued_from"] for job in rows(step_jobs, "job_history", of_steps))
    assert copies == acted_on
    actions = rows(step_jobs, "audit_log", "subject_kind = 'bulk'")
    assert [entry["action"] for entry in actions] == ["start", "cancel"]
    assert audit(step_jobs.store, step_jobs.ledgers) == []


def kill_one(app: Effects, bulk_id: int, processes: Fleet, draw: random.Random) -> str:
    """A worker that dies at a point, or at no point at all while a chunk is under way."""
    before = find_bulk(bulk_id, effects=app)
    point = draw.choice((*POINTS, "any time"))
    plan = {} if point == "any time" else {"EFFECTS_CRASHPOINT": f"{point}:{draw.randint(1, 3)}"}
    child = worker(processes, **plan)
    wait_until(lambda: child.exit_code is not None or progress(app, bulk_id) > before.done)
    if child.exit_code is None:
        child.send(signal.SIGKILL)
    assert child.wait() == -signal.SIGKILL, child.output
    revive(app)
    return point


def worker(processes: Fleet, **env: str) -> Child:
    return processes.worker(app="tests.support.bulk_app:app", BULK_CHUNK=str(CHUNK), **env)


def revive(app: Effects) -> None:
    """Its lease ends."""
    run_sql(app, f"UPDATE effects_jobs SET locked_until = {app.store.sql.after('-1')} WHERE status = 'running'")
    run_sql(app, f"UPDATE effects_workers SET seen_at = {app.store.sql.after('-60')}")


def progress(app: Effects, bulk_id: int) -> int:
    """How many jobs are done. Where five workers in a row have died with its job, an operator requeues that."""
    record = find_bulk(bulk_id, effects=app)
    if record.status == "stopped":
        assert record.job_id is not None
        requeue(app.store, app.job_types, record.job_id, actor="carl")
    return record.done
