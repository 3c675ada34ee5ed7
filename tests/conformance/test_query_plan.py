"""Goal: the claim reads what it takes and a little more, whatever else the tables hold.

Method: 1,000,000 ended jobs, 100,000 scheduled ones and 50,000 due ones behind a paused key lie beside 200
jobs that can run. On PostgreSQL the claim's own statements are executed again under EXPLAIN ANALYZE and the
rows that their scans touched are added up, with statistics that are missing, stale (gathered while the table
was empty) and fresh. On SQLite the virtual machine's steps are counted.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pytest
from sqlalchemy import event, text

from effects import Effects
from effects.store.claim import Lane, claim
from tests.conftest import AppFactory

WANT = 128
ROWS_MAX = 2_000  # a scan of any of the piles would touch 50,000 or more
STEPS_MAX = 100_000  # SQLite: a due row costs some hundred steps to claim, a scan of a pile over a million in all

_SERIES = {
    "postgresql": "generate_series(1, {n}) AS s(i)",
    "sqlite": "(WITH RECURSIVE s(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM s WHERE i < {n}) SELECT i FROM s) AS s",
}
_PILES = {
    "ended": "INSERT INTO effects_job_history (id, job_type, status) "
    "SELECT 10000000 + i, 'scripted', 'succeeded' FROM {s}",
    "scheduled": "INSERT INTO effects_jobs (job_type, prepared, run_at) SELECT 'scripted', true, {later} FROM {s}",
    "paused": "INSERT INTO effects_jobs (job_type, prepared, limit_key) SELECT 'scripted', true, 'dead' FROM {s}",
    "due": "INSERT INTO effects_jobs (job_type, prepared, priority) SELECT 'scripted', true, 7 FROM {s}",
}


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
    for name, count in {"ended": 1_000_000, "scheduled": 100_000, "paused": 50_000, "due": 200}.items():
        _pile(app, name, count)
    with app.store.begin() as connection:
        later = app.store.sql.after("86400")
        connection.execute(text(f"INSERT INTO effects_limits (limit_key, paused_until) VALUES ('dead', {later})"))


@contextmanager
def recorded(app: Effects) -> Iterator[list[tuple[str, Any]]]:
    """The statements of the claim, as the driver gets them."""
    seen: list[tuple[str, Any]] = []

    def record(_c: object, _cursor: object, statement: str, parameters: Any, _x: object, _m: bool) -> None:
        if "effects_" in statement:
            seen.append((statement, parameters))

    for engine in app.store.engines:
        event.listen(engine, "before_cursor_execute", record)
    try:
        yield seen
    finally:
        for engine in app.store.engines:
            event.remove(engine, "before_cursor_execute", record)


def _nodes(plan: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield plan
    for child in plan.get("Plans", []):
        yield from _nodes(child)


def rows_touched(app: Effects, statements: Sequence[tuple[str, Any]]) -> int:
    """Rows that scans of our tables gave or threw away, for statements executed and rolled back."""
    touched = 0.0
    with app.engine.connect() as connection:
        for statement, parameters in statements:
            explained = connection.exec_driver_sql(f"EXPLAIN (ANALYZE, FORMAT JSON) {statement}", parameters).scalar()
            plan = (json.loads(explained) if isinstance(explained, str) else explained)[0]["Plan"]
            for node in _nodes(plan):
                if "Relation Name" in node and node["Node Type"] != "ModifyTable":
                    dropped = node.get("Rows Removed by Filter", 0) + node.get("Rows Removed by Index Recheck", 0)
                    touched += (node["Actual Rows"] + dropped) * node["Actual Loops"]
        connection.rollback()
    return round(touched)


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
        jobs = claim(app.store, Lane("default", {"scripted": 60.0}), "w", WANT).jobs
    with app.store.begin() as connection:  # the same again, for the same question
        connection.execute(text("UPDATE effects_jobs SET status = 'queued' WHERE status = 'running'"))

    assert len(jobs) == WANT
    assert len(statements) <= 5  # a lane's first claim that finds keys tries the plain way first
    assert WANT <= rows_touched(app, statements) <= ROWS_MAX


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
    jobs = claim(app.store, Lane("default", {"scripted": 60.0}), "w", WANT).jobs

    assert len(jobs) == WANT
    assert 0 < steps <= STEPS_MAX
