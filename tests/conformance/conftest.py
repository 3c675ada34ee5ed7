"""Samples of the suite run with pgbouncer in transaction mode between, and on servers that are set up otherwise: of
another version, with other defaults, for a role that owns a schema and nothing else."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy.engine import make_url

from tests.peers.pgbouncer import PgBouncer
from tests.support import databases, debian_server
from tests.support.database_pool import DatabasePool
from tests.support.sampling import sample

# What is set for the database; every connection of the suite lives with it.
VARIATIONS = {
    "version 15": "",
    "repeatable read": "default_transaction_isolation = 'repeatable read'",
    "serializable": "default_transaction_isolation = 'serializable'",
    "impatient": "statement_timeout = '3s'; lock_timeout = '500ms'",
    "own schema": "",
}
FOLDER = Path(__file__).parent
DATABASES = ["sqlite", "postgresql", "pgbouncer", *VARIATIONS]
SAMPLE_SIZES = {"pgbouncer": 100, **dict.fromkeys(VARIATIONS, 10)}  # tests of each, of some 400


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Keep a sample of each variation's tests; every process of a run keeps the same."""
    varied: dict[str, list[pytest.Item]] = {variation: [] for variation in SAMPLE_SIZES}
    for item in items:
        if item.path.parent == FOLDER and (variation := _variation(item)) is not None:
            varied[variation].append(item)
            item.add_marker("slow")
    left_out: set[pytest.Item] = set()
    for variation, tests in varied.items():
        kept = set(sample([item.nodeid for item in tests], SAMPLE_SIZES[variation]))
        left_out.update(item for item in tests if item.nodeid not in kept)
    items[:] = [item for item in items if item not in left_out]
    config.hook.pytest_deselected(items=left_out)


def _variation(item: pytest.Item) -> str | None:
    """The database beside the two that this test runs on, if it does."""
    parameters = getattr(item, "callspec", None)
    chosen = () if parameters is None else parameters.params.values()
    return next((value for value in chosen if isinstance(value, str) and value in SAMPLE_SIZES), None)


@pytest.fixture(scope="session")
def pgbouncer(postgresql_server: str) -> Iterator[PgBouncer]:
    with PgBouncer(postgresql_server) as pooler:
        yield pooler


@pytest.fixture(scope="session")
def version_15() -> str:
    """The URL of Debian's PostgreSQL 15."""
    return debian_server.start_server(databases.run_directory())


@pytest.fixture(scope="session")
def version_15_template(version_15: str) -> Iterator[str]:
    with databases.postgresql_database(version_15) as url:
        databases.migrated(url)
        yield str(make_url(url).database)


@pytest.fixture(scope="session")
def own_schema_template(postgresql_server: str) -> Iterator[str]:
    """The name of a database in which a role without privileges has a schema of its own."""
    with databases.postgresql_database(postgresql_server) as url:
        databases.plain_role(url)
        yield str(make_url(url).database)


@pytest.fixture(scope="session")
def migrated_schema_template(postgresql_server: str, own_schema_template: str) -> Iterator[str]:
    with databases.postgresql_database(postgresql_server, own_schema_template) as url:
        databases.migrated(databases.as_plain_role(url))
        yield str(make_url(url).database)


@pytest.fixture(params=DATABASES)
def empty_database_url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """A new database without tables, once on each."""
    if request.param == "sqlite":
        yield f"sqlite:///{tmp_path / 'empty.db'}"
        return
    template = request.getfixturevalue("own_schema_template") if request.param == "own schema" else "template1"
    with databases.postgresql_database(_server(request), template) as url:
        yield _set_up(request, url)


@pytest.fixture(params=DATABASES)
def database_url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """A new database with our tables, once on each."""
    if request.param == "sqlite":
        shutil.copy(request.getfixturevalue("sqlite_template"), tmp_path / "effects.db")
        yield f"sqlite:///{tmp_path / 'effects.db'}"
        return
    if request.param == "postgresql":
        pool: DatabasePool = request.getfixturevalue("postgresql_pool")
        with pool.database() as url:
            yield url
        return
    names = {"version 15": "version_15_template", "own schema": "migrated_schema_template"}
    template = request.getfixturevalue(names.get(request.param, "postgresql_template"))
    with databases.postgresql_database(_server(request), template) as url:
        yield _set_up(request, url)


def _server(request: pytest.FixtureRequest) -> str:
    return str(request.getfixturevalue("version_15" if request.param == "version 15" else "postgresql_server"))


def _set_up(request: pytest.FixtureRequest, url: str) -> str:
    """The URL for the test, once the database is as the variation has it."""
    database = str(make_url(url).database)
    for setting in filter(None, VARIATIONS.get(request.param, "").split("; ")):
        databases.execute(url, f'ALTER DATABASE "{database}" SET {setting}')
    if request.param == "own schema":
        return databases.as_plain_role(url)
    if request.param == "pgbouncer":
        bouncer: PgBouncer = request.getfixturevalue("pgbouncer")
        return bouncer.url(database)
    return url
