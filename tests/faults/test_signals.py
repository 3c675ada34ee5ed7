"""Signals, poison and handlers that hang: how a worker ends, and what it leaves behind."""

from __future__ import annotations

import signal

import pytest

from effects import Effects, NewJob, enqueue, enqueue_many
from effects.store.audit import audit
from tests.peers.desk import Desk
from tests.support.errands import Errand
from tests.support.hands import row, rows, run_sql
from tests.support.processes import Fleet
from tests.support.waiting import wait_until

STOPS = [signal.SIGTERM, signal.SIGINT]
TWO_THREADS = {"EFFECTS_THREADS": "2"}
stops = pytest.mark.parametrize("stop", STOPS, ids=lambda stop: stop.name)


@stops
def test_a_stop_under_load_gives_back_what_was_not_begun(
    stop: signal.Signals, errands: Effects, desk: Desk, processes: Fleet
) -> None:
    """Two handlers run, many jobs are claimed behind them: the two finish, the others are as if never claimed."""
    enqueue_many(
        [NewJob(job_type="errand", payload=Errand(f"early{n}", desk.port)) for n in range(20)], effects=errands
    )
    worker = processes.worker(**TWO_THREADS)
    wait_until(lambda: not rows(errands, "jobs"))  # it knows by now that these are quick, and claims ahead
    desk.hold("slow")
    slow = [NewJob(job_type="errand", payload=Errand("slow", desk.port, ("ask", "do")), priority=1) for _ in range(2)]
    late = [NewJob(job_type="errand", payload=Errand("late", desk.port)) for _ in range(40)]
    enqueue_many([*slow, *late], effects=errands)
    desk.wait_asked("slow", 2)
    wait_until(lambda: len(rows(errands, "jobs", "status = 'running'")) > 2)
    worker.send(stop)
    wait_until(lambda: len(rows(errands, "jobs", "status = 'running'")) == 2)
    desk.open("slow")
    assert worker.wait() == 0, worker.output
    assert desk.done.count("slow") == 2
    left = rows(errands, "jobs")
    assert len(left) == 40 - desk.done.count("late")
    assert {(job["status"], job["attempts"], job["lost_count"], job["unknown_count"]) for job in left} == {
        ("queued", 0, 0, 0)
    }
    assert len(rows(errands, "job_attempts")) == 22 + desk.done.count("late")
    assert audit(errands) == []


@pytest.mark.parametrize("way", ["grace", "second signal"])
@stops
def test_what_has_no_verdict_at_the_end_is_settled_by_the_worker_itself(
    stop: signal.Signals, way: str, errands: Effects, desk: Desk, processes: Fleet
) -> None:
    """Released: unknown, and the policy decides. Not released: given back, with no attempt used."""
    desk.hold("one")
    asks = {"repeated": ("errand", "ask"), "held": ("errand.held", "release ask"), "unbegun": ("errand.held", "ask")}
    ids = {
        name: enqueue(kind, Errand("one", desk.port, (*steps.split(), "do")), key=name, effects=errands).job_id
        for name, (kind, steps) in asks.items()
    }
    worker = processes.worker(EFFECTS_GRACE_SECONDS="0.5" if way == "grace" else "60")
    desk.wait_asked("one", 3)
    worker.send(stop)
    if way == "second signal":
        worker.wait_logged("worker.stopping")  # two that come at once are one
        worker.send(stop)
    assert worker.wait() == 0, worker.output
    assert desk.done == []
    repeated, unbegun = (row(errands, "jobs", "id = :id", id=ids[name]) for name in ("repeated", "unbegun"))
    assert (repeated["status"], repeated["error_code"], repeated["unknown_count"]) == ("failed", "shutdown", 1)
    assert (unbegun["status"], unbegun["attempts"], unbegun["unknown_count"]) == ("queued", 0, 0)
    held = row(errands, "job_history", "id = :id", id=ids["held"])
    assert (held["status"], held["error_code"]) == ("dead", "unknown")
    states = {effect["key"]: effect["state"] for effect in rows(errands, "effect_ledger")}
    assert states == {"repeated": "unknown", "held": "unknown", "unbegun": "intended"}
    assert rows(errands, "workers") == []
    assert audit(errands) == []


def test_a_poison_job_dies_after_five_losses_and_its_neighbours_live(
    errands: Effects, desk: Desk, processes: Fleet
) -> None:
    poison = enqueue("errand", Errand("poison", desk.port, ("exit",)), key="poison", effects=errands).job_id
    neighbours = [NewJob(job_type="errand", payload=Errand(f"good{n}", desk.port)) for n in range(30)]
    enqueue_many(neighbours, effects=errands)
    deaths = 0
    while rows(errands, "jobs"):
        worker = processes.worker(**TWO_THREADS)
        wait_until(lambda worker=worker: worker.exit_code is not None or not rows(errands, "jobs"))  # type: ignore[misc]
        worker.send(signal.SIGTERM)
        deaths += worker.wait() == 9
        silence = errands.store.sql.after("-3600")
        run_sql(errands, f"UPDATE {errands.store.sql.workers} SET seen_at = {silence}")
    dead = row(errands, "job_history", "status <> 'succeeded'")
    assert (dead["id"], dead["status"], dead["error_code"], dead["lost_count"]) == (poison, "dead", "poison", 5)
    assert deaths == 5
    assert set(desk.done) == {f"good{n}" for n in range(30)}
    for job in rows(errands, "job_history", "status = 'succeeded'"):
        assert job["lost_count"] <= 1  # in quarantine nobody runs beside the poison
    assert audit(errands) == []


def test_a_handler_that_hangs_is_timed_out_and_its_thread_replaced(
    errands: Effects, desk: Desk, processes: Fleet
) -> None:
    hanging = enqueue("errand", Errand("hang", desk.port, ("hang",)), max_attempts=1, effects=errands).job_id
    worker = processes.worker(EFFECTS_THREADS="1", ERRAND_SECONDS="1")
    wait_until(lambda: rows(errands, "job_history"))
    enqueue("errand", Errand("next", desk.port), effects=errands)
    wait_until(lambda: desk.done)
    wait_until(lambda: not rows(errands, "jobs"))
    worker.send(signal.SIGTERM)
    assert worker.wait() == 0, worker.output
    dead = row(errands, "job_history", "id = :id", id=hanging)
    assert (dead["status"], dead["error_code"]) == ("dead", "timed_out")
    assert row(errands, "job_attempts", "job_id = :id", id=hanging)["verdict"] == "unknown"
    assert audit(errands) == []


def test_too_many_hanging_handlers_end_the_worker_with_75(errands: Effects, desk: Desk, processes: Fleet) -> None:
    hang = NewJob(job_type="errand", payload=Errand("hang", desk.port, ("hang",)), max_attempts=1)
    enqueue_many([hang] * 4, effects=errands)
    worker = processes.worker(ERRAND_SECONDS="1")
    assert worker.wait() == 75, worker.output
    assert {job["error_code"] for job in rows(errands, "job_history")} == {"timed_out"}
    assert rows(errands, "jobs") == []
    assert audit(errands) == []
