"""Goal: the claim reads what it takes and a little more, whatever else the tables hold.

Method: 1,000,000 ended jobs, 100,000 scheduled ones, 50,000 due ones behind a paused key and 20,000 groups, the head
of each scheduled for tomorrow and one that is due behind it, lie beside 200 jobs that can run. On PostgreSQL the
claim's own statements are executed again under EXPLAIN ANALYZE and the rows that their scans touched are added up, with
statistics that are missing, stale (gathered while the table was empty) and fresh. On SQLite the virtual machine's steps
are counted.
"""

from __future__ import annotations

import sqlite3

import pytest
from sqlalchemy import event, text

from effects import Effects, enqueue_many
from effects.store.claim.claim import claim
from effects.store.claim.lease import ClaimRequest
from effects.store.limits import key_limits as limit_rows
from tests.conftest import AppFactory
from tests.support.limited_jobs import limited
from tests.support.query_plans import recorded, rows_touched

WANT = 128
ROWS_MAX = 2_000  # a scan of any of the piles would touch 50,000 or more
STEPS_MAX = 150_000  # SQLite: a due row or a group costs some hundred steps, a scan of a pile over a million in all

_SERIES = {
    "postgresql": "generate_series(1, {n}) AS s(i)",
    "sqlite": "(WITH RECURSIVE s(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM s WHERE i < {n}) SELECT i FROM s) AS s",
}
_PILES = {
    "ended": "INSERT INTO effects_job_history (id, job_type, status) "
    "SELECT 10000000 + i, 'scripted', 'succeeded' FROM {s}",
    "scheduled": "INSERT INTO effects_jobs (job_type, routed, run_at) SELECT 'scripted', true, {later} FROM {s}",
    "paused": "INSERT INTO effects_jobs (job_type, routed, limit_key) SELECT 'scripted', true, 'dead' FROM {s}",
    "heads": "INSERT INTO effects_jobs (job_type, routed, run_at, group_key) "
    "SELECT 'scripted', true, {later}, 'g' || i FROM {s}",
    "followers": "INSERT INTO effects_jobs (job_type, routed, group_key) SELECT 'scripted', true, 'g' || i FROM {s}",
    "due": "INSERT INTO effects_jobs (job_type, routed, priority) SELECT 'scripted', true, 7 FROM {s}",
}
_SIZES = {
    "ended": 1_000_000, "scheduled": 100_000, "paused": 50_000, "heads": 20_000, "followers": 20_000, "due": 200,
}  # fmt: skip


@pytest.fixture
def app(app_factory: AppFactory) -> Effects:
    return app_factory()


def _statement(app: Effects, statement: str) -> None:
    with app.engine.connect() as connection:
        connection.execution_options(isolation_level="AUTOCOMMIT").execute(text(statement))


def _pile(app: Effects, name: str, count: int) -> None:
    sql = app.store.sql
    series = _SERIES["postgresql" if sql.postgresql else "sqlite"].format(n=count)
    with app.store.begin() as connection:
        connection.execute(text(_PILES[name].format(s=series, later=sql.after("86400"))))


def _fill(app: Effects) -> None:
    piles = {
        "ended": 1_000_000,
        "scheduled": 100_000,
        "paused": 50_000,
        "heads": 20_000,
        "followers": 20_000,
        "due": 200,
    }
    for name, count in piles.items():
        _pile(app, name, count)
    with app.store.begin() as connection:
        later = app.store.sql.after("86400")
        connection.execute(text(f"INSERT INTO effects_limits (limit_key, paused_until) VALUES ('dead', {later})"))


@pytest.mark.slow
@pytest.mark.parametrize("database_url", ["postgresql"], indirect=True)
@pytest.mark.parametrize("statistics", ["missing", "stale", "fresh"])
def test_the_claim_reads_a_bounded_number_of_rows_on_postgresql(app: Effects, statistics: str) -> None:
    _statement(app, "ALTER TABLE effects_jobs SET (autovacuum_enabled = false)")
    if statistics == "stale":
        _statement(app, "VACUUM ANALYZE effects_jobs")
    _fill(app)
    if statistics == "fresh":
        _statement(app, "VACUUM ANALYZE effects_jobs")

    with recorded(app) as statements:
        jobs = claim(app.store, ClaimRequest("default", {"scripted": 60.0}), "w", WANT).jobs
    with app.store.begin() as connection:  # the same again, for the same question
        connection.execute(text("UPDATE effects_jobs SET status = 'queued' WHERE status = 'running'"))

    assert len(jobs) == WANT
    assert len(statements) <= 5  # a queue's first claim that finds keys tries the plain way first
    assert WANT <= rows_touched(app, statements) <= ROWS_MAX


@pytest.mark.slow
@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
def test_the_claim_takes_a_bounded_number_of_steps_on_sqlite(app: Effects) -> None:
    _fill(app)
    steps = 0

    def count() -> int:
        nonlocal steps
        steps += 100
        return 0

    def attach(connection: sqlite3.Connection, *_: object) -> None:
        connection.set_progress_handler(count, 100)

    app.engine.dispose()
    event.listen(app.engine, "connect", attach)
    jobs = claim(app.store, ClaimRequest("default", {"scripted": 60.0}), "w", WANT).jobs

    assert len(jobs) == WANT
    assert 0 < steps <= STEPS_MAX


KEYS = 100


@pytest.mark.parametrize("database_url", ["postgresql"], indirect=True)
@pytest.mark.parametrize("analyzed", [False, True])
def test_a_claim_from_many_keys_reads_some_rows_of_each(app: Effects, analyzed: bool) -> None:
    with app.store.begin() as connection:
        for key in range(KEYS):
            limit_rows.ensure_limit(app.store, connection, f"k{key}", max_in_flight=4)
    enqueue_many([job for key in range(KEYS) for job in limited(f"k{key}", 20)], effects=app)
    if analyzed:
        _statement(app, "VACUUM ANALYZE effects_jobs")
    with recorded(app) as statements:
        claimed = claim(app.store, ClaimRequest("default", {"scripted": 60.0}), "w", 4)
    with app.store.begin() as connection:
        connection.execute(text("UPDATE effects_jobs SET status = 'queued' WHERE status = 'running'"))
    assert len(claimed.jobs) == 4
    assert rows_touched(app, statements) <= 30 * KEYS  # not each key's for every other
