"""A thread that a handler has started, and that hangs, keeps no process whose worker has ended."""

from __future__ import annotations

import signal
from contextlib import closing
from pathlib import Path

import pytest

from effects import Effects
from effects.cli import process
from tests.conftest import AppFactory
from tests.support.manual_workers import rows, run_sql
from tests.support.processes import Child, effects
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.slow, pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)]


@pytest.fixture
def app(app_factory: AppFactory) -> Effects:
    return app_factory(job_types=[])


def work(*options: str) -> None:
    """The console script, which waits half a second for threads."""
    process.THREADS_SECONDS = 0.5
    effects("--app", "tests.support.thread_left_app:app", "work", *options)


@pytest.mark.parametrize("way", ["stop", "drain"])
@pytest.mark.parametrize("kind", ["left.executor", "left.async", "left.own"])
def test_a_thread_left_by_a_handler_does_not_keep_the_process_alive(
    app: Effects, database_url: str, kind: str, way: str, tmp_path: Path
) -> None:
    """Python waits for it at the exit, for good."""
    run_sql(app, "INSERT INTO effects_jobs (job_type, payload) VALUES (:kind, '{}')", kind=kind)
    options = ("--drain",) if way == "drain" else ()
    with closing(Child(work, options, {"EFFECTS_DATABASE_URL": database_url}, tmp_path / "log")) as child:
        if way == "stop":
            wait_until(lambda: rows(app, "job_history"))
            child.send(signal.SIGTERM)
        assert child.wait() == 0, child.output
        assert [row["status"] for row in rows(app, "job_history")] == ["succeeded"], child.output
        [line] = [line for line in child.output.splitlines() if "process.thread_left" in line]
    assert "thread_left_app.py" in line
