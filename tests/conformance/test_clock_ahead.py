"""A database clock that is five years ahead for one round, and back: what is stored meanwhile silences nothing."""

from __future__ import annotations

import datetime as dt
from typing import Any

import pytest

from effects import (
    Cancelled,
    Done,
    Effects,
    Exponential,
    NewJob,
    Pause,
    Retry,
    RetryPolicy,
    Snooze,
    enqueue,
    enqueue_many,
)
from effects.app.retention import prune
from effects.model.alerts import DeadLetters
from effects.model.limits import Rate
from effects.operate.doctor import examine
from effects.operate.tables.alert_episodes import measure
from effects.operate.tables.audit import audit
from effects.store.db.clock import NEWEST, TurnedBack, count_ahead, turn_back
from effects.store.limits import key_limits as limits
from effects.worker import Worker
from tests.conftest import AppFactory
from tests.support.manual_workers import LEASE_SECONDS, ManualWorker, row, rows, run_sql
from tests.support.scripted import Script, Scripted

YEARS = 5 * 365 * 86_400.0
USERS = dt.datetime(2039, 1, 1, tzinfo=dt.UTC)  # later than any time of the round


@pytest.fixture
def app(app_factory: AppFactory) -> Effects:
    """Its jobs may be as old as the round makes them."""
    policy = RetryPolicy(backoff=Exponential(seconds=1.0), jitter=0.0, max_age_seconds=2 * YEARS)
    return app_factory(job_types=[Scripted(retry=policy)])


def waits(app: Effects, table: str = "jobs", column: str = "run_at") -> dict[Any, float]:
    """Key → seconds from now."""
    sql = app.store.sql
    with app.store.read() as connection:
        name = "id" if table == "jobs" else "limit_key"
        statement = (
            f"SELECT {name}, {sql.seconds(sql.now, column)} FROM {getattr(sql, table)} WHERE {column} IS NOT NULL"
        )
        return {key: float(seconds) for key, seconds in connection.exec_driver_sql(statement)}


def finding(app: Effects) -> str | None:
    return next((finding.text for finding in examine(app) if finding.check == "times ahead"), None)


def in_the_round(app: Effects, worker: ManualWorker) -> dict[str, int]:
    """Everything that stores a time: name → job id."""
    ids = {
        name: enqueue("scripted", Script(name=name, limit=limit), effects=app).job_id
        for name, limit in (
            ("retry", None), ("snooze", None), ("pause", None), ("after", None), ("paused key", "paused"),
            ("resting key", "resting"), ("rated", "rated"), ("dead", None),
        )
    }  # fmt: skip
    ids["users"] = enqueue("scripted", {}, run_at=USERS, effects=app).job_id
    with app.store.begin() as connection:
        limits.ensure_limit(app.store, connection, "rated", rate=Rate(1, 60.0))
    app.store.shift_clock(YEARS)
    worker.heartbeat()
    jobs = {job.id: job for job in worker.claim()}
    endings = {
        "retry": Retry("busy", after_seconds=20), "snooze": Snooze(30), "pause": Pause(40, "busy"), "dead": Cancelled(),
        "after": Retry("busy", after_seconds=50), "paused key": Pause(60, "busy"),
        "resting key": Retry("busy", pause_seconds=30),
        "rated": Retry("busy", after_seconds=10),
    }  # fmt: skip
    worker.settle(*((jobs[ids[name]], ending) for name, ending in endings.items()))
    ids["new"] = enqueue("scripted", {}, effects=app).job_id
    ids["delayed"] = enqueue("scripted", {}, delay=70, effects=app).job_id
    ids["meant for now"] = enqueue(
        "scripted", {}, run_at=dt.datetime.now(dt.UTC) + dt.timedelta(seconds=80), effects=app
    ).job_id
    app.store.shift_clock(-YEARS)
    return ids


@pytest.mark.parametrize("by", ["turn_back", "prune"])
def test_no_stored_time_waits_for_years(app: Effects, by: str) -> None:
    worker = ManualWorker(app)
    ids = in_the_round(app, worker)
    before = row(app, "jobs", "id = :id", id=ids["users"])
    assert finding(app) == (
        "the database's clock was ahead when these were last written: 10 waiting jobs, 3 limit keys, 1 workers"
    )
    if by == "prune":
        prune(app)
    else:
        assert turn_back(app.store) == TurnedBack(jobs=10, limits=3, workers=1)
    assert not count_ahead(app.store)
    assert finding(app) is None
    seconds = waits(app)
    near = {"retry": 20, "snooze": 30, "pause": 40, "after": 50, "paused key": 0, "rated": 10, "new": 0, "delayed": 70}
    assert {name: seconds[ids[name]] for name in near} == pytest.approx(near, abs=15)
    assert seconds[ids["meant for now"]] == pytest.approx(80, abs=15), "the app's own time"
    assert row(app, "jobs", "id = :id", id=ids["users"]) == before
    assert waits(app, "limits", "paused_until") == pytest.approx({"paused": 60, "resting": 30}, abs=15)
    assert max(waits(app, "limits", "refilled_at").values()) <= 0
    assert all(age <= 0 for job, age in waits(app, column="age_from").items() if job != ids["users"])


def test_a_retry_is_found_behind_many_newer_jobs(app: Effects) -> None:
    enqueue("scripted", {}, effects=app)
    app.store.shift_clock(YEARS)
    worker = ManualWorker(app)
    worker.settle((worker.claim_one(), Retry("busy", after_seconds=20)))
    assert Worker(app).drain().finished  # its sample tells of the clock later
    app.store.shift_clock(-YEARS)
    enqueue_many([NewJob(job_type="scripted", payload={})] * NEWEST, effects=app)
    assert count_ahead(app.store).jobs == 1


def test_all_jobs_are_done_soon_after(app: Effects) -> None:
    worker = ManualWorker(app)
    ids = in_the_round(app, worker)
    turn_back(app.store)
    done: set[int] = set()
    for _ in range(6):
        app.store.shift_clock(70)
        worker.heartbeat()
        jobs = worker.claim()
        worker.settle(*((job, Done()) for job in jobs))
        done.update(job.id for job in jobs)
    assert done == set(ids.values()) - {ids["users"], ids["dead"]}
    assert audit(app.store, app.ledgers) == []


def test_times_of_a_correct_clock_are_left_alone(app: Effects) -> None:
    worker = ManualWorker(app)
    for number in range(3):
        enqueue("scripted", {}, run_at=USERS if number else None, limit_key="k", effects=app)
    worker.settle((worker.claim_one(), Pause(1000, "busy", after_seconds=1000)))
    app.store.shift_clock(-200)  # not so far that it would not wait itself out
    before = rows(app, "jobs"), rows(app, "limits")
    assert not turn_back(app.store)
    assert (rows(app, "jobs"), rows(app, "limits")) == before


def test_a_worker_that_died_in_the_round_is_silent_a_lease_later(app: Effects) -> None:
    enqueue("scripted", {}, effects=app)
    app.store.shift_clock(YEARS)
    job = ManualWorker(app, "dies").claim_one()
    app.store.shift_clock(-YEARS)
    rescuer = ManualWorker(app, "rescuer")
    turn_back(app.store)
    assert rescuer.rescue().accepted == [], "it may live"
    app.store.shift_clock(LEASE_SECONDS + 1)
    rescuer.heartbeat()
    assert [settlement.job.id for settlement in rescuer.rescue().accepted] == [job.id]


def test_jobs_that_died_meanwhile_keep_no_alert_open(app: Effects) -> None:
    worker = ManualWorker(app)
    enqueue("scripted", Script(moves=["refuse"]), effects=app)
    app.store.shift_clock(YEARS)
    worker.settle((worker.claim_one(), Retry("busy", code="x")))
    run_sql(app, "UPDATE effects_jobs SET max_attempts = 1")
    app.store.shift_clock(3600)
    worker.settle((worker.claim_one(), Retry("busy", code="x")))
    assert row(app, "job_history")["status"] == "dead"
    rule = DeadLetters(more_than=0)
    with app.store.read() as connection:
        assert measure(app.store, connection, rule) == {"": 1.0}
        app.store.shift_clock(-YEARS - 3600)
        assert measure(app.store, connection, rule) == {}
