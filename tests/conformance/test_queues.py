"""No worker claims from a paused queue, whatever kinds of jobs wait in it; resumed, it continues where it stopped."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from effects import Done, Effects, NewJob, enqueue_many
from effects.errors import QueueNotFound
from effects.model.job import QUARANTINE_QUEUE
from effects.operate.tables.counts import count_unknown_due
from effects.store.limits import queue_pauses as queues
from effects.store.limits.queue_pauses import QueuePause
from effects.worker import Worker
from tests.conftest import AppFactory
from tests.support.manual_workers import ManualWorker, row, rows, run_sql

KINDS: dict[str, dict[str, Any]] = {
    "plain": {},
    "limited": {"limit_key": "k"},
    "grouped": {"group_key": "g"},
    "grouped and limited": {"group_key": "g", "limit_key": "k"},
}
kinds = pytest.mark.parametrize("kind", KINDS)


def put(app: Effects, queue: str = "default", count: int = 1, **options: Any) -> None:
    enqueue_many([NewJob(job_type="scripted", payload={}, queue=queue, **options) for _ in range(count)], effects=app)


def pause(app: Effects, queue: str = "default", **options: Any) -> QueuePause:
    with app.store.begin() as connection:
        return queues.pause(app.store, connection, queue, **{"actor": "ann", "create": True, **options})


def resume(app: Effects, queue: str = "default") -> bool:
    with app.store.begin() as connection:
        return queues.resume(app.store, connection, queue, actor="ben")


@kinds
def test_a_paused_queue_is_not_claimed_from(app: Effects, kind: str) -> None:
    put(app, count=2, **KINDS[kind])
    put(app, "emails", **KINDS[kind] | ({"group_key": "other"} if "group_key" in KINDS[kind] else {}))
    manual_worker, emails_worker = ManualWorker(app), ManualWorker(app, "emails", queue="emails")
    pause(app)
    for _ in range(3):  # a queue that is known to have keys is looked at another way
        assert manual_worker.claim_round(1).more is False
    assert [job.queue for job in emails_worker.claim()] == ["emails"]
    assert resume(app)
    assert not resume(app)
    assert manual_worker.claim_one().queue == "default"


@kinds
def test_a_pause_that_comes_between_the_look_and_the_lease_holds(app: Effects, kind: str) -> None:
    """The worker has claimed before, so that it looks for keys first; what was claimed finishes."""
    put(app, count=3, **KINDS[kind])
    manual_worker = ManualWorker(app)
    first = manual_worker.claim_one()
    pause(app)
    assert manual_worker.claim() == []
    assert len(manual_worker.settle((first, Done())).accepted) == 1
    assert manual_worker.claim() == []
    resume(app)
    assert manual_worker.claim_one().id == first.id + 1


def test_a_pause_ends_by_itself_and_the_newest_holds(app: Effects) -> None:
    put(app)
    manual_worker = ManualWorker(app)
    assert pause(app, seconds=86_400.0).ends
    assert pause(app, seconds=900.0, reason="their release").ends
    app.store.shift_clock(899)
    manual_worker.heartbeat()
    assert manual_worker.claim() == []
    app.store.shift_clock(2)
    manual_worker.heartbeat()
    assert len(manual_worker.claim()) == 1
    with app.store.read() as connection:
        assert queues.paused_queues(app.store, connection) == []


def test_a_pause_without_an_end_lasts(app: Effects) -> None:
    put(app)
    assert not pause(app).ends
    app.store.shift_clock(365 * 86_400)
    assert ManualWorker(app).claim() == []


def test_a_quarantined_job_is_paused_with_its_own_queue(app: Effects) -> None:
    put(app, "emails", 2)
    put(app, "default")
    run_sql(app, f"UPDATE effects_jobs SET quarantined_from = queue, queue = '{QUARANTINE_QUEUE}'")
    pause(app, "emails")
    manual_worker = ManualWorker(app, queue=QUARANTINE_QUEUE)
    assert [job.home_queue for job in manual_worker.claim()] == ["default"]
    resume(app, "emails")
    assert [job.home_queue for job in manual_worker.claim()] == ["emails", "emails"]


@kinds
def test_a_drain_does_not_wait_for_jobs_of_a_paused_queue(app: Effects, kind: str) -> None:
    put(app, "default", 2, **KINDS[kind])
    pause(app)
    result = Worker(app, queues={"default": 2}).drain(max_seconds=30)
    assert (result.finished, result.counts, len(rows(app, "jobs"))) == (True, {}, 2)
    run_sql(app, "UPDATE effects_jobs SET job_type = 'nobody''s'")
    with app.store.read() as connection:
        assert count_unknown_due(app.store, connection, ["scripted"], []) == 0
    resume(app)
    with app.store.read() as connection:
        assert count_unknown_due(app.store, connection, ["scripted"], []) == 2


def test_a_drain_looks_for_new_jobs_while_a_long_one_runs(app_factory: AppFactory) -> None:
    """No hint tells of a plain INSERT, as of what an outcome's `apply` has written."""
    app = app_factory(poll_seconds=0.05)
    followed = threading.Event()

    @app.job("shop.long")
    def long() -> None:
        assert followed.wait(30)

    @app.job("shop.short")
    def short() -> Done:
        insert = "INSERT INTO effects_jobs (job_type, queue, payload) VALUES ('shop.next', 'emails', '{}')"
        return Done(apply=lambda connection: connection.exec_driver_sql(insert))

    @app.job("shop.next", queue="emails")
    def next_one() -> None:
        followed.set()

    for job in (long, short):
        job.enqueue()
    assert Worker(app).drain(60).counts == {"succeeded": 3}


def test_an_unknown_queue_is_refused(app: Effects) -> None:
    put(app, "emails")
    with pytest.raises(QueueNotFound, match="is it 'emails'"):
        pause(app, "email", create=False)
    with pytest.raises(QueueNotFound, match=r"'nothing-like-it'$"):
        pause(app, "nothing-like-it", create=False)
    assert rows(app, "queues") == []
    pause(app, "emails", create=False)
    pause(app, "reports", create=False, app_queues=["reports"])
    assert [queue["queue"] for queue in rows(app, "queues")] == ["emails", "reports"]


def test_actor_and_reason_are_kept(app: Effects) -> None:
    put(app, count=2)
    under_way = pause(app, seconds=900.0, reason="their release")
    assert str(under_way).startswith("queue default is paused by ann until 20")
    assert (under_way.waiting, under_way.reason) == (2, "their release")
    assert str(pause(app)) == "queue default is paused by ann until it is resumed"
    resume(app)
    queue = row(app, "queues")
    assert (queue["paused_until"], queue["paused_by"], queue["reason"]) == (None, None, None)
    log = [(entry["actor"], entry["action"], entry["reason"]) for entry in rows(app, "audit_log")]
    assert log == [("ann", "pause", "their release"), ("ann", "pause", None), ("ben", "resume", None)]
