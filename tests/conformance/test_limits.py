"""`limit_key`: a cap in flight and a pause that all workers share, found however many keys there are."""

from __future__ import annotations

import pytest
from sqlalchemy import text

from effects import Done, Effects, Job, enqueue_many
from effects.store.claim.claim import PROBES_PER_ROUND
from effects.store.claim.lease import ReadyKey, lease_any
from effects.store.limits import key_limits as limit_rows
from tests.conftest import AppFactory
from tests.support.limited_jobs import claim_all, limited
from tests.support.manual_workers import ManualWorker, rows, run_sql
from tests.support.threads import at_once


def set_limit(app: Effects, key: str, *, cap: int | None = None, pause: int = 0, parent: str | None = None) -> None:
    run_sql(
        app,
        "INSERT INTO effects_limits (limit_key, max_in_flight, paused_until, parent_key) "
        f"VALUES (:key, :cap, {app.store.sql.after(str(pause))}, :parent)",
        key=key, cap=cap, parent=parent,
    )  # fmt: skip


def test_a_cap_is_kept_and_its_slots_are_freed(app: Effects) -> None:
    set_limit(app, "l", cap=3)
    enqueue_many(limited("l", 10), effects=app)
    manual_worker = ManualWorker(app)
    first = manual_worker.claim()
    assert len(first) == 3
    assert manual_worker.claim() == []
    manual_worker.settle((first[0], Done()), (first[1], Done()))
    assert len(manual_worker.claim()) == 2


@pytest.mark.parametrize("maker", ["a pause", "a child", "an operator"])
def test_limits_that_are_declared_late_replace_none_but_an_operators(app: Effects, maker: str) -> None:
    """A pause or a child's declaration leaves a row without limits; an operator may have removed them."""
    with app.store.begin() as connection:
        if maker == "a pause":
            limit_rows.pause(app.store, connection, "late", actor="ann", seconds=600, create=True)
        elif maker == "a child":
            limit_rows.ensure_limit(app.store, connection, "child", parent="late")
        else:
            limit_rows.set_limit(app.store, connection, "late", actor="ann", max_in_flight=None)
        limit_rows.ensure_limit(app.store, connection, "late", max_in_flight=3)
        limit_rows.ensure_limit(app.store, connection, "late", max_in_flight=4)
    [late] = rows(app, "limits", "limit_key = 'late'")
    assert late["max_in_flight"] == (None if maker == "an operator" else 3)
    assert (late["paused_until"] is not None) == (maker == "a pause")


def test_a_cap_holds_over_priorities_and_groups_together(app: Effects) -> None:
    set_limit(app, "l", cap=2)
    enqueue_many(
        [*limited("l", 3, priority=1), *limited("l", 3, priority=9), *limited("l", 1, group_key="g")],
        effects=app,
    )
    manual_worker = ManualWorker(app)
    assert len(claim_all(manual_worker)) == 2
    assert len(rows(app, "jobs", "status = 'running'")) == 2


def test_a_full_key_does_not_hold_up_another(app: Effects) -> None:
    set_limit(app, "full", cap=1)
    enqueue_many([*limited("full", 5, priority=1), *limited("open", 5)], effects=app)
    keys = [job.limit_key for job in claim_all(ManualWorker(app))]
    assert sorted(str(key) for key in keys) == ["full"] + ["open"] * 5


@pytest.mark.parametrize(
    ("free_slots", "pool_free", "locked_max"), [(2, 512, 4), (512, 3, 4), (40, 40, 64)], ids=["key", "parent", "many"]
)
def test_a_claim_locks_no_more_jobs_of_a_key_than_may_start(
    app: Effects, free_slots: int, pool_free: int, locked_max: int
) -> None:
    """Other workers pass over what is locked, and each lock is written into PostgreSQL's log."""
    if not app.store.is_postgresql:
        pytest.skip("SQLite locks no rows")
    enqueue_many(limited("l", 100), effects=app)
    request, key = ManualWorker(app).request, ReadyKey("l", 5, free_slots, "l", pool_free)
    unlocked = text(f"SELECT count(*) FROM (SELECT id FROM {app.store.sql.jobs} FOR UPDATE SKIP LOCKED) AS j")
    with app.store.begin_own() as connection, app.engine.connect() as second:
        jobs = lease_any(app.store, connection, request, "manual", 512, [key], [])
        assert len(jobs) == min(free_slots, pool_free)
        assert second.scalar(unlocked) >= 100 - locked_max
        second.rollback()


@pytest.mark.slow
def test_concurrent_claims_never_exceed_a_cap(app: Effects, app_factory: AppFactory) -> None:
    set_limit(app, "a", cap=2)
    set_limit(app, "b", cap=5)
    enqueue_many([*limited("a", 60), *limited("b", 60), *limited("free", 30)], effects=app)
    manual_workers = [ManualWorker(app_factory(), f"w{n}") for n in range(4)]
    most = {"a": 0, "b": 0}

    def work(number: int) -> None:
        for _ in range(15):
            jobs = manual_workers[number].claim(16)
            running = [job["limit_key"] for job in rows(app, "jobs", "status = 'running'")]
            for key, seen in most.items():
                most[key] = max(seen, running.count(key))
            manual_workers[number].settle(*((job, Done()) for job in jobs))

    at_once(len(manual_workers), work)
    assert 1 <= most["a"] <= 2
    assert 1 <= most["b"] <= 5
    done = [job["limit_key"] for job in rows(app, "job_history")]
    assert done.count("free") == 30
    assert min(done.count("a"), done.count("b")) >= 15


@pytest.mark.parametrize("grouped", [False, True], ids=["limited", "grouped"])
@pytest.mark.parametrize("paused", ["itself", "parent"])
def test_a_pause_holds_its_jobs_and_ends_by_itself(app: Effects, grouped: bool, paused: str) -> None:
    set_limit(app, "domain", pause=600 if paused == "itself" else 0, parent="transport")
    set_limit(app, "transport", pause=600 if paused == "parent" else 0)
    options = {"group_key": "g"} if grouped else {}
    enqueue_many([*limited("domain", 1, **options), *limited("other")], effects=app)
    manual_worker = ManualWorker(app)
    assert [job.limit_key for job in claim_all(manual_worker)] == ["other"]
    app.store.shift_clock(601)
    manual_worker.heartbeat()
    assert [job.limit_key for job in claim_all(manual_worker)] == ["domain"]


def test_an_open_key_behind_many_paused_ones_is_found(app: Effects) -> None:
    keys = [f"k{n}" for n in range(PROBES_PER_ROUND * 2 + 17)]
    paused = ", ".join(f"('{key}', {app.store.sql.after('600')})" for key in keys)
    run_sql(app, f"INSERT INTO effects_limits (limit_key, paused_until) VALUES {paused}")
    enqueue_many([job for key in [*keys, "zz-open"] for job in limited(key, 2)], effects=app)
    manual_worker = ManualWorker(app)
    rounds = 0
    jobs: list[Job] = []
    while not jobs:
        claimed = manual_worker.claim_round()
        jobs, rounds = claimed.jobs, rounds + 1
        assert jobs or claimed.more
    assert [job.limit_key for job in jobs] == ["zz-open"] * 2
    assert rounds == 3
    assert claim_all(manual_worker) == []


def test_every_key_of_many_gets_its_turn(app: Effects) -> None:
    count = PROBES_PER_ROUND * 2 + 5
    enqueue_many([job for n in range(count) for job in limited(f"k{n:04}")], effects=app)
    assert {job.limit_key for job in claim_all(ManualWorker(app))} == {f"k{n:04}" for n in range(count)}
