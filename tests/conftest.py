"""Fixtures of every test: a clean process, two real databases, an app on them."""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeAlias

import pytest
from hypothesis import settings as hypothesis_settings

from effects import Effects, JobType, crashpoints, set_default
from tests.support import databases
from tests.support.scripted import Scripted

AppFactory: TypeAlias = Callable[..., Effects]

for _name in [name for name in os.environ if name.startswith("EFFECTS_") and "_TEST_" not in name]:
    del os.environ[_name]

hypothesis_settings.register_profile("effects", deadline=None, database=None, print_blob=True)
hypothesis_settings.load_profile("effects")


def pytest_configure(config: pytest.Config) -> None:
    if not hasattr(config, "workerinput"):
        signal.signal(signal.SIGTERM, signal.default_int_handler)  # so that `timeout` leaves no server behind
        databases.choose_directory()


def pytest_unconfigure(config: pytest.Config) -> None:
    if not hasattr(config, "workerinput"):
        databases.stop_server()


@pytest.fixture(autouse=True)
def _clean_process() -> Iterator[None]:
    """No test leaves its default app or its crash point to the next."""
    yield
    crashpoints.install(None)
    set_default(None)


@pytest.fixture(scope="session")
def postgresql_server() -> str:
    """The URL of a PostgreSQL server. Without one: skipped at home, failed in CI."""
    try:
        return databases.server_url()
    except databases.NoServerError as error:
        if os.environ.get("CI"):
            pytest.fail(str(error))
        pytest.skip(str(error))


@pytest.fixture(scope="session")
def postgresql_template(postgresql_server: str) -> Iterator[str]:
    """The name of a migrated database to clone."""
    with databases.postgresql_database(postgresql_server) as url:
        databases.migrated(url)
        yield url.split("?")[0].rsplit("/", 1)[1]


@pytest.fixture(scope="session")
def sqlite_template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A migrated file to copy."""
    path = tmp_path_factory.mktemp("template") / "effects.db"
    databases.migrated(f"sqlite:///{path}")
    return path


@pytest.fixture(params=["sqlite", "postgresql"])
def empty_database_url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """A new database without tables, once on each of the two."""
    if request.param == "sqlite":
        yield f"sqlite:///{tmp_path / 'empty.db'}"
        return
    with databases.postgresql_database(request.getfixturevalue("postgresql_server")) as url:
        yield url


@pytest.fixture(params=["sqlite", "postgresql"])
def database_url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """A new database with our tables, once on each of the two."""
    if request.param == "sqlite":
        shutil.copy(request.getfixturevalue("sqlite_template"), tmp_path / "effects.db")
        yield f"sqlite:///{tmp_path / 'effects.db'}"
        return
    server = request.getfixturevalue("postgresql_server")
    with databases.postgresql_database(server, request.getfixturevalue("postgresql_template")) as url:
        yield url


@pytest.fixture
def app_factory(database_url: str) -> Iterator[AppFactory]:
    """Makes any number of apps on the test's database: `app_factory(job_types=[…], threads=2)`."""
    made: list[Effects] = []

    def make(url: str = database_url, *, job_types: list[JobType[Any]] | None = None, **options: Any) -> Effects:
        app = Effects(url, job_types=[Scripted()] if job_types is None else job_types, **options)
        made.append(app)
        return app

    yield make
    for app in made:
        app.dispose()


@pytest.fixture
def app(app_factory: AppFactory) -> Effects:
    """An app with the job type `scripted`."""
    return app_factory()
