"""Fixtures of every test: a clean process, two real databases, an app on them."""

from __future__ import annotations

import gc
import os
import random
import shutil
import signal
from collections.abc import Callable, Generator, Iterator
from functools import cache
from pathlib import Path
from typing import Any, TypeAlias

import pytest
from hypothesis import settings as hypothesis_settings

from effects import Effects, JobType, set_default
from effects.kit import crashpoints
from effects.store.sessions.databases import living
from tests.peers.proxy import Proxy
from tests.support import databases
from tests.support.database_pool import DatabasePool
from tests.support.imported import own_imports
from tests.support.lasting_objects import lasting_objects
from tests.support.sampling import draw
from tests.support.scripted import Scripted

AppFactory: TypeAlias = Callable[..., Effects]

for _name in [name for name in os.environ if name.startswith("EFFECTS_") and "_TEST_" not in name]:
    del os.environ[_name]

if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:  # under nohup; what tests start would inherit it
    signal.signal(signal.SIGHUP, signal.SIG_DFL)

hypothesis_settings.register_profile("effects", deadline=None, database=None, print_blob=True)
hypothesis_settings.load_profile("effects")


# Real processes, servers and documents: all of these take seconds.
SLOW_FOLDERS = (
    "browser",
    "crash",
    "demo",
    "docs",
    "examples",
    "failover",
    "faults",
    "mutants",
    "properties",
    "simulator",
    "upgrades",
)
# What is promised on both databases; the tests of other folders say what is built on it.
ON_BOTH = (
    "conformance", "crash", "examples", "faults", "properties", "upgrades",
    *(f"core/test_{name}.py" for name in (  # whose subject is SQL, or a driver; the others of `core` ask neither
        "alembic", "audit", "dispatcher", "engine", "evidence", "forgotten_sessions", "list_plans", "plain_sql",
        "sessions", "worker_rows",
    )),
)  # fmt: skip
DATABASES = ("postgresql", "sqlite")
ON_POSTGRESQL = "on PostgreSQL"
QUICK_COUNTS = {ON_POSTGRESQL: 100}  # of some 1,700
QUICK_CASES = 3  # of each other table of cases; some have hundreds
MEMORY, MEMORY_BYTES_MIN = Path("/dev/shm"), 4_000_000_000  # a folder in memory, and what it must have free


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--quick",
        action="store_true",
        help="leave out slow tests, most PostgreSQL ones, and most cases of large tables",
    )
    parser.addoption(
        "--either",
        action="store_true",
        help=f"run on one database, drawn by the seed, what runs on both, except for {', '.join(ON_BOTH)}",
    )


@pytest.hookimpl(optionalhook=True)  # where xdist is left out
def pytest_xdist_auto_num_workers(config: pytest.Config) -> int:
    """Twice as many as there are cores: half of the time, tests wait for processes, sockets and leases. Quick ones wait
    less, and each process more collects them all.
    """
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return cores + (cores + 1) // 2 if config.getoption("quick") else 2 * cores


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Collecting what is left out would take a quick run a quarter of its time."""
    if not config.getoption("quick") or not _is_slow(collection_path):
        return None
    modules = collection_path.rglob("*.py") if collection_path.is_dir() else [collection_path]
    return not any("pytest.mark.quick" in module.read_text(encoding="utf-8") for module in modules) or None


def _is_slow(path: Path) -> bool:
    return _is_in(path, SLOW_FOLDERS)


@cache  # of each file, not of each of its tests
def _is_in(path: Path, places: tuple[str, ...]) -> bool:
    """Whether it is one of these files and folders, or lies in one."""
    return any(path.relative_to(Path(__file__).parent).is_relative_to(place) for place in places)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Slow tests come first, so that no process is left with one at the end; before them those of `house`, so that one
    process parses the sources for all of them.
    """
    for item in items:
        if " at 0x" in item.nodeid:
            raise pytest.UsageError(f"{item.nodeid} has an address in its name, another one in each process: give ids")
        if _is_slow(item.path) and item.get_closest_marker("quick") is None:
            item.add_marker("slow")
    if config.getoption("quick"):
        _keep_quick(config, items)
    elif config.getoption("either"):
        _keep_either(config, items)
    items.sort(key=lambda item: (not _is_in(item.path, ("house",)), item.get_closest_marker("slow") is None))


def _keep_quick(config: pytest.Config, items: list[pytest.Item]) -> None:
    tables: dict[str, list[str]] = {}
    for item in items:
        if item.get_closest_marker("slow") is None:
            tables.setdefault(_table_of(item), []).append(item.nodeid)
    seed = os.environ["EFFECTS_TEST_SEED"]
    kept = {
        name for table, names in tables.items()
        for name in draw(sorted(names), QUICK_COUNTS.get(table, QUICK_CASES), seed)
    }  # fmt: skip
    _keep(config, items, {item for item in items if item.nodeid in kept})


def _keep_either(config: pytest.Config, items: list[pytest.Item]) -> None:
    on_both: dict[str, list[pytest.Item]] = {}
    for item in items:
        if not _is_in(item.path, ON_BOTH):
            on_both.setdefault(_without_database(item), []).append(item)
    seed = os.environ["EFFECTS_TEST_SEED"]
    left_out = {
        item for name, pair in on_both.items()
        if {_database_of(item) for item in pair} == set(DATABASES)
        for item in pair if _database_of(item) != random.Random(f"{seed} {name}").choice(DATABASES)
    }  # fmt: skip
    _keep(config, items, set(items) - left_out)


def _without_database(item: pytest.Item) -> str:
    database = _database_of(item)
    return item.nodeid if database is None else item.nodeid.replace(database, "*")


def _database_of(item: pytest.Item) -> str | None:
    """That which the test's parameters name; None where they name none."""
    parameters = getattr(item, "callspec", None)
    values = [] if parameters is None else list(parameters.params.values())
    return next((database for database in DATABASES if database in values), None)


def _keep(config: pytest.Config, items: list[pytest.Item], chosen: set[pytest.Item]) -> None:
    config.hook.pytest_deselected(items=[item for item in items if item not in chosen])
    items[:] = [item for item in items if item in chosen]


def _table_of(item: pytest.Item) -> str:
    """What a quick run takes a few cases of; those of `house` stand each for itself."""
    if _is_on_postgresql(item):
        return ON_POSTGRESQL
    return item.nodeid if _is_in(item.path, ("house",)) else item.nodeid.partition("[")[0]


def _is_on_postgresql(item: pytest.Item) -> bool:
    return _database_of(item) == "postgresql" or "postgresql_server" in getattr(item, "fixturenames", ())


def pytest_configure(config: pytest.Config) -> None:
    if not hasattr(config, "workerinput"):
        signal.signal(signal.SIGTERM, signal.default_int_handler)  # so that the report of the run is printed
        memory = MEMORY if _is_roomy(MEMORY) else None
        config.add_cleanup(databases.begin_run(memory))
        os.environ.setdefault("EFFECTS_TEST_SEED", str(random.SystemRandom().randrange(10**9)))  # for all processes
        if memory:
            os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", str(memory))  # where `tmp_path` is: no commit awaits a disk


def _is_roomy(folder: Path) -> bool:
    """Whether tests can write and execute as much there as they do."""
    if not folder.is_dir() or os.statvfs(folder).f_flag & os.ST_NOEXEC:
        return False
    return shutil.disk_usage(folder).free > MEMORY_BYTES_MIN


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    with lasting_objects():
        return (yield)


def pytest_collection_finish() -> None:
    """The programs of worker processes, which tests import for their names, are not this process's Effects."""
    for app in living(Effects):
        app.disposed = True


def pytest_report_header() -> str:
    return f"EFFECTS_TEST_SEED={os.environ['EFFECTS_TEST_SEED']}"


@pytest.fixture(autouse=True)
def _clean_process(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """No test leaves its modules, its default app, its other apps or its crash point to the next."""
    of_wider_scope = living(Effects)
    with own_imports(tmp_path_factory.getbasetemp()):
        yield
    crashpoints.install(None)
    set_default(None)
    for app in living(Effects):
        if app not in of_wider_scope:
            app.disposed = True  # whoever still holds it
    gc.unfreeze()  # what a worker has frozen that a test has left behind: each later one would count it


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
def postgresql_pool(postgresql_server: str, postgresql_template: str) -> Iterator[DatabasePool]:
    """Databases with our tables, which this process uses again and again."""
    pool = DatabasePool(postgresql_server, postgresql_template)
    yield pool
    pool.close()


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
    pool: DatabasePool = request.getfixturevalue("postgresql_pool")
    with pool.database() as url:
        yield url


@pytest.fixture
def proxy(database_url: str) -> Iterator[Proxy]:
    """Stands between the test's workers and the PostgreSQL server."""
    with Proxy(database_url) as proxy:
        yield proxy


@pytest.fixture
def app_factory(request: pytest.FixtureRequest, database_url: str) -> Iterator[AppFactory]:
    """Makes any number of apps on the test's database: `app_factory(job_types=[…], threads=2)`.

    They name the queues of the module's `NAMED_QUEUES`, if it has them, so that calls may put jobs there.
    """
    apps: list[Effects] = []
    named = {"queues": getattr(request.module, "NAMED_QUEUES", None)}

    def make(url: str = database_url, *, job_types: list[JobType[Any]] | None = None, **options: Any) -> Effects:
        options = {**named, **options}
        app = Effects(url, job_types=[Scripted()] if job_types is None else job_types, **options)
        apps.append(app)
        return app

    yield make
    for app in apps:
        app.dispose()


@pytest.fixture
def app(app_factory: AppFactory) -> Effects:
    """An app with the job type `scripted`."""
    return app_factory()
