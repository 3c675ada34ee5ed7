"""The suite runs a third time on PostgreSQL, with pgbouncer in transaction mode between."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy.engine import make_url

from tests.peers.pgbouncer import PgBouncer
from tests.support import databases

DATABASES = ["sqlite", "postgresql", "pgbouncer"]


@pytest.fixture(scope="session")
def pgbouncer(postgresql_server: str) -> Iterator[PgBouncer]:
    with PgBouncer(postgresql_server) as made:
        yield made


@pytest.fixture(params=DATABASES)
def empty_database_url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """A new database without tables, once on each."""
    if request.param == "sqlite":
        yield f"sqlite:///{tmp_path / 'empty.db'}"
        return
    with databases.postgresql_database(request.getfixturevalue("postgresql_server")) as url:
        yield _through(request, url)


@pytest.fixture(params=DATABASES)
def database_url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """A new database with our tables, once on each."""
    if request.param == "sqlite":
        shutil.copy(request.getfixturevalue("sqlite_template"), tmp_path / "effects.db")
        yield f"sqlite:///{tmp_path / 'effects.db'}"
        return
    server = request.getfixturevalue("postgresql_server")
    with databases.postgresql_database(server, request.getfixturevalue("postgresql_template")) as url:
        yield _through(request, url)


def _through(request: pytest.FixtureRequest, url: str) -> str:
    if request.param != "pgbouncer":
        return url
    bouncer: PgBouncer = request.getfixturevalue("pgbouncer")
    return bouncer.url(str(make_url(url).database))
