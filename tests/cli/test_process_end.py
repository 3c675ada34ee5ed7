"""A thread that a handler has started, and that hangs, keeps no process whose worker has ended."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

from effects import Effects
from tests.cli.conftest import ROOT
from tests.conftest import AppFactory
from tests.support.manual_workers import rows, run_sql
from tests.support.waiting import PATIENCE_SECONDS, wait_until

COMMAND = """
from effects.cli import main, process_end
process_end.THREADS_SECONDS = 0.5
main.main()
"""

pytestmark = [pytest.mark.slow, pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)]


@pytest.fixture
def app(app_factory: AppFactory) -> Effects:
    return app_factory(job_types=[])


@pytest.mark.parametrize("way", ["stop", "drain"])
@pytest.mark.parametrize("kind", ["left.executor", "left.async", "left.own"])
def test_a_thread_left_by_a_handler_does_not_keep_the_process_alive(
    app: Effects, database_url: str, kind: str, way: str
) -> None:
    """Python waits for it at the exit, for good."""
    run_sql(app, "INSERT INTO effects_jobs (job_type, payload) VALUES (:kind, '{}')", kind=kind)
    options = ["--drain"] if way == "drain" else []
    child = subprocess.Popen(
        [sys.executable, "-c", COMMAND, "--app", "tests.support.thread_left_app:app", "work", *options],
        cwd=ROOT, env={**os.environ, "EFFECTS_DATABASE_URL": database_url}, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        if way == "stop":
            wait_until(lambda: rows(app, "job_history"))
            child.send_signal(signal.SIGTERM)
        _, log = child.communicate(timeout=PATIENCE_SECONDS)
    finally:
        child.kill()
    assert (child.returncode, rows(app, "job_history")[0]["status"]) == (0, "succeeded")
    [line] = [line for line in log.splitlines() if "process.thread_left" in line]
    assert "thread_left_app.py" in line
