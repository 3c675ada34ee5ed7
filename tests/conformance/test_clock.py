"""The database's clock decides, and a test may move it for one Store."""

from __future__ import annotations

import time

import pytest
from sqlalchemy import text

from effects import Effects, Exponential, Retry, RetryPolicy, enqueue
from effects.store.effects.requeue import requeue
from tests.conftest import AppFactory
from tests.support.manual_workers import ManualWorker, row, rows
from tests.support.scripted import Scripted


def now(app: Effects) -> float:
    with app.store.read() as connection:
        return app.store.now(connection)


@pytest.mark.parametrize("seconds", [90.0, -3600.0, 0.5])
def test_a_shift_moves_this_store_only(app: Effects, app_factory: AppFactory, seconds: float) -> None:
    second_app = app_factory()
    app.store.shift_clock(seconds)
    assert abs(now(app) - now(second_app) - seconds) < 30
    assert abs(now(second_app) - time.time()) < 30
    app.store.shift_clock(-seconds)
    assert abs(now(app) - now(second_app)) < 30


def test_rows_are_written_by_the_shifted_clock(app: Effects) -> None:
    app.store.shift_clock(10_000)
    enqueue("scripted", {}, effects=app)
    assert rows(app, "jobs", f"run_at > {app.store.sql.after('-60')} AND created_at <= {app.store.sql.now}")
    assert ManualWorker(app).claim()


def test_a_column_default_is_the_databases_clock(app: Effects) -> None:
    with app.engine.begin() as connection:
        connection.execute(text("INSERT INTO effects_jobs (job_type, payload) VALUES ('scripted', '{}')"))
        assert rows_near_now(app, connection.execute(text(
            f"SELECT {app.store.sql.epoch('created_at')} FROM effects_jobs")).scalar_one())  # fmt: skip


def rows_near_now(app: Effects, written: float) -> bool:
    return abs(written - now(app)) < 30


def test_a_job_ended_by_a_clock_ahead_can_be_requeued(app_factory: AppFactory) -> None:
    """A retry is older than its greatest age by that clock, as after an outage as long. Its requeue is young again."""
    scripted = Scripted(retry=RetryPolicy(backoff=Exponential(seconds=1.0), max_age_seconds=3600.0))
    app = app_factory(job_types=[scripted])
    worker = ManualWorker(app)
    enqueue("scripted", {}, effects=app)
    app.store.shift_clock(86_400)
    job = worker.claim_one()
    worker.settle((job, Retry("busy")))
    assert "gave up: older than 3600 s" in row(app, "job_history")["last_error"]
    app.store.shift_clock(-86_400)
    requeue(app.store, app.job_types, job.id, actor="ann", reason="the clock was ahead")
    successor = worker.claim_one()
    assert successor.age_seconds < 3600
    worker.settle((successor, Retry("busy")))
    assert row(app, "jobs")["status"] == "failed"
