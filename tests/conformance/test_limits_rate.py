"""Rates, and keys with a parent: tokens are shared by all workers, and what a parent may counts all its children."""

from __future__ import annotations

from typing import Any

import pytest
from sqlalchemy import text

from effects import Done, Effects, Job, NewJob, Retry, Snooze, enqueue_many
from effects.model.limits import Rate
from effects.model.settlement import AttemptEnd, Expired, Returned
from effects.store.limits import key_limits as limit_rows
from effects.store.limits.capacity import BUSY_SECONDS
from effects.store.queue.cancellation import cancel
from effects.worker import Worker
from tests.conftest import AppFactory
from tests.support.limited_jobs import claim_all, limited
from tests.support.manual_workers import ManualWorker, row, rows, run_sql
from tests.support.threads import at_once

HOURLY = Rate(60, 3600.0, 5)  # 5 at once, then one a minute: no test is so slow that a token comes by itself


def ensure(app: Effects, key: str, **limit: Any) -> None:
    with app.store.begin() as connection:
        limit_rows.ensure_limit(app.store, connection, key, **limit)


def tokens(app: Effects, key: str = "k") -> int:
    return int(row(app, "limits", "limit_key = :key", key=key)["tokens"])


def keys_of(jobs: list[Job]) -> list[str]:
    return sorted(str(job.limit_key) for job in jobs)


def test_the_bucket_bounds_what_starts_at_once_and_refills_with_time(app: Effects) -> None:
    ensure(app, "k", rate=HOURLY)
    enqueue_many(limited("k", 30), effects=app)
    manual_worker = ManualWorker(app)
    for count in (5, 0):  # a claim that takes the last token says when the next one comes, as one does that finds none
        claimed = manual_worker.claim_round()
        assert len(claimed.jobs) == count
        assert claimed.rate_limited
        assert claimed.wait_seconds is not None
        assert 0 < claimed.wait_seconds <= 60.0
    app.store.shift_clock(121)
    manual_worker.heartbeat()
    assert len(claim_all(manual_worker)) == 2
    app.store.shift_clock(36_000)  # a long idle time must not cause a flood
    manual_worker.heartbeat()
    assert len(claim_all(manual_worker)) == 5


def test_fractions_of_a_token_are_kept_from_claim_to_claim(app: Effects) -> None:
    ensure(app, "k", rate=Rate(60, 3600.0, 1))
    enqueue_many(limited("k", 30), effects=app)
    manual_worker = ManualWorker(app)
    assert len(manual_worker.claim()) == 1
    claimed = []
    for _ in range(12):  # every 45 s: one in three of them finds no token
        app.store.shift_clock(45)
        manual_worker.heartbeat()
        claimed.append(len(manual_worker.claim()))
    assert sum(claimed) in (6, 9)  # a bucket of one loses what it cannot hold, and no more
    assert max(claimed) == 1


def test_jobs_that_are_cancelled_while_they_wait_give_no_token_back(app: Effects) -> None:
    """They have taken none: cancelling a backlog would let the others start as fast as it is cancelled."""
    ensure(app, "k", rate=HOURLY)
    receipts = enqueue_many(limited("k", 12), effects=app)
    manual_worker = ManualWorker(app)
    assert len(manual_worker.claim()) == 5
    for receipt in receipts[-5:]:
        cancel(app.store, app.ledgers, receipt.job_id, actor="ann")
    assert tokens(app) == 0
    assert manual_worker.claim() == []


def test_a_key_without_tokens_does_not_hold_up_another(app: Effects) -> None:
    ensure(app, "k", rate=HOURLY)
    enqueue_many([*limited("k", 20, priority=1), *limited("other", 3)], effects=app)
    jobs = claim_all(ManualWorker(app))
    assert keys_of(jobs) == ["k"] * 5 + ["other"] * 3


@pytest.mark.parametrize(
    ("ending", "back"),
    [(Returned(), 1), (Expired(), 1), (Done(), 0), (Retry("x"), 0), (Snooze(5), 0)],
    ids=lambda value: type(value).__name__,
)
def test_only_what_was_not_begun_gives_its_token_back(app: Effects, ending: AttemptEnd, back: int) -> None:
    ensure(app, "k", rate=HOURLY, parent="p")
    ensure(app, "q")
    with app.store.begin() as connection:
        limit_rows.set_limit(app.store, connection, "p", actor="test", rate=HOURLY)
    enqueue_many(limited("k", 5), effects=app)
    manual_worker = ManualWorker(app)
    jobs = manual_worker.claim()
    assert (len(jobs), tokens(app), tokens(app, "p")) == (5, 0, 0)
    manual_worker.settle((jobs[0], ending))
    assert (tokens(app), tokens(app, "p")) == (back, back)


def test_a_late_outcome_gives_no_token_back(app: Effects) -> None:
    ensure(app, "k", rate=HOURLY)
    enqueue_many(limited("k", 1), effects=app)
    manual_worker = ManualWorker(app)
    job = manual_worker.claim_one()
    run_sql(app, "UPDATE effects_jobs SET lease_token = lease_token + 1")
    assert manual_worker.settle((job, Returned())).stale
    assert tokens(app) == 4


def test_tokens_given_back_never_overfill_the_bucket(app: Effects) -> None:
    ensure(app, "k", rate=HOURLY)
    enqueue_many(limited("k", 5), effects=app)
    manual_worker = ManualWorker(app)
    jobs = manual_worker.claim()
    app.store.shift_clock(36_000)
    manual_worker.heartbeat()
    manual_worker.settle(*((job, Returned()) for job in jobs))
    assert len(claim_all(manual_worker)) == 5
    assert manual_worker.claim() == []


def test_workers_at_once_share_the_tokens(app: Effects, app_factory: AppFactory) -> None:
    ensure(app, "k", rate=Rate(24, 86_400.0, 20))
    enqueue_many([*limited("k", 60), *limited("free", 30)], effects=app)
    manual_workers = [ManualWorker(app_factory(), f"w{n}") for n in range(4)]

    def work(number: int) -> None:
        for _ in range(10):
            jobs = manual_workers[number].claim(16)
            manual_workers[number].settle(*((job, Done()) for job in jobs))

    at_once(len(manual_workers), work)
    done = [job["limit_key"] for job in rows(app, "job_history")]
    assert done.count("k") == 20
    assert done.count("free") == 30


def test_no_more_are_claimed_at_once_than_there_are_threads(app: Effects) -> None:
    ensure(app, "k", rate=Rate(60, 3600.0, 50))
    enqueue_many([*limited("k", 30), *limited("free", 30)], effects=app)
    manual_worker = ManualWorker(app)
    manual_worker.request.threads = 3
    assert keys_of(manual_worker.claim()) == ["free"] * 30 + ["k"] * 3
    assert len(manual_worker.claim()) == 3
    assert tokens(app) == 44


def test_grouped_jobs_take_tokens_too(app: Effects) -> None:
    ensure(app, "k", rate=Rate(60, 3600.0, 2))
    grouped = [NewJob(job_type="scripted", payload={}, limit_key="k", group_key=f"g{n}") for n in range(3)]
    enqueue_many([*grouped, *limited("k", 3)], effects=app)
    assert len(claim_all(ManualWorker(app))) == 2
    assert tokens(app) == 0


@pytest.mark.parametrize("limit", [{"rate": HOURLY}, {"max_in_flight": 5}], ids=["rate", "cap"])
def test_a_parents_limit_counts_all_its_children(app: Effects, limit: dict[str, Any]) -> None:
    ensure(app, "transport", **limit)
    ensure(app, "a", parent="transport", max_in_flight=2)
    ensure(app, "b", parent="transport")
    enqueue_many([*limited("a", 9), *limited("b", 9), *limited("transport", 9), *limited("free", 2)], effects=app)
    manual_worker = ManualWorker(app)
    claimed = keys_of(claim_all(manual_worker))
    assert claimed.count("free") == 2
    assert claimed.count("a") <= 2
    assert len(claimed) == 5 + 2
    assert claim_all(manual_worker) == []


def test_capacity_that_a_child_cannot_use_goes_to_another(app: Effects) -> None:
    """`a` has jobs only for later and one that is due: it keeps no room from `b`."""
    ensure(app, "transport", max_in_flight=4)
    ensure(app, "a", parent="transport")
    ensure(app, "b", parent="transport")
    enqueue_many([*limited("a", 9), *limited("b", 9)], effects=app)
    run_sql(app, f"UPDATE effects_jobs SET run_at = {app.store.sql.after('3600')} WHERE limit_key = 'a' AND id > 1")
    assert keys_of(claim_all(ManualWorker(app))) == ["a", "b", "b", "b"]


@pytest.mark.slow
def test_workers_at_once_never_exceed_a_parents_cap(app: Effects, app_factory: AppFactory) -> None:
    ensure(app, "p", max_in_flight=3)
    for child in ("a", "b", "c"):
        ensure(app, child, parent="p", max_in_flight=2)
    enqueue_many([job for child in ("a", "b", "c") for job in limited(child, 30)], effects=app)
    manual_workers = [ManualWorker(app_factory(), f"w{n}") for n in range(4)]
    most = [0]

    def work(number: int) -> None:
        for _ in range(15):
            jobs = manual_workers[number].claim(16)
            most.append(len(rows(app, "jobs", "status = 'running'")))
            manual_workers[number].settle(*((job, Done()) for job in jobs))

    at_once(len(manual_workers), work)
    assert 1 <= max(most) <= 3
    assert len(rows(app, "job_history")) >= 15


@pytest.mark.parametrize("database_url", ["postgresql"], indirect=True)
def test_a_key_that_another_worker_holds_is_looked_at_again_soon(app: Effects) -> None:
    ensure(app, "held", max_in_flight=5)
    enqueue_many([*limited("held", 3), *limited("free", 2)], effects=app)
    manual_worker = ManualWorker(app)
    with app.store.begin() as connection:
        connection.execute(text("SELECT 1 FROM effects_limits WHERE limit_key = 'held' FOR NO KEY UPDATE"))
        claimed = manual_worker.claim_round()
        assert keys_of(claimed.jobs) == ["free"] * 2
        assert claimed.wait_seconds == BUSY_SECONDS
        assert not claimed.rate_limited
    assert len(manual_worker.claim()) == 3


def test_a_drain_waits_for_tokens_that_come_soon(app: Effects) -> None:
    ensure(app, "k", rate=Rate(100, 1.0, 5))
    enqueue_many(limited("k", 15), effects=app)
    result = Worker(app).drain(max_seconds=60)
    assert (result.finished, result.counts) == (True, {"succeeded": 15})


def test_a_drain_does_not_wait_for_tokens_that_come_late(app: Effects) -> None:
    ensure(app, "k", rate=HOURLY)
    enqueue_many(limited("k", 8), effects=app)
    result = Worker(app).drain(max_seconds=60)
    assert (result.finished, result.counts) == (True, {"succeeded": 5})


def test_an_existing_row_is_not_changed(app: Effects) -> None:
    with app.store.begin() as connection:
        limit_rows.set_limit(app.store, connection, "k", actor="ann", max_in_flight=7)
    ensure(app, "k", max_in_flight=4, rate=HOURLY)
    limit = row(app, "limits")
    assert (limit["max_in_flight"], limit["rate_tokens"]) == (7, None)
