"""What differs behind a pooler, and how it is noticed: pgbouncer itself, and none."""

from __future__ import annotations

from contextlib import ExitStack

import pytest
from sqlalchemy import create_engine, text

from effects import Effects, enqueue
from effects.model.advice import DoctorFinding
from effects.operate.doctor import examine
from effects.worker import Worker
from tests.conftest import AppFactory
from tests.support.manual_workers import rows
from tests.support.running import running
from tests.support.waiting import wait_until

through_pgbouncer = pytest.mark.parametrize("database_url", ["pgbouncer"], indirect=True)
on_postgresql = pytest.mark.parametrize("database_url", ["postgresql", "pgbouncer"], indirect=True)


def finding(app: Effects) -> DoctorFinding:
    [result] = [finding for finding in examine(app) if finding.check == "pooler"]
    return result


@on_postgresql
def test_doctor_detects_a_pooler(app: Effects, request: pytest.FixtureRequest) -> None:
    there = "pgbouncer" in request.node.callspec.id
    assert finding(app).level == "ok"
    assert ("behind a pooler" in finding(app).text) == there


@on_postgresql
def test_prepared_statements_behind_one_are_an_error(
    database_url: str, app_factory: AppFactory, request: pytest.FixtureRequest
) -> None:
    engine = create_engine(database_url.replace("postgresql:", "postgresql+psycopg:"))
    app = app_factory(engine=engine)
    assert finding(app).level == ("error" if "pgbouncer" in request.node.callspec.id else "warning")
    engine.dispose()


@through_pgbouncer
def test_a_worker_behind_one_does_not_listen_and_finds_its_jobs(app_factory: AppFactory) -> None:
    app = app_factory(poll_seconds=0.1)
    with running(Worker(app)):
        wait_until(lambda: rows(app, "workers"))
        enqueue("scripted", {}, effects=app)
        wait_until(lambda: rows(app, "job_history"))
    assert _listening(app) == 0


def _listening(app: Effects) -> int:
    """How many of the pooler's connections listen; each is asked, in transactions that are open at the same time."""
    backends = text("SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()")
    channels = text("SELECT count(*) FROM pg_listening_channels()")
    with ExitStack() as stack:
        connections = [stack.enter_context(app.store.begin())]
        count = connections[0].execute(backends).scalar_one()
        connections += [stack.enter_context(app.store.begin()) for _ in range(count - 1)]
        return sum(connection.execute(channels).scalar_one() for connection in connections)


@through_pgbouncer
def test_two_clients_share_a_backend(app_factory: AppFactory) -> None:
    """That the suite really goes through a pooler of transactions."""
    pids = []
    for app in (app_factory(), app_factory()):
        with app.store.begin() as connection:
            pids.append(connection.execute(text("SELECT pg_backend_pid()")).scalar())
    assert pids[0] == pids[1]
