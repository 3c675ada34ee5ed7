"""Engines: SQLite's pragmas, and a child process that keeps off its parent's connections."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest
from sqlalchemy import text

from effects import ConfigurationError, Effects
from effects.store import engine as engines
from effects.store.store import is_outage
from tests.conftest import AppFactory
from tests.support.hands import rows

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


def test_a_forked_child_connects_anew(app: Effects, database_url: str) -> None:
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
        found = {
            name: connection.execute(text(f"PRAGMA {name}")).scalar()
            for name in ("journal_mode", "synchronous", "foreign_keys", "busy_timeout")
        }
    engine.dispose()
    assert found == {"journal_mode": "wal", "synchronous": 2, "foreign_keys": 1, "busy_timeout": 30_000}


def test_an_old_sqlite_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sqlite3, "sqlite_version_info", (3, 37, 2))
    with pytest.raises(ConfigurationError, match=r"needs 3\.38 or later"):
        engines.create_engine(f"sqlite:///{tmp_path / 'x.db'}")


def test_a_readers_snapshot_does_not_stop_a_writer(app: Effects, app_factory: AppFactory) -> None:
    other = app_factory()
    with app.store.read() as connection:
        connection.execute(text("SELECT count(*) FROM effects_jobs"))
        with other.store.begin() as writer:
            writer.execute(text("INSERT INTO effects_jobs (job_type, payload) VALUES ('scripted', '{}')"))
    assert len(rows(app, "jobs")) == 1


@pytest.mark.parametrize("error", [ValueError("locked"), RuntimeError(), KeyError("08006")], ids=repr)
def test_a_programming_error_is_no_outage(error: Exception) -> None:
    assert not is_outage(error)
