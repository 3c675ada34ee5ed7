"""The database's clock decides, and a test may move it for one Store."""

from __future__ import annotations

import time

import pytest
from sqlalchemy import text

from effects import Effects, enqueue
from tests.conftest import AppFactory
from tests.support.hands import Hand, rows


def now(app: Effects) -> float:
    with app.store.read() as connection:
        return app.store.now(connection)


@pytest.mark.parametrize("seconds", [90.0, -3600.0, 0.5])
def test_a_shift_moves_this_store_only(app: Effects, app_factory: AppFactory, seconds: float) -> None:
    other = app_factory()
    app.store.shift_clock(seconds)
    assert abs(now(app) - now(other) - seconds) < 30
    assert abs(now(other) - time.time()) < 30
    app.store.shift_clock(-seconds)
    assert abs(now(app) - now(other)) < 30


def test_rows_are_written_by_the_shifted_clock(app: Effects) -> None:
    app.store.shift_clock(10_000)
    enqueue("scripted", {}, effects=app)
    assert rows(app, "jobs", f"run_at > {app.store.sql.after('-60')} AND created_at <= {app.store.sql.now}")
    assert Hand(app).claim()


def test_a_column_default_is_the_databases_clock(app: Effects) -> None:
    with app.engine.begin() as connection:
        connection.execute(text("INSERT INTO effects_jobs (job_type, payload) VALUES ('scripted', '{}')"))
        assert rows_near_now(app, connection.execute(text(
            f"SELECT {app.store.sql.epoch('created_at')} FROM effects_jobs")).scalar_one())  # fmt: skip


def rows_near_now(app: Effects, written: float) -> bool:
    return abs(written - now(app)) < 30
