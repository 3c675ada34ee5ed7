"""Engines: SQLite's pragmas, and a child process that keeps off its parent's connections."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import text

from effects import ConfigurationError, Effects, StoreUnavailable, enqueue
from effects.store.db import engine as engines
from effects.store.db.faults import Fault, fault_of
from tests.conftest import AppFactory
from tests.support.manual_workers import rows

FORKING = """
import os, sys
from effects import Effects, enqueue
from sqlalchemy import text
from tests.support.scripted import Scripted

def backend(app):
    if not app.store.is_postgresql:
        return None
    with app.engine.connect() as connection:
        return connection.execute(text("SELECT pg_backend_pid()")).scalar()

app = Effects(sys.argv[1], job_types=[Scripted()])
enqueue("scripted", {"name": "before"}, effects=app)
mine = backend(app)
child = os.fork()
if child == 0:
    enqueue("scripted", {"name": "child"}, effects=app)
    assert mine is None or backend(app) != mine
    app.dispose()
    sys.exit(0)
assert os.waitpid(child, 0)[1] == 0
enqueue("scripted", {"name": "after"}, effects=app)
app.dispose()
"""


@pytest.mark.slow
def test_a_forked_child_opens_its_own_connections(app: Effects, database_url: str) -> None:
    root = Path(__file__).parents[2]
    ran = subprocess.run(
        [sys.executable, "-c", FORKING, database_url],
        cwd=root, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert (ran.returncode, ran.stderr) == (0, "")
    assert len(rows(app, "jobs")) == 3


def test_sqlite_is_set_up_to_keep_what_it_acknowledges(tmp_path: Path) -> None:
    engine = engines.create_engine(f"sqlite:///{tmp_path / 'x.db'}")
    with engine.connect() as connection:
        pragmas = {
            name: connection.execute(text(f"PRAGMA {name}")).scalar()
            for name in ("journal_mode", "synchronous", "foreign_keys", "busy_timeout")
        }
    engine.dispose()
    assert pragmas == {"journal_mode": "wal", "synchronous": 2, "foreign_keys": 1, "busy_timeout": 30_000}


def test_switching_to_wal_waits_for_another_connection_that_switches(tmp_path: Path) -> None:
    path = tmp_path / "new.db"
    refused = threading.Event()

    class Watched(sqlite3.Connection):
        def execute(self, *arguments: Any) -> sqlite3.Cursor:
            try:
                return super().execute(*arguments)
            except sqlite3.OperationalError:
                refused.set()
                raise

    with closing(sqlite3.connect(path, isolation_level=None)) as writer:
        writer.execute("BEGIN EXCLUSIVE")

        def connect() -> str:
            with closing(sqlite3.connect(path, timeout=0, factory=Watched)) as connection:
                engines.use_wal(connection)
                return str(connection.execute("PRAGMA journal_mode").fetchone()[0])

        with ThreadPoolExecutor() as threads:
            mode = threads.submit(connect)
            assert refused.wait(30)
            writer.execute("COMMIT")
            assert mode.result() == "wal"


def test_switching_to_wal_ends_at_its_bound(tmp_path: Path) -> None:
    path = tmp_path / "new.db"
    with (
        closing(sqlite3.connect(path, isolation_level=None)) as writer,
        closing(sqlite3.connect(path, timeout=0)) as connection,
    ):
        writer.execute("BEGIN EXCLUSIVE")
        with pytest.raises(sqlite3.OperationalError, match="locked"):
            engines.use_wal(connection, seconds=0.0)


def is_closed(driver: Any) -> bool:
    if isinstance(driver, sqlite3.Connection):
        try:
            driver.execute("SELECT 1")
        except sqlite3.ProgrammingError:
            return True
        return False
    return bool(driver.closed)


@pytest.mark.parametrize("opened", ["before", "after"])
@pytest.mark.parametrize("step", ["begin", "read"])
def test_a_connection_in_use_at_dispose_is_closed_when_it_comes_back(opened: str, step: str, app: Effects) -> None:
    """A worker's thread may hang in it meanwhile, or begin a last statement."""
    if opened == "after":
        app.dispose()
    with getattr(app.store, step)() as connection:
        driver = connection.connection.driver_connection
        app.dispose()
        assert connection.exec_driver_sql("SELECT 1").scalar() == 1
    assert is_closed(driver)


def test_a_disposed_engine_continues_with_a_new_pool(app: Effects) -> None:
    """As before a fork: what was open is closed, and what is opened then is kept."""
    with app.engine.connect() as connection:
        inherited = connection.connection.driver_connection
        app.engine.dispose()
    with app.engine.connect() as connection:
        fresh = connection.connection.driver_connection
    assert (is_closed(inherited), is_closed(fresh)) == (True, False)


def test_no_statement_of_ours_is_compiled(app: Effects) -> None:
    if not app.store.is_postgresql:
        pytest.skip("SQLite compiles none")
    with app.store.read() as connection:
        assert connection.scalar(text("SHOW jit")) == "off"


def test_an_old_sqlite_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sqlite3, "sqlite_version_info", (3, 37, 2))
    with pytest.raises(ConfigurationError, match=r"needs 3\.38 or later"):
        engines.create_engine(f"sqlite:///{tmp_path / 'x.db'}")


def test_a_readers_snapshot_does_not_stop_a_writer(app: Effects, app_factory: AppFactory) -> None:
    second_app = app_factory()
    with app.store.read() as connection:
        connection.execute(text("SELECT count(*) FROM effects_jobs"))
        with second_app.store.begin() as writer:
            writer.execute(text("INSERT INTO effects_jobs (job_type, payload) VALUES ('scripted', '{}')"))
    assert len(rows(app, "jobs")) == 1


@pytest.mark.parametrize("error", [ValueError("locked"), RuntimeError(), KeyError("08006")], ids=repr)
def test_a_programming_error_is_no_outage(error: Exception) -> None:
    assert fault_of(error) is Fault.BUG


def test_a_refused_connection_is_named_with_host_port_and_reason(app_factory: AppFactory) -> None:
    """Not with the password, in an app's own process too."""
    with pytest.raises(StoreUnavailable) as raised:
        enqueue("scripted", {}, effects=app_factory("postgresql://ann:hunter2@127.0.0.1:1/shop"))
    assert '"127.0.0.1", port 1 failed: Connection refused' in str(raised.value)
    assert "hunter2" not in str(raised.value)
