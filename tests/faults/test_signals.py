"""Signals, poison and handlers that hang: how a worker ends, and what it leaves behind."""

from __future__ import annotations

import signal

import pytest

from effects import Effects, NewJob, enqueue, enqueue_many
from effects.operate.tables.actions import request_drain
from effects.operate.tables.audit import audit
from tests.peers.stub_server import StubServer
from tests.support.manual_workers import row, rows, run_sql
from tests.support.processes import Fleet
from tests.support.step_jobs import StepJob
from tests.support.waiting import wait_until

STOPS = [signal.SIGTERM, signal.SIGINT]
TWO_THREADS = {"EFFECTS_THREADS": "2"}
EARLY = 200  # jobs, until an average of attempts has forgotten the first of them
stops = pytest.mark.parametrize("stop", STOPS, ids=lambda stop: stop.name)


@stops
def test_a_stop_under_load_returns_unstarted_jobs(
    stop: signal.Signals, step_jobs: Effects, stub_server: StubServer, processes: Fleet
) -> None:
    """Two handlers run, many jobs are claimed behind them: the two finish, the others are as if never claimed."""
    enqueue_many(
        [NewJob(job_type="step_job", payload=StepJob(f"early{n}", stub_server.port, ())) for n in range(EARLY)],
        effects=step_jobs,
    )
    worker = processes.worker(**TWO_THREADS)
    wait_until(lambda: not rows(step_jobs, "jobs"))  # however slow the first was, it claims ahead by now
    stub_server.hold("slow")
    slow = [
        NewJob(job_type="step_job", payload=StepJob("slow", stub_server.port, ("ask", "do")), priority=1)
        for _ in range(2)
    ]
    late = [NewJob(job_type="step_job", payload=StepJob("late", stub_server.port)) for _ in range(40)]
    enqueue_many([*slow, *late], effects=step_jobs)
    stub_server.wait_asked("slow", 2)
    wait_until(lambda: len(rows(step_jobs, "jobs", "status = 'running'")) > 2)
    worker.send(stop)
    wait_until(lambda: len(rows(step_jobs, "jobs", "status = 'running'")) == 2)
    stub_server.open("slow")
    assert worker.wait() == 0, worker.output
    assert stub_server.done.count("slow") == 2
    left = rows(step_jobs, "jobs")
    assert len(left) == 40 - stub_server.done.count("late")
    assert {(job["status"], job["attempts"], job["lost_count"], job["unknown_count"]) for job in left} == {
        ("queued", 0, 0, 0)
    }
    assert len(rows(step_jobs, "job_attempts")) == EARLY + 2 + stub_server.done.count("late")
    assert audit(step_jobs.store, step_jobs.ledgers) == []


@pytest.mark.parametrize("way", ["grace", "second signal"])
@stops
def test_what_has_no_verdict_at_the_end_is_settled_by_the_worker_itself(
    stop: signal.Signals, way: str, step_jobs: Effects, stub_server: StubServer, processes: Fleet
) -> None:
    """Released: unknown, and the policy decides. Not released: given back, with no attempt used."""
    stub_server.hold("one")
    asks = {
        "repeated": ("step_job", "ask"),
        "held": ("step_job.held", "release ask"),
        "unbegun": ("step_job.held", "ask"),
    }
    ids = {
        name: enqueue(
            kind, StepJob("one", stub_server.port, (*steps.split(), "do")), key=name, effects=step_jobs
        ).job_id
        for name, (kind, steps) in asks.items()
    }
    worker = processes.worker(EFFECTS_GRACE_SECONDS="0.5" if way == "grace" else "60")
    stub_server.wait_asked("one", 3)
    worker.send(stop)
    if way == "second signal":
        worker.wait_logged("worker.stopping")  # two that come at once are one
        worker.send(stop)
    assert worker.wait() == 0, worker.output
    assert stub_server.done == []
    repeated, unbegun = (row(step_jobs, "jobs", "id = :id", id=ids[name]) for name in ("repeated", "unbegun"))
    assert (repeated["status"], repeated["error_code"], repeated["unknown_count"]) == ("failed", "shutdown", 1)
    assert (unbegun["status"], unbegun["attempts"], unbegun["unknown_count"]) == ("queued", 0, 0)
    held = row(step_jobs, "job_history", "id = :id", id=ids["held"])
    assert (held["status"], held["error_code"]) == ("dead", "shutdown")
    states = {effect["key"]: effect["state"] for effect in rows(step_jobs, "effect_ledger")}
    assert states == {"repeated": "unknown", "held": "unknown", "unbegun": "intended"}
    assert rows(step_jobs, "workers") == []
    assert audit(step_jobs.store, step_jobs.ledgers) == []


def test_a_worker_that_is_asked_to_drain_ends_as_after_a_signal(
    step_jobs: Effects, stub_server: StubServer, processes: Fleet
) -> None:
    """The wish stands while it finishes: heartbeats read it again, and none is taken for a second signal."""
    stub_server.hold("slow")
    slow = NewJob(job_type="step_job", payload=StepJob("slow", stub_server.port, ("ask", "do")))
    enqueue_many([slow, slow], effects=step_jobs)
    worker = processes.worker(**TWO_THREADS)
    stub_server.wait_asked("slow", 2)
    late = enqueue("step_job", StepJob("late", stub_server.port), effects=step_jobs).job_id
    [worker_id] = request_drain(step_jobs.store, None, actor="ann", reason="new version")
    worker.wait_logged("worker.stopping")
    seen_at = row(step_jobs, "workers")["seen_at"]
    wait_until(lambda: row(step_jobs, "workers")["seen_at"] > seen_at)
    stub_server.open("slow")
    assert worker.wait() == 0, worker.output
    assert worker.output.count("worker.drain_requested") == worker.output.count("worker.stopping") == 1
    assert worker_id in worker.output
    assert stub_server.done == ["slow", "slow"]
    assert [job["id"] for job in rows(step_jobs, "jobs", "status = 'queued' AND attempts = 0")] == [late]
    assert rows(step_jobs, "workers") == []
    assert audit(step_jobs.store, step_jobs.ledgers) == []


def test_a_poison_job_dies_after_five_losses_and_its_neighbours_live(
    step_jobs: Effects, stub_server: StubServer, processes: Fleet
) -> None:
    poison = enqueue("step_job", StepJob("poison", stub_server.port, ("exit",)), key="poison", effects=step_jobs).job_id
    neighbours = [NewJob(job_type="step_job", payload=StepJob(f"good{n}", stub_server.port)) for n in range(30)]
    enqueue_many(neighbours, effects=step_jobs)
    deaths = 0
    while rows(step_jobs, "jobs"):
        worker = processes.worker(**TWO_THREADS)
        wait_until(lambda worker=worker: worker.exit_code is not None or not rows(step_jobs, "jobs"))  # type: ignore[misc]
        worker.send(signal.SIGTERM)
        deaths += worker.wait() == 9
        silence = step_jobs.store.sql.after("-3600")
        run_sql(step_jobs, f"UPDATE {step_jobs.store.sql.workers} SET seen_at = {silence}")
    dead = row(step_jobs, "job_history", "status <> 'succeeded'")
    assert (dead["id"], dead["status"], dead["error_code"], dead["lost_count"]) == (poison, "dead", "poison", 5)
    assert deaths == 5
    assert set(stub_server.done) == {f"good{n}" for n in range(30)}
    for job in rows(step_jobs, "job_history", "status = 'succeeded'"):
        assert job["lost_count"] <= 1  # in quarantine no job runs beside the poison
    assert audit(step_jobs.store, step_jobs.ledgers) == []


def test_a_handler_that_hangs_is_timed_out_and_its_thread_replaced(
    step_jobs: Effects, stub_server: StubServer, processes: Fleet
) -> None:
    hanging = enqueue(
        "step_job", StepJob("hang", stub_server.port, ("hang",)), max_attempts=1, effects=step_jobs
    ).job_id
    worker = processes.worker(EFFECTS_THREADS="1", ERRAND_SECONDS="1")
    wait_until(lambda: rows(step_jobs, "job_history"))
    enqueue("step_job", StepJob("next", stub_server.port), effects=step_jobs)
    wait_until(lambda: stub_server.done)
    wait_until(lambda: not rows(step_jobs, "jobs"))
    worker.send(signal.SIGTERM)
    assert worker.wait() == 0, worker.output
    dead = row(step_jobs, "job_history", "id = :id", id=hanging)
    assert (dead["status"], dead["error_code"]) == ("dead", "timed_out")
    assert row(step_jobs, "job_attempts", "job_id = :id", id=hanging)["verdict"] == "unknown"
    assert audit(step_jobs.store, step_jobs.ledgers) == []


def test_too_many_hanging_handlers_end_the_worker_with_75(
    step_jobs: Effects, stub_server: StubServer, processes: Fleet
) -> None:
    hang = NewJob(job_type="step_job", payload=StepJob("hang", stub_server.port, ("hang",)), max_attempts=1)
    enqueue_many([hang] * 4, effects=step_jobs)
    worker = processes.worker(ERRAND_SECONDS="1")
    assert worker.wait() == 75, worker.output
    assert {job["error_code"] for job in rows(step_jobs, "job_history")} == {"timed_out"}
    assert rows(step_jobs, "jobs") == []
    assert audit(step_jobs.store, step_jobs.ledgers) == []
