"""A pause stops a whole key for all workers; it uses up no attempt and ages no job."""

from __future__ import annotations

from typing import Any

import pytest
from sqlalchemy import text

from effects import Done, Effects, NewJob, Pause, Refused, Retry, Unknown, enqueue_many
from effects.model.settlement import AttemptEnd
from effects.store.limits import key_limits as limit_rows
from tests.support.limited_jobs import claim_all, limited
from tests.support.manual_workers import ManualWorker, row, rows, run_sql

LONG = 86_400.0


def wait(manual_worker: ManualWorker, seconds: float) -> None:
    manual_worker.app.store.shift_clock(seconds)
    manual_worker.heartbeat()


def paused_for(app: Effects, key: str = "k") -> float:
    seconds = app.store.sql.seconds(app.store.sql.now, "paused_until")
    with app.store.read() as connection:
        pause = connection.execute(
            text(f"SELECT {seconds} FROM effects_limits WHERE limit_key = :key"), {"key": key}
        ).scalar()
    return float(pause or 0.0)


def test_a_throttle_pauses_the_key_and_uses_up_no_attempt(app: Effects) -> None:
    enqueue_many([*limited("k", 3), *limited("other")], effects=app)
    manual_worker, second = ManualWorker(app), ManualWorker(app, "second")
    first = next(job for job in manual_worker.claim(1))
    assert first.limit_key == "k"
    manual_worker.settle((first, Pause(600, "429 Too Many Requests", detail={"status": 429})))
    written = row(app, "jobs", "id = :id", id=first.id)
    assert (written["status"], written["attempts"], written["error_code"]) == ("queued", 0, "throttled")
    logged = row(app, "job_attempts")
    assert (logged["outcome"], logged["verdict"], logged["attempt"]) == ("paused", "not_done", 1)
    assert row(app, "limits")["pause_reason"] == "429 Too Many Requests"
    assert [job.limit_key for job in claim_all(second)] == ["other"]
    wait(second, 601)
    again = claim_all(second)
    assert again[0].id == first.id  # its place in the line
    assert [job.attempts for job in again] == [1, 1, 1]


@pytest.mark.parametrize("ending", [Pause(600, "429 Too Many Requests"), Retry("busy", pause_seconds=600)])
def test_a_shorter_pause_leaves_the_reason_of_the_one_that_holds(app: Effects, ending: AttemptEnd) -> None:
    """What was running as an operator paused the key is answered later, and says less than the operator did."""
    enqueue_many(limited("k", 2), effects=app)
    manual_worker = ManualWorker(app)
    first, second = claim_all(manual_worker)
    with app.store.begin() as connection:
        limit_rows.pause(app.store, connection, "k", actor="ann", reason="the provider asked us to stop")
    manual_worker.settle((first, ending))
    with app.store.begin() as connection:
        until = limit_rows.pause(app.store, connection, "k", actor="bob", seconds=60, reason="a minute")
    assert until.year > 2100
    assert row(app, "limits")["pause_reason"] == "the provider asked us to stop"
    with app.store.begin() as connection:
        limit_rows.resume(app.store, connection, "k", actor="ann")
    manual_worker.settle((second, Pause(600, "again")))
    assert row(app, "limits")["pause_reason"] == "again"


@pytest.mark.parametrize(
    ("ending", "status", "attempts"),
    [
        (Retry("busy", pause_seconds=600), "failed", 1),
        (Unknown("cut", pause_seconds=600), "failed", 1),
        (Pause(600, "later"), "queued", 0),
    ],
    ids=lambda value: type(value).__name__,
)
def test_a_failure_may_pause_the_key(app: Effects, ending: AttemptEnd, status: str, attempts: int) -> None:
    enqueue_many(limited("k", 2), effects=app)
    manual_worker = ManualWorker(app)
    job = manual_worker.claim_one()
    manual_worker.settle((job, ending))
    written = row(app, "jobs", "id = :id", id=job.id)
    assert (written["status"], written["attempts"]) == (status, attempts)
    assert 590 < paused_for(app) <= 600
    assert manual_worker.claim() == []


def test_the_last_failure_of_a_job_pauses_the_key_too(app: Effects) -> None:
    enqueue_many([*limited("k", 1, max_attempts=1), *limited("k")], effects=app)
    manual_worker = ManualWorker(app)
    manual_worker.settle((manual_worker.claim_one(), Retry("busy", pause_seconds=600)))
    assert row(app, "job_history")["status"] == "dead"
    assert manual_worker.claim() == []


def test_the_longest_pause_holds_and_the_limits_stay(app: Effects) -> None:
    with app.store.begin() as connection:
        limit_rows.ensure_limit(app.store, connection, "k", max_in_flight=4)
    enqueue_many(limited("k", 4), effects=app)
    manual_worker = ManualWorker(app)
    jobs = manual_worker.claim()
    manual_worker.settle((jobs[0], Pause(50, "a")), (jobs[1], Pause(900, "b")), (jobs[2], Done()))
    assert 890 < paused_for(app) <= 900
    manual_worker.settle((jobs[3], Pause(10, "c")))
    assert 890 < paused_for(app) <= 900
    limit = row(app, "limits")
    assert limit["max_in_flight"] == 4
    assert limit["paused_seconds"] == pytest.approx(900, abs=1)


def test_a_late_pause_changes_nothing(app: Effects) -> None:
    enqueue_many(limited("k"), effects=app)
    manual_worker = ManualWorker(app)
    job = manual_worker.claim_one()
    run_sql(app, "UPDATE effects_jobs SET lease_token = lease_token + 1")
    assert manual_worker.settle((job, Pause(600, "late"))).stale
    assert rows(app, "limits") == []


def test_a_pause_of_a_job_without_a_key_delays_only_that_job(app: Effects) -> None:
    enqueue_many([NewJob(job_type="scripted", payload={}) for _ in range(2)], effects=app)
    manual_worker = ManualWorker(app)
    job = manual_worker.claim_one()
    wait(manual_worker, 100)
    manual_worker.settle((job, Pause(LONG, "later")))
    assert [claimed.id for claimed in manual_worker.claim()] == [job.id + 1]
    wait(manual_worker, LONG + 1)
    again = manual_worker.claim_one()
    assert (again.id, again.attempts) == (job.id, 1)
    assert 99 < again.age_seconds < 160


def test_paused_time_does_not_count_towards_max_age(app: Effects) -> None:
    enqueue_many(limited("k", 3), effects=app)
    manual_worker = ManualWorker(app)
    first = manual_worker.claim_one()
    wait(manual_worker, 100)
    manual_worker.settle((first, Pause(LONG, "later")))
    wait(manual_worker, LONG + 1)
    jobs = claim_all(manual_worker)
    assert len(jobs) == 3
    assert all(99 < job.age_seconds < 160 for job in jobs)


def test_paused_time_is_subtracted_once(app: Effects) -> None:
    enqueue_many(limited("k"), effects=app)
    manual_worker = ManualWorker(app)
    manual_worker.settle((manual_worker.claim_one(), Pause(LONG, "later")))
    wait(manual_worker, LONG + 1)
    manual_worker.settle((manual_worker.claim_one(), Retry("busy")))
    wait(manual_worker, 5000)
    again = manual_worker.claim_one()
    assert 4999 < again.age_seconds < 5060


def test_many_short_pauses_add_up(app: Effects) -> None:
    """The one that probes is never the last in the line, which is not claimed meanwhile."""
    enqueue_many(limited("k", 2), effects=app)
    manual_worker = ManualWorker(app)
    for _ in range(20):
        manual_worker.settle((manual_worker.claim_one(), Pause(1000, "still")))
        wait(manual_worker, 1001)
    ages = [job.age_seconds for job in claim_all(manual_worker)]
    assert len(ages) == 2
    assert all(0 <= age < 120 for age in ages)


def test_a_pause_that_is_ended_early_counts_for_as_long_as_it_was(app: Effects) -> None:
    enqueue_many(limited("k", 2), effects=app)
    manual_worker = ManualWorker(app)
    with app.store.begin() as connection:
        limit_rows.pause(app.store, connection, "k", actor="ann", reason="their release")
    wait(manual_worker, LONG)
    assert manual_worker.claim() == []
    with app.store.begin() as connection:
        assert limit_rows.resume(app.store, connection, "k", actor="ann")
    wait(manual_worker, 5000)
    assert all(4999 < job.age_seconds < 5060 for job in claim_all(manual_worker))


def test_time_paused_by_the_parent_does_not_count_towards_max_age(app: Effects) -> None:
    with app.store.begin() as connection:
        limit_rows.ensure_limit(app.store, connection, "child", parent="parent")
        limit_rows.pause(app.store, connection, "parent", actor="ann", seconds=LONG)
    grouped: dict[str, Any] = {"group_key": "g"}
    enqueue_many([*limited("child"), *limited("child", **grouped)], effects=app)
    manual_worker = ManualWorker(app)
    wait(manual_worker, LONG + 1)
    jobs = claim_all(manual_worker)
    assert len(jobs) == 2
    assert all(job.age_seconds < 60 for job in jobs)


def test_the_greatest_age_is_judged_without_the_pauses(app: Effects) -> None:
    """The type's greatest age is days; a key that was paused for longer has cost its jobs nothing."""
    enqueue_many(limited("k"), effects=app)
    manual_worker = ManualWorker(app)
    manual_worker.settle((manual_worker.claim_one(), Pause(400 * LONG, "a long strike")))
    wait(manual_worker, 400 * LONG + 1)
    manual_worker.settle((manual_worker.claim_one(), Retry("busy")))
    assert row(app, "jobs")["status"] == "failed"


def test_a_refusal_pauses_nothing(app: Effects) -> None:
    enqueue_many(limited("k", 2), effects=app)
    manual_worker = ManualWorker(app)
    manual_worker.settle((manual_worker.claim_one(), Refused("no")))
    assert rows(app, "limits") == []
    assert len(manual_worker.claim()) == 1


def test_a_fault_of_the_parent_pauses_all_its_children(app: Effects) -> None:
    with app.store.begin() as connection:
        limit_rows.ensure_limit(app.store, connection, "a", parent="above")
        limit_rows.ensure_limit(app.store, connection, "b", parent="above")
    enqueue_many([*limited("a"), *limited("b"), *limited("alone")], effects=app)
    manual_worker = ManualWorker(app)
    jobs = {job.limit_key: job for job in manual_worker.claim(8)}
    manual_worker.settle(
        (jobs["a"], Pause(600, "no route", parent=True)), (jobs["alone"], Pause(600, "no way", parent=True))
    )
    manual_worker.settle((jobs["b"], Retry("busy")))
    reasons = {limit["limit_key"]: limit["pause_reason"] for limit in rows(app, "limits")}
    assert reasons == {"a": None, "b": None, "above": "no route", "alone": "no way"}
    wait(manual_worker, 300)
    assert claim_all(manual_worker) == []
    wait(manual_worker, 301)
    assert {job.limit_key: job.attempts for job in claim_all(manual_worker)} == {"a": 1, "b": 2, "alone": 1}
