"""What a start imports: cron starts `effects` each minute, and an import that is not used is paid each time."""

from __future__ import annotations

import subprocess
import sys
import threading
from functools import partial
from pathlib import Path

import pytest

from effects import Effects, enqueue
from effects.cli.main import cli, exit_code_of
from tests.support.driver_statements import driver_statements
from tests.support.manual_workers import rows

LIBRARIES = {
    "alembic", "asyncio", "cryptography", "css_inline", "email_validator", "httpcore", "httpx", "jinja2", "msgspec",
    "psycopg", "rich", "sqlalchemy",
}  # fmt: skip
WORK = ("work", "--drain")
FOR_JOBS = LIBRARIES - {"asyncio", "cryptography", "msgspec", "sqlalchemy"} | {"h11", "httptools", "idna", "pygments"}


def _modules(code: str) -> set[str]:
    """The modules that a fresh process has imported after `code`."""
    report = "import atexit, sys; atexit.register(lambda: print('\\n' + ' '.join(sys.modules)))\n"
    ran = subprocess.run([sys.executable, "-c", report + code], capture_output=True, text=True, timeout=60, check=True)
    return set(ran.stdout.splitlines()[-1].split())


def _imported(code: str) -> set[str]:
    return {name.split(".")[0] for name in _modules(code)}


def _above_the_wall(modules: set[str]) -> set[str]:
    """Of these modules, those of the rooms that no delivery needs."""
    return {name for name in modules if name.startswith(("effects.cli", "effects.operate", "effects.web"))}


@pytest.mark.parametrize(
    "package", ["effects", "effects.extend", "effects_email", "effects_reports", "effects_webhooks"]
)
def test_importing_a_package_imports_no_library(package: str) -> None:
    assert _imported(f"import {package}") & {*LIBRARIES, "click"} == set()


def test_the_version_is_printed_without_the_core() -> None:
    assert _imported("from effects.cli.main import cli; cli.main(['--version'])") & LIBRARIES == set()


@pytest.mark.slow
def test_an_empty_drain_imports_nothing_that_only_jobs_need(tmp_path: Path) -> None:
    database = f"sqlite:///{tmp_path / 'cron.db'}"
    Effects(database).create_tables()
    drain = f"cli.main(['--database-url', {database!r}, 'work', '--drain'])"
    imported = _imported(f"from effects.cli.main import cli; {drain}")
    assert "sqlalchemy" in imported
    assert imported & FOR_JOBS == set()


# The command itself: how it begins and ends, what it shows on a terminal.
OF_THE_COMMAND = {
    "effects.cli", "effects.cli.context", "effects.cli.process", "effects.cli.main", "effects.cli.options",
    "effects.cli.work",
}  # fmt: skip
SERVED = """
import os, signal
from effects import Effects

app = Effects({database!r})


@app.job("page.duty")
def page():
    os.kill(os.getpid(), signal.SIGTERM)
"""


@pytest.mark.slow
def test_a_worker_without_options_and_an_app_that_enqueues_import_nothing_above_the_wall(tmp_path: Path) -> None:
    """Of `operate` a worker imports what its first job of a bulk action or an alert needs; metrics by their option."""
    database = f"sqlite:///{tmp_path / 'wall.db'}"
    app = Effects(database)
    app.create_tables()
    (tmp_path / "duty.py").write_text(SERVED.format(database=database))
    find = f"import sys; sys.path.insert(0, {str(tmp_path)!r})\n"
    call = f"{find}from effects import enqueue; from duty import app; enqueue('page.duty', {{}}, effects=app)"
    assert _above_the_wall(_modules(call)) == set()
    work = f"{find}from effects.cli.main import cli; cli.main(['--app', 'duty:app', 'work'])"
    assert _above_the_wall(_modules(work)) == OF_THE_COMMAND
    assert [row["job_type"] for row in rows(app, "job_history")] == ["page.duty"]


def _drain(database_url: str) -> list[str]:
    """What `effects work --drain` sends, from its first connection on."""
    with driver_statements() as statements:
        assert exit_code_of(partial(cli.main, ["--database-url", database_url, *WORK], standalone_mode=False)) == 0
    return statements


def test_an_empty_drain_sends_thirteen_statements_at_most(app: Effects, database_url: str) -> None:
    """Those at the connect too, and those of the sample, which the first drain of each minute takes."""
    statements = _drain(database_url)
    assert rows(app, "samples")
    assert rows(app, "workers") == []
    assert len(statements) <= 13, statements


def test_an_empty_drain_starts_no_thread_that_only_jobs_need(
    app: Effects, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    started = []
    start = threading.Thread.start

    def noted(thread: threading.Thread) -> None:
        started.append(thread.name)
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", noted)
    _drain(database_url)
    assert sorted(started) == ["effects-last-resort", "effects-signals", "effects-supervisor"]


def test_a_drain_that_finds_a_job_starts_the_others(app: Effects, database_url: str) -> None:
    receipt = enqueue("effects.prune", {}, effects=app)
    _drain(database_url)
    assert [row["id"] for row in rows(app, "job_history")] == [receipt.job_id]
