"""The database goes away and comes back: the worker waits quietly, forgets nothing, and needs no restart."""

from __future__ import annotations

import logging
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import event

from effects import Effects, enqueue
from effects.errors import StoreUnavailable
from effects.kit.exit_codes import ExitCode
from effects.operate.tables.audit import audit
from effects.worker import Worker
from effects.worker.context import LOG_EVERY_SECONDS
from tests.peers.proxy import Proxy
from tests.peers.stub_server import StubServer
from tests.support.manual_workers import rows, run_sql
from tests.support.processes import fleet
from tests.support.running import running
from tests.support.step_jobs import StepJob, step_jobs_app
from tests.support.waiting import wait_until

OUTAGE_SECONDS = 6.0  # long enough for a second line in the log
OPTIONS: dict[str, Any] = {"lease_seconds": 30.0, "heartbeat_seconds": 0.3, "poll_seconds": 0.1}

on_postgresql = pytest.mark.parametrize("database_url", ["postgresql"], indirect=True)
on_sqlite = pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)


@pytest.fixture
def direct(database_url: str) -> Iterator[Effects]:
    step_app = step_jobs_app(database_url, **OPTIONS)
    yield step_app
    step_app.dispose()


@pytest.fixture
def proxied(proxy: Proxy) -> Iterator[Effects]:
    step_app = step_jobs_app(proxy.url, **OPTIONS)
    yield step_app
    step_app.dispose()


@on_postgresql
def test_a_drain_waits_for_a_read_only_server_no_longer_than_its_time(direct: Effects, database_url: str) -> None:
    with direct.store.begin() as connection:
        name = connection.exec_driver_sql("SELECT current_database()").scalar()
        connection.exec_driver_sql(f'ALTER DATABASE "{name}" SET default_transaction_read_only = on')
    app = step_jobs_app(database_url, **OPTIONS)
    drained = Worker(app).drain(max_seconds=0.2)
    app.dispose()
    assert (drained.finished, drained.exit_code) == (False, ExitCode.TIME_RAN_OUT)


@on_postgresql
@pytest.mark.parametrize("kind", ["step_job", "step_job.held"])
def test_what_was_done_just_before_the_outage_is_recorded_after_it(
    kind: str,
    direct: Effects,
    proxied: Effects,
    proxy: Proxy,
    stub_server: StubServer,
    caplog: pytest.LogCaptureFixture,
) -> None:
    stub_server.hold("one")
    steps = ("release", "ask", "do") if kind == "step_job.held" else ("ask", "do")
    enqueue(kind, StepJob("one", stub_server.port, steps), key="one", effects=direct)
    with running(Worker(proxied)):
        stub_server.wait_asked("one")
        proxy.refuse()
        stub_server.open("one")
        wait_until(lambda: stub_server.done)
        enqueue("step_job", StepJob("two", stub_server.port), effects=direct)
        _pass(OUTAGE_SECONDS)
        assert [row["status"] for row in rows(direct, "jobs")] == ["running", "queued"]
        proxy.accept()
        wait_until(lambda: not rows(direct, "jobs"))
    assert sorted(stub_server.done) == ["one", "two"]
    assert [row["outcome"] for row in rows(direct, "job_attempts")] == ["succeeded", "succeeded"]
    assert audit(direct.store, direct.ledgers) == []
    lines = [record.getMessage() for record in caplog.records]
    assert 1 <= lines.count("database.away") <= 1 + OUTAGE_SECONDS // LOG_EVERY_SECONDS
    assert lines.count("database.back") == 1
    _assert_calm(caplog)


@on_postgresql
def test_a_worker_that_starts_during_an_outage_waits_for_its_end(
    direct: Effects, proxied: Effects, proxy: Proxy, stub_server: StubServer, caplog: pytest.LogCaptureFixture
) -> None:
    enqueue("step_job", StepJob("one", stub_server.port), effects=direct)
    proxy.refuse()
    with running(Worker(proxied)):
        wait_until(lambda: "database.away" in caplog.messages)
        assert rows(direct, "workers") == []
        proxy.accept()
        wait_until(lambda: not rows(direct, "jobs"))
    assert stub_server.done == ["one"]
    _assert_calm(caplog)


@on_postgresql
def test_the_command_too_waits_for_the_end_of_an_outage(
    direct: Effects, proxy: Proxy, stub_server: StubServer, tmp_path: Path
) -> None:
    """A service manager would give up after many restarts; the form for cron says at once that it cannot work."""
    enqueue("step_job", StepJob("one", stub_server.port), effects=direct)
    proxy.refuse()
    with fleet(proxy.url, tmp_path) as processes:
        worker = processes.worker()
        worker.wait_logged("database.away")
        assert processes.worker("--drain").wait() == 2
        proxy.accept()
        wait_until(lambda: not rows(direct, "jobs"))
        worker.send(signal.SIGTERM)
        assert worker.wait() == 0
    assert stub_server.done == ["one"]


@on_postgresql
def test_a_worker_can_be_stopped_during_an_outage(
    direct: Effects, proxied: Effects, proxy: Proxy, stub_server: StubServer, caplog: pytest.LogCaptureFixture
) -> None:
    """Twice asked, it leaves without having written; what it held is found by its silence."""
    stub_server.hold("one")
    enqueue("step_job", StepJob("one", stub_server.port, ("ask", "do")), effects=direct)
    with running(Worker(proxied)) as run:
        stub_server.wait_asked("one")
        proxy.refuse()
        stub_server.open("one")
        wait_until(lambda: "database.away" in caplog.messages)
        run.worker.stop()
    assert [row["status"] for row in rows(direct, "jobs")] == ["running"]
    _assert_calm(caplog)


@on_sqlite
def test_a_full_disk_is_waited_out(direct: Effects, stub_server: StubServer, caplog: pytest.LogCaptureFixture) -> None:
    """SQLite says so by SQLITE_FULL; `max_page_count` makes it say so without filling a disk."""
    limit = _PageLimit(direct)
    long = "one" * 10_000  # its history needs pages of its own
    stub_server.hold(long)
    enqueue("step_job", StepJob(long, stub_server.port, ("ask", "do")), key="one", effects=direct)
    with running(Worker(direct)):
        stub_server.wait_asked(long)
        limit.fill()
        stub_server.open(long)
        wait_until(lambda: stub_server.done)
        wait_until(lambda: "database.away" in caplog.messages)
        assert [row["status"] for row in rows(direct, "jobs")] == ["running"]  # no half of its end was written
        assert rows(direct, "job_history") == rows(direct, "job_attempts") == []
        _pass(1.5)  # heartbeats fit all the while, and every one of them seems to be the end of the outage
        assert caplog.messages.count("database.away") == 1
        limit.lift()
        wait_until(lambda: not rows(direct, "jobs"))
    assert stub_server.done == [long]
    assert [row["outcome"] for row in rows(direct, "job_attempts")] == ["succeeded"]
    assert audit(direct.store, direct.ledgers) == []
    _assert_calm(caplog)


class _PageLimit:
    """Every connection that is checked out gets the limit of the moment."""

    def __init__(self, app: Effects) -> None:
        self._app = app
        self._pages = 2**30
        event.listen(app.engine, "checkout", self._apply)

    def _apply(self, connection: Any, *rest: object) -> None:
        connection.execute(f"PRAGMA max_page_count = {self._pages}").fetchone()

    def fill(self) -> None:
        """No page more than there is, and none of those is free."""
        with self._app.store.begin() as connection:
            connection.exec_driver_sql("CREATE TABLE ballast (b BLOB)")
        self._pages = 1  # SQLite takes the present size for less than that
        with pytest.raises(StoreUnavailable) as full:
            self._stuff()
        assert "full" in str(full.value.__context__)

    def _stuff(self) -> None:
        while True:
            run_sql(self._app, "INSERT INTO ballast VALUES (zeroblob(4000))")

    def lift(self) -> None:
        self._pages = 2**30


def _pass(seconds: float) -> None:
    """The outage lasts for a time of its own: there is nothing to wait for."""
    threading.Event().wait(seconds)


def _assert_calm(caplog: pytest.LogCaptureFixture) -> None:
    assert [record for record in caplog.records if record.levelno >= logging.ERROR or record.exc_info] == []
