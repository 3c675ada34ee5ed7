"""A breaker opens after failures in a row, lets one attempt probe, and closes when it is answered."""

from __future__ import annotations

from effects import Done, Effects, Refused, Retry, Snooze, Unknown, enqueue_many
from effects.model.limits import Breaker
from effects.model.settlement import WorkerLost
from effects.operate.tables import limit_status
from effects.store.limits import key_limits as limit_rows
from tests.support.limited_jobs import answered, claim_all, limited
from tests.support.manual_workers import ManualWorker, row

THREE = Breaker(3, 60.0)


def guard(app: Effects, key: str = "k", parent: str | None = None) -> None:
    with app.store.begin() as connection:
        limit_rows.ensure_limit(app.store, connection, key, breaker=THREE, parent=parent)


def state(app: Effects, key: str = "k") -> tuple[str | None, int]:
    with app.store.read() as connection:
        status = limit_status.show(app.store, connection, key)
    return status.breaker_state, status.failures_in_a_row


def wait(manual_worker: ManualWorker, seconds: float) -> None:
    manual_worker.app.store.shift_clock(seconds)
    manual_worker.heartbeat()


def opened(app: Effects) -> ManualWorker:
    """A worker before a breaker that has just opened, ten jobs behind it."""
    guard(app)
    enqueue_many([*limited("k", 13), *limited("other", 2)], effects=app)
    manual_worker = ManualWorker(app)
    first, *jobs = manual_worker.claim(4)
    answered(manual_worker, (first, Done()), *((job, Retry("busy", after_seconds=7200)) for job in jobs))
    assert state(app) == ("open", 3)
    return manual_worker


def test_failures_in_a_row_open_it_and_hold_only_its_own_key(app: Effects) -> None:
    manual_worker = opened(app)
    assert {job.limit_key for job in claim_all(manual_worker)} == {"other"}
    assert row(app, "limits")["pause_reason"] == "the breaker opened after 3 failures in a row"


def test_a_breaker_leaves_the_reason_of_a_longer_pause(app: Effects) -> None:
    guard(app)
    enqueue_many(limited("k", 3), effects=app)
    manual_worker = ManualWorker(app)
    jobs = claim_all(manual_worker)
    with app.store.begin() as connection:
        limit_rows.pause(app.store, connection, "k", actor="ann", seconds=600, reason="a migration")
    answered(manual_worker, *((job, Retry("busy")) for job in jobs))
    assert state(app) == ("open", 3)
    assert row(app, "limits")["pause_reason"] == "a migration"


def test_an_answer_between_failures_keeps_the_breaker_closed(app: Effects) -> None:
    guard(app)
    enqueue_many(limited("k", 10), effects=app)
    manual_worker = ManualWorker(app)
    jobs = manual_worker.claim(16)
    answered(manual_worker, (jobs[0], Retry("x")), (jobs[1], Unknown("x")), (jobs[2], Done()), (jobs[3], Retry("x")))
    assert state(app) == ("closed", 1)
    answered(manual_worker, (jobs[4], Retry("x")), (jobs[5], Refused("410 Gone")))  # a refusal is an answer
    assert state(app) == ("closed", 0)


def test_one_trial_attempt_closes_the_breaker(app: Effects) -> None:
    manual_worker = opened(app)
    answered(manual_worker, *((job, Done()) for job in claim_all(manual_worker)))
    wait(manual_worker, 61)
    assert state(app)[0] == "half_open"
    [probe] = claim_all(manual_worker)
    assert claim_all(ManualWorker(app, "second")) == []
    answered(manual_worker, (probe, Done()))
    assert state(app) == ("closed", 0)
    assert len(claim_all(manual_worker)) > 1


def test_a_failed_trial_reopens_the_breaker_for_its_full_time(app: Effects) -> None:
    manual_worker = opened(app)
    claim_all(manual_worker)
    wait(manual_worker, 61)
    [probe] = [job for job in claim_all(manual_worker) if job.limit_key == "k"]
    answered(manual_worker, (probe, Retry("busy")))
    assert state(app) == ("open", 4)
    wait(manual_worker, 30)
    assert claim_all(manual_worker) == []
    wait(manual_worker, 31)
    assert len(claim_all(manual_worker)) == 1


def test_an_attempt_from_before_it_opened_is_no_trial(app: Effects) -> None:
    guard(app)
    enqueue_many(limited("k", 10), effects=app)
    manual_worker = ManualWorker(app)
    jobs = manual_worker.claim(4)
    answered(manual_worker, *((job, Retry("busy")) for job in jobs[:3]))
    answered(manual_worker, (jobs[3], Done()), took=30.0)
    assert state(app) == ("open", 3)


def test_what_was_not_carried_out_does_not_count(app: Effects) -> None:
    manual_worker = opened(app)
    claim_all(manual_worker)
    wait(manual_worker, 61)
    [probe] = [job for job in claim_all(manual_worker) if job.limit_key == "k"]
    manual_worker.settle((probe, WorkerLost()))  # the worker's fault, not the peer's
    assert state(app) == ("half_open", 3)
    [probe] = [job for job in claim_all(manual_worker) if job.limit_key == "k"]
    answered(manual_worker, (probe, Snooze(3600)))
    assert state(app) == ("half_open", 3)
    assert len(claim_all(manual_worker)) == 1


def test_a_parents_breaker_counts_all_its_children(app: Effects) -> None:
    guard(app, "transport")
    for child in ("a", "b", "c"):
        with app.store.begin() as connection:
            limit_rows.ensure_limit(app.store, connection, child, parent="transport")
    enqueue_many([job for child in ("a", "b", "c") for job in limited(child, 4)], effects=app)
    manual_worker = ManualWorker(app)
    jobs = manual_worker.claim()
    one_each = [next(job for job in jobs if job.limit_key == child) for child in ("a", "b", "c")]
    answered(manual_worker, *((job, Retry("busy")) for job in one_each))
    assert state(app, "transport") == ("open", 3)
    answered(
        manual_worker, *((job, Retry("busy", after_seconds=7200)) for job in jobs if job not in one_each), took=30.0
    )
    assert claim_all(manual_worker) == []
    wait(manual_worker, 61)
    assert len(claim_all(manual_worker)) == 1


def test_without_a_breaker_failures_are_not_counted(app: Effects) -> None:
    with app.store.begin() as connection:
        limit_rows.ensure_limit(app.store, connection, "k", max_in_flight=50)
    enqueue_many(limited("k", 10), effects=app)
    manual_worker = ManualWorker(app)
    answered(manual_worker, *((job, Retry("busy")) for job in manual_worker.claim()))
    assert state(app) == (None, 0)
