"""What a start imports: cron starts `effects` each minute, and an import that is not used is paid each time."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from sqlalchemy import event

from effects import Effects
from effects.store.db import revisions
from effects.worker import Worker

LIBRARIES = {
    "alembic", "asyncio", "cryptography", "css_inline", "email_validator", "httpcore", "httpx", "jinja2", "msgspec",
    "psycopg", "rich", "sqlalchemy",
}  # fmt: skip
FOR_JOBS = LIBRARIES - {"asyncio", "cryptography", "msgspec", "sqlalchemy"} | {"h11", "idna", "pygments"}


def _imported(code: str) -> set[str]:
    """The top-level modules that a fresh process has imported after `code`."""
    report = "import atexit, sys; atexit.register(lambda: print('\\n' + ' '.join(sys.modules)))\n"
    ran = subprocess.run([sys.executable, "-c", report + code], capture_output=True, text=True, timeout=60, check=True)
    return {name.split(".")[0] for name in ran.stdout.splitlines()[-1].split()}


@pytest.mark.parametrize(
    "package", ["effects", "effects.extend", "effects_email", "effects_reports", "effects_webhooks"]
)
def test_importing_a_package_imports_no_library(package: str) -> None:
    assert _imported(f"import {package}") & {*LIBRARIES, "click"} == set()


def test_the_version_is_printed_without_the_core() -> None:
    assert _imported("from effects.cli.main import cli; cli.main(['--version'])") & LIBRARIES == set()


def test_an_empty_drain_imports_nothing_that_only_jobs_need(tmp_path: Path) -> None:
    database = f"sqlite:///{tmp_path / 'cron.db'}"
    Effects(database).create_tables()
    drain = f"cli.main(['--database-url', {database!r}, 'work', '--drain'])"
    imported = _imported(f"from effects.cli.main import cli; {drain}")
    assert "sqlalchemy" in imported
    assert imported & FOR_JOBS == set()


def test_an_empty_drain_asks_the_database_little(tmp_path: Path) -> None:
    """Beside what a connection asks when it opens. The first drain has taken the minute's sample.

    On PostgreSQL it depends on the threads' order: the listener has all queues looked at once more.
    """
    app = Effects(f"sqlite:///{tmp_path / 'cron.db'}")
    app.create_tables()
    with app.store.read() as connection:
        app.store.shift_clock(30 - app.store.now(connection) % 60)  # both drains are in one minute
    Worker(app).drain()
    statements: list[str] = []
    event.listen(app.engine, "before_cursor_execute", lambda *arguments: statements.append(arguments[2]))
    revisions.check(app.store)  # as the command does before it starts a worker
    Worker(app).drain()
    app.dispose()
    looks = [statement for statement in statements if statement.lstrip().startswith("SELECT 0 AS n")]
    work = [statement for statement in statements if statement not in looks and not statement.startswith("BEGIN")]
    assert looks
    assert len(work) <= 9, work
