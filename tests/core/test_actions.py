"""What an operator does to a job: each action's effect on the job, its history, its ledger and the audit."""

from __future__ import annotations

import threading
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from effects import Done, Effects, JobNotFound, JobStateError, Refused, Retry, Unknown, enqueue
from effects.model.settlement import WorkerLost
from effects.operate.tables.actions import run_now
from effects.operate.tables.audit import audit
from effects.store.effects.requeue import Requeued, requeue
from effects.store.queue.cancellation import cancel
from tests.conftest import AppFactory
from tests.support.manual_workers import ManualWorker, row, rows
from tests.support.scripted import Script, Scripted

NAMED_QUEUES = ("mails",)


@pytest.fixture
def app(app_factory: AppFactory) -> Effects:
    return app_factory(job_types=[Scripted(), Scripted("held", on_unknown="hold")])


def put(app: Effects, *, job_type: str = "scripted", key: str | None = "k", **options: Any) -> int:
    return enqueue(job_type, {}, key=key, effects=app, **options).job_id


def state(app: Effects, key: str = "k") -> str:
    return str(row(app, "effect_ledger", "key = :key", key=key)["state"])


def ended(app: Effects, ending: Any, *, job_type: str = "scripted", key: str | None = "k") -> int:
    """A job that ended so."""
    job_id = put(app, job_type=job_type, key=key)
    manual_worker = ManualWorker(app, f"manual of {job_id}")
    manual_worker.settle((manual_worker.claim_one(), ending))
    return job_id


# -- cancel ----------------------------------------------------------------------------------------------


def test_a_waiting_job_is_cancelled_at_once(app: Effects) -> None:
    job_id = put(app)
    assert cancel(app.store, app.ledgers, job_id, actor="ann", reason="a mistake") == "cancelled"

    assert rows(app, "jobs") == []
    gone = row(app, "job_history")
    assert (gone["id"], gone["status"], gone["error_code"]) == (job_id, "cancelled", "cancelled")
    assert state(app) == "abandoned"
    noted = row(app, "job_actions")
    assert [noted[name] for name in ("job_id", "action", "actor", "reason")] == [job_id, "cancel", "ann", "a mistake"]
    assert ManualWorker(app).claim() == []
    assert audit(app.store, app.ledgers) == []


def test_a_cancelled_retry_keeps_the_log_of_its_attempts(app: Effects) -> None:
    job_id = put(app)
    manual_worker = ManualWorker(app)
    manual_worker.settle((manual_worker.claim_one(), Retry("not now")))
    cancel(app.store, app.ledgers, job_id, actor="ann")
    assert row(app, "job_history")["attempts"] == 1
    assert row(app, "job_attempts")["verdict"] == "not_done"
    assert state(app) == "abandoned"
    assert audit(app.store, app.ledgers) == []


def test_what_may_have_happened_stays_unknown_when_it_is_cancelled(app: Effects) -> None:
    job_id = put(app)
    manual_worker = ManualWorker(app)
    manual_worker.settle((manual_worker.claim_one(), Unknown("no reply")))
    cancel(app.store, app.ledgers, job_id, actor="ann")
    assert state(app) == "unknown"
    assert audit(app.store, app.ledgers) == []


def test_a_cancelled_running_job_is_asked_to_stop_and_not_retried(app: Effects) -> None:
    job_id = put(app)
    manual_worker = ManualWorker(app)
    job = manual_worker.claim_one()
    assert cancel(app.store, app.ledgers, job_id, actor="ann") == "cancel_requested"
    assert row(app, "jobs")["status"] == "running"
    assert manual_worker.heartbeat() == (True, {job_id})

    assert manual_worker.settle((job, Retry("not now"))).stale == []
    assert rows(app, "jobs") == []
    assert row(app, "job_history")["status"] == "cancelled"
    assert state(app) == "abandoned"
    assert audit(app.store, app.ledgers) == []


def test_a_cancelled_running_job_that_finishes_anyway_is_done(app: Effects) -> None:
    job_id = put(app)
    manual_worker = ManualWorker(app)
    job = manual_worker.claim_one()
    cancel(app.store, app.ledgers, job_id, actor="ann")
    manual_worker.settle((job, Done()))
    assert row(app, "job_history")["status"] == "succeeded"
    assert state(app) == "done"
    assert audit(app.store, app.ledgers) == []


def test_a_job_of_a_type_that_is_not_registered_here_is_cancelled_with_its_effect(
    app: Effects, app_factory: AppFactory
) -> None:
    job_id = put(app)
    third_party = app_factory(job_types=[])
    cancel(third_party.store, third_party.ledgers, job_id, actor="ann")
    assert state(app) == "abandoned"
    assert audit(app.store, app.ledgers) == []


def test_only_a_live_job_can_be_cancelled(app: Effects) -> None:
    job_id = ended(app, Done())
    with pytest.raises(JobStateError, match=f"job {job_id} is succeeded: only a live job can be cancelled"):
        cancel(app.store, app.ledgers, job_id, actor="ann")
    with pytest.raises(JobNotFound, match="job 4711 not found"):
        cancel(app.store, app.ledgers, 4711, actor="ann")
    assert rows(app, "job_actions") == []


# -- run now ---------------------------------------------------------------------------------------------


def test_a_scheduled_job_runs_now(app: Effects) -> None:
    job_id = put(app, run_at=datetime.now(UTC) + timedelta(days=1))
    manual_worker = ManualWorker(app)
    assert manual_worker.claim() == []
    assert run_now(app.store, job_id, actor="ann") == "default"
    assert manual_worker.claim_one().id == job_id
    assert row(app, "job_actions")["action"] == "run_now"


def test_a_job_that_is_due_keeps_its_place_in_the_line(app: Effects) -> None:
    first, second = put(app, key="a"), put(app, key="b")
    app.store.shift_clock(60)
    run_now(app.store, first, actor="ann")
    assert [job.id for job in ManualWorker(app).claim()] == [first, second]


def test_a_running_job_cannot_be_run_now(app: Effects) -> None:
    job_id = put(app)
    ManualWorker(app).claim_one()
    with pytest.raises(JobStateError, match=f"job {job_id} is running: only a waiting job can be run now"):
        run_now(app.store, job_id, actor="ann")


# -- requeue ---------------------------------------------------------------------------------------------


def test_a_dead_job_is_tried_again_as_a_new_job(app: Effects) -> None:
    first = enqueue("scripted", {"name": "x"}, key="k", priority=2, limit_key="l", max_attempts=3, effects=app).job_id
    manual_worker = ManualWorker(app)
    manual_worker.settle((manual_worker.claim_one(), Refused("no")))
    before = row(app, "job_history")
    assert state(app) == "refused"

    successor = requeue(app.store, app.job_types, first, actor="ann", reason="try")
    assert state(app) == "intended"
    assert row(app, "effect_ledger")["job_id"] == successor.job_id
    assert row(app, "job_history") == before
    assert audit(app.store, app.ledgers) == []

    job = manual_worker.claim_one()
    assert (job.id, job.requeued_from, job.key) == (successor.job_id, first, "k")
    assert app.job_types.get("scripted").decode(job.payload) == Script(name="x")
    assert (job.priority, job.limit_key, job.max_attempts, job.attempts) == (2, "l", 3, 1)
    manual_worker.settle((job, Done()))
    assert state(app) == "done"
    assert audit(app.store, app.ledgers) == []


def test_a_requeued_unknown_stays_unknown_until_an_attempt_is_done(app: Effects) -> None:
    first = ended(app, Unknown("no reply"), job_type="held")
    manual_worker = ManualWorker(app)
    second = requeue(app.store, app.job_types, first, actor="ann", confirm_unknown=True).job_id
    assert state(app) == "unknown"
    manual_worker.settle((manual_worker.claim_one(), Refused("no")))
    assert state(app) == "unknown"
    assert audit(app.store, app.ledgers) == []
    requeue(app.store, app.job_types, second, actor="ann", confirm_unknown=True)
    manual_worker.settle((manual_worker.claim_one(), Done()))
    assert state(app) == "done"
    assert audit(app.store, app.ledgers) == []


def test_a_cancelled_requeue_is_abandoned_and_can_be_requeued(app: Effects) -> None:
    second = requeue(app.store, app.job_types, ended(app, Refused("no")), actor="ann").job_id
    cancel(app.store, app.ledgers, second, actor="ann")
    assert state(app) == "abandoned"
    assert audit(app.store, app.ledgers) == []
    third = requeue(app.store, app.job_types, second, actor="ann").job_id
    assert row(app, "effect_ledger")["job_id"] == third
    assert audit(app.store, app.ledgers) == []


def test_a_job_is_requeued_once_and_then_its_successor(app: Effects) -> None:
    first = ended(app, Refused("no"), key=None)
    second = requeue(app.store, app.job_types, first, actor="ann").job_id
    with pytest.raises(JobStateError, match=f"job {first} was retried already: job {second} is queued"):
        requeue(app.store, app.job_types, first, actor="ann")
    cancel(app.store, app.ledgers, second, actor="ann")
    with pytest.raises(JobStateError, match=f"job {first} was retried already: job {second} is cancelled"):
        requeue(app.store, app.job_types, first, actor="ann")
    assert requeue(app.store, app.job_types, second, actor="ann").job_id > second


def test_an_older_job_of_a_key_cannot_be_requeued(app: Effects) -> None:
    first = ended(app, Refused("no"))
    second = requeue(app.store, app.job_types, first, actor="ann").job_id
    manual_worker = ManualWorker(app)
    manual_worker.settle((manual_worker.claim_one(), Refused("no")))
    with pytest.raises(JobStateError, match=f"retried already: job {second} is dead"):
        requeue(app.store, app.job_types, first, actor="ann")
    assert requeue(app.store, app.job_types, second, actor="ann").job_id > second


def test_two_requeues_at_once_make_one_job(app: Effects) -> None:
    first = ended(app, Refused("no"))
    together = threading.Barrier(4)
    answers: list[object] = []

    def act() -> None:
        together.wait(20)
        try:
            answers.append(requeue(app.store, app.job_types, first, actor="ann"))
        except JobStateError as error:
            answers.append(error)

    threads = [threading.Thread(target=act) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert sum(isinstance(answer, Requeued) for answer in answers) == 1, answers
    assert len(answers) == 4
    assert len(rows(app, "jobs")) == 1


def test_a_done_effect_is_not_requeued_without_confirmation(app: Effects) -> None:
    first = ended(app, Done())
    with pytest.raises(JobStateError, match=f"the effect of job {first} is done; only --even-if-done"):
        requeue(app.store, app.job_types, first, actor="ann")
    assert rows(app, "jobs") == []

    second = requeue(app.store, app.job_types, first, actor="ann", reason="they lost it", confirm_done=True).job_id
    assert [(action["job_id"], action["action"]) for action in rows(app, "job_actions")] == [
        (first, "requeue"),
        (second, "even_if_done"),
    ]
    assert state(app) == "intended"
    assert audit(app.store, app.ledgers) == []
    manual_worker = ManualWorker(app)
    manual_worker.settle((manual_worker.claim_one(), Refused("no")))
    assert state(app) == "refused"
    assert audit(app.store, app.ledgers) == []


def test_a_job_that_died_in_quarantine_is_requeued_to_its_own_queue(app: Effects) -> None:
    job_id = put(app, queue="mails")
    manual_worker = ManualWorker(app, queue="mails")
    manual_worker.settle((manual_worker.claim_one(), WorkerLost()))
    assert row(app, "jobs")["queue"] == "quarantine"
    cancel(app.store, app.ledgers, job_id, actor="ann")
    assert requeue(app.store, app.job_types, job_id, actor="ann").queue == "mails"
    assert manual_worker.claim_one().queue == "mails"


def test_a_requeued_job_goes_to_the_end_of_its_group(app: Effects) -> None:
    first = put(app, key="a", group_key="g")
    second = put(app, key="b", group_key="g")
    manual_worker = ManualWorker(app)
    manual_worker.settle((manual_worker.claim_one(), Refused("no")))
    third = requeue(app.store, app.job_types, first, actor="ann").job_id
    order = []
    for _ in range(2):
        job = manual_worker.claim_one()
        order.append(job.id)
        manual_worker.settle((job, Done()))
    assert order == [second, third]


def test_a_live_job_cannot_be_requeued(app: Effects) -> None:
    job_id = put(app)
    with pytest.raises(JobStateError, match=f"job {job_id} is queued: only an ended job can be retried"):
        requeue(app.store, app.job_types, job_id, actor="ann")
