"""What a round of the dispatcher asks the database, and when it claims nothing."""

from __future__ import annotations

from typing import Any

import pytest

from effects import Attempt, Effects, JobType, NewJob, enqueue, enqueue_many
from effects.worker import Worker
from effects.worker.recording import settler
from tests.conftest import AppFactory
from tests.support.manual_workers import row, rows, run_sql
from tests.support.query_plans import queues_asked, recorded
from tests.support.running import running
from tests.support.scripted import AsyncScripted, Scripted
from tests.support.waiting import wait_until

JOBS = 3_000
QUEUES = {"default", "a", "b", "c", "quarantine"}


def app_of_many_queues(app_factory: AppFactory) -> Effects:
    return app_factory(job_types=[Scripted(), *(Scripted(f"of_{queue}", queue=queue) for queue in "abc")])


def test_a_drain_of_one_queue_looks_at_no_other_alone(app_factory: AppFactory) -> None:
    """On SQLite every write of a worker is a hint for all its queues; on PostgreSQL its first LISTEN is one."""
    app = app_of_many_queues(app_factory)
    enqueue_many([NewJob(job_type="scripted", payload={"moves": ["none"]}) for _ in range(JOBS)], effects=app)
    with recorded(app) as statements:
        assert Worker(app).drain().counts == {"succeeded": JOBS}
    named = [QUEUES.intersection(queues_asked(parameters)) for _, parameters in statements]
    assert set.union(*(queues for queues in named if len(queues) == 1)) == {"default"}
    assert any(len(queues) > 1 for queues in named), "one look at all"


def test_a_hint_without_a_queue_has_idle_ones_looked_at_first(app_factory: AppFactory) -> None:
    queues = Worker(app_of_many_queues(app_factory))._parts.queues
    for queue in queues:
        queue.asked = queue.request.queue == "a"
    for _ in range(2):  # the next may come before they are looked at
        queues.notified(None)
    assert all(queue.asked for queue in queues)
    assert {queue.request.queue for queue in queues if not queue.request.polled} == {"a"}


def test_a_hint_with_queues_has_those_claim_at_once(app_factory: AppFactory) -> None:
    queues = Worker(app_of_many_queues(app_factory))._parts.queues
    for queue in queues:
        queue.asked, queue.request.polled = False, True
    queues.notified(["b"])
    assert [queue.request.queue for queue in queues if queue.asked] == ["b"]
    assert [queue.request.queue for queue in queues if not queue.request.polled] == ["b"]


def test_after_a_slow_look_idle_queues_are_still_looked_at_by_one_statement(app_factory: AppFactory) -> None:
    """Where nothing was taken yet there is no place to start from, and so nothing to gain by a claim of its own."""
    app = app_of_many_queues(app_factory)
    parts = Worker(app)._parts
    for queue in parts.queues:
        queue.asked, queue.full_scans.next_at = False, float("inf")
    parts.queues.poll()
    with recorded(app) as statements:
        assert parts.dispatcher.sees_nothing()
    assert [QUEUES.intersection(queues_asked(parameters)) for _, parameters in statements] == [QUEUES]


def test_one_slow_attempt_keeps_no_slot_of_an_async_queue_idle(app_factory: AppFactory) -> None:
    """Its other slots are free, and never as many as make a claim at once worth it."""
    calls = AsyncScripted(queue="calls")
    app = app_factory(job_types=[calls], queues="calls=16", poll_seconds=60.0)
    enqueue_many([NewJob(job_type="scripted", payload={"moves": ["none"]})] * 64, effects=app)
    worker = Worker(app)
    with running(worker):
        wait_until(lambda: worker.counts.get("succeeded") == 64)
        enqueue("scripted", {"name": "slow", "moves": ["wait"]}, effects=app)
        wait_until(lambda: calls.at_gate == 1)
        enqueue("scripted", {"name": "next", "moves": ["none"]}, effects=app)
        wait_until(lambda: worker.counts.get("succeeded") == 65, seconds=20)
        assert (calls.performed["next"], calls.in_flight) == (1, 1), "the slow one is still under way"
        calls.gate.set()


def test_while_outcomes_are_written_too_slowly_nothing_is_claimed(
    app_factory: AppFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else they would wait until rescue takes their jobs back, and has them carried out again."""
    monkeypatch.setattr(settler, "UNWRITTEN_MAX", 70)
    parts = Worker(app_of_many_queues(app_factory))._parts
    outcomes: list[Any] = [object()] * 21
    parts.settler._pending.extend(outcomes)
    assert set(parts.dispatcher._free_slots().values()) == {0}
    assert all(queue.look_at is not None for queue in parts.queues), "it looks again soon"
    parts.settler._pending.pop()
    assert 0 not in parts.dispatcher._free_slots().values()


def test_what_one_queue_may_claim_another_may_not(app_factory: AppFactory) -> None:
    """The outcomes of all of them are written by one thread."""
    parts = Worker(app_of_many_queues(app_factory), queues=dict.fromkeys("abc", 1_000))._parts
    room = parts.settler.room
    free = parts.dispatcher._free_slots()
    assert room < 1_000
    assert room / 2 < sum(free.values()) <= room


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
def test_a_job_whose_outcome_cannot_be_written_does_not_go_back_as_one_that_never_began(
    app_factory: AppFactory,
) -> None:
    """Its effect happened. An unanswered claim, and each end, ask the database what else is leased to this worker."""
    scripted = Scripted()
    app = app_factory(job_types=[scripted])
    refuse = "CREATE TRIGGER closed BEFORE INSERT ON effects_job_history BEGIN SELECT RAISE(ABORT, 'closed'); END"
    run_sql(app, refuse)
    job_id = enqueue("scripted", {}, effects=app).job_id
    worker = Worker(app)
    with running(worker):
        wait_until(lambda: set(worker._parts.settler.unwritable) == {job_id})
        run_sql(app, "DROP TRIGGER closed")
        worker._parts.claimer.give_back(worker._parts.heartbeat.worker.id)
        enqueue("scripted", {"name": "next"}, effects=app)
        wait_until(lambda: worker.counts.get("succeeded") == 1)
    assert scripted.performed == {"": 1, "next": 1}
    assert row(app, "jobs")["status"] == "running", "its lease goes on until rescue decides"


class Copied(JobType[dict[str, Any]]):
    """Keeps its job's row as it was before the release, for a failover that loses all that came later."""

    name = "copied"

    def perform(self, payload: dict[str, Any], attempt: Attempt) -> None:
        run_sql(self.app, "CREATE TABLE kept AS SELECT * FROM effects_jobs")
        attempt.release()

    app: Effects


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
def test_a_job_that_was_carried_out_before_a_failover_does_not_go_back_as_one_that_never_began(
    app_factory: AppFactory, caplog: pytest.LogCaptureFixture
) -> None:
    """The failover came after the comparison, and before the look for claims that were not answered."""
    copied, scripted = Copied(), Scripted()
    copied.app = app = app_factory(job_types=[copied, scripted])
    enqueue("copied", {}, effects=app)
    worker = Worker(app)
    with running(worker):
        wait_until(lambda: worker.counts.get("succeeded") == 1)
        for lost in ("job_history", "attempt_log"):
            run_sql(app, f"DELETE FROM effects_{lost}")
        run_sql(app, "INSERT INTO effects_jobs SELECT * FROM kept")
        worker._parts.claimer.give_back(worker._parts.heartbeat.worker.id)
        wait_until(lambda: not rows(app, "jobs"))
        [ended] = rows(app, "job_history")
    assert "claim.given_back" not in caplog.messages
    assert (ended["status"], ended["attempts"]) == ("succeeded", 1)
    assert [attempt["outcome"] for attempt in rows(app, "job_attempts")] in ([], ["succeeded"])
