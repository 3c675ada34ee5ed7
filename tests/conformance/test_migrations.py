"""`effects init` makes the tables that the code declares, once, and a worker knows its own from others."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from alembic.autogenerate import compare_metadata
from alembic.config import Config
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, MetaData, Table, inspect, text

from effects import Done, Effects, SchemaMismatch, enqueue
from effects.store.db import revisions
from effects.store.migrations import migrate
from tests.support import databases
from tests.support.manual_workers import ManualWorker, rows, run_sql
from tests.support.scripted import Scripted


@pytest.fixture
def empty(empty_database_url: str) -> Iterator[Effects]:
    """An app on a database without tables."""
    app = Effects(empty_database_url, job_types=[Scripted()])
    yield app
    app.dispose()


def test_init_twice_is_init_once(empty: Effects) -> None:
    assert "core_0001" in migrate.init(empty.store)
    assert migrate.init(empty.store) == []
    revisions.check(empty.store)


def test_a_schema_that_is_there_needs_no_right_to_create_one(postgresql_server: str) -> None:
    with databases.postgresql_database(postgresql_server) as url:
        databases.plain_role(url)
        app = Effects(databases.as_plain_role(url), schema=databases.PLAIN_ROLE, job_types=[Scripted()])
        assert "core_0001" in migrate.init(app.store)
        app.dispose()


def ours(thing: Any, name: str | None, kind: str, *_: Any) -> bool:
    return kind != "table" or (str(name).startswith("effects_") and name != revisions.VERSION_TABLE)


@pytest.mark.slow
def test_the_migrated_tables_are_the_declared_ones(app: Effects) -> None:
    with app.store.read() as connection:
        context = MigrationContext.configure(connection, opts={"include_object": ours, "compare_type": True})
        assert compare_metadata(context, app.store.metadata) == []


def described(connection: Connection, name: str) -> dict[str, Any]:
    """A table as the database knows it, whatever order things were made in, but for its columns: theirs has reasons."""
    inspector = inspect(connection)
    table = Table(name, MetaData(), autoload_with=connection)
    return {
        "columns": [(column["name"], str(column["type"]), column["nullable"], str(column["default"]))
                    for column in inspector.get_columns(name)],
        "key": inspector.get_pk_constraint(name)["constrained_columns"],
        "unique": sorted(str(unique["column_names"]) for unique in inspector.get_unique_constraints(name)),
        "checks": sorted((str(check["name"]), check["sqltext"]) for check in inspector.get_check_constraints(name)),
        "indexes": sorted(
            (str(index.name), index.unique, str(index.columns.keys()),
             [f"{option}: {value}" for option, value in index.dialect_kwargs.items()])
            for index in table.indexes
        ),
        "autoincrement": autoincrements(connection, name),
    }  # fmt: skip


def autoincrements(connection: Connection, name: str) -> object:
    if connection.dialect.name == "sqlite":
        statement = "SELECT sql LIKE '%AUTOINCREMENT%' FROM sqlite_master WHERE name = :name"
    else:
        statement = "SELECT reloptions FROM pg_class WHERE oid = CAST(:name AS regclass)"
    return connection.execute(text(statement), {"name": name}).scalar()


@pytest.mark.slow
def test_they_have_the_same_defaults_checks_and_partial_indexes(empty: Effects) -> None:
    empty.store.metadata.create_all(empty.engine)
    declared = all_described(empty)
    empty.store.metadata.drop_all(empty.engine)
    migrate.init(empty.store)
    assert all_described(empty) == declared


def all_described(app: Effects) -> dict[str, Any]:
    with app.store.read() as connection:
        return {table.name: described(connection, table.name) for table in app.store.tables.values()}


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ("DELETE FROM effects_schema_version", "no tables of effects: run `effects .*init`"),
        ("DELETE FROM effects_schema_version WHERE version_num LIKE 'web%'", "older version: run `effects .*init`"),
        ("INSERT INTO effects_schema_version VALUES ('core_9999')", r"newer.*core_9999.*upgrade the package"),
    ],
    ids=["absent", "older", "newer"],
)
def test_a_schema_that_is_not_known_is_refused_with_what_to_run(app: Effects, change: str, says: str) -> None:
    revisions.check(app.store)
    run_sql(app, change)
    with pytest.raises(SchemaMismatch, match=says):
        revisions.check(app.store)


def test_revisions_are_called_as_their_files() -> None:
    """By which every command knows them without Alembic."""
    config = Config()
    config.set_main_option("script_location", str(Path(migrate.__file__).parents[1] / "migrations"))
    config.set_main_option("path_separator", "newline")
    config.set_main_option("version_locations", "\n".join(map(str, revisions.folders())))
    script = ScriptDirectory.from_config(config)
    assert set(script.get_heads()) == revisions.newest()
    assert {revision.revision for revision in script.walk_revisions()} == {
        path.stem for folder in revisions.folders() for path in folder.glob("[!_]*.py")
    }


@pytest.mark.slow
def test_a_command_that_only_looks_does_not_import_alembic() -> None:
    script = "import sys; from effects.cli import context, insight; print('alembic' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == "False\n"


def test_a_database_without_anything_is_refused(empty: Effects) -> None:
    with pytest.raises(SchemaMismatch, match=r"run `effects .*init`"):
        revisions.check(empty.store)


@pytest.mark.slow
def test_init_that_fails_half_way_leaves_nothing(empty: Effects) -> None:
    run_sql(empty, "CREATE TABLE effects_workers (in_the_way integer)")
    with pytest.raises(Exception, match="effects_workers"):
        migrate.init(empty.store)
    assert inspect(empty.engine).get_table_names() == ["effects_workers"]
    run_sql(empty, "DROP TABLE effects_workers")
    assert migrate.init(empty.store)


def test_two_inits_at_once_make_one_set_of_tables(empty: Effects, empty_database_url: str) -> None:
    second = Effects(empty_database_url)
    with ThreadPoolExecutor() as threads:
        applied = list(threads.map(lambda app: migrate.init(app.store), (empty, second)))
    second.dispose()
    assert sorted(map(bool, applied)) == [False, True]
    revisions.check(empty.store)


@pytest.mark.slow
def test_each_schema_on_postgresql_is_a_world_of_its_own(postgresql_server: str) -> None:
    with databases.postgresql_database(postgresql_server) as url:
        apps = [Effects(url, job_types=[Scripted()], schema=name) for name in ("one", "two")]
        try:
            for app in apps:
                assert migrate.init(app.store)
                assert migrate.init(app.store) == []
                revisions.check(app.store)
            live_and_die(apps[0])
            assert len(rows(apps[0], "job_history")) == len(rows(apps[0], "job_attempts")) == 2
            assert rows(apps[1], "job_history") == []
            with apps[0].engine.connect() as connection:
                assert inspect(connection).get_table_names("public") == []
        finally:
            for app in apps:
                app.dispose()


def live_and_die(app: Effects) -> None:
    """Every kind of statement once, in the schema of this app."""
    first = enqueue("scripted", {}, key="k", group_key="g", effects=app)
    assert enqueue("scripted", {}, key="k", group_key="g", effects=app).existing
    enqueue("scripted", {}, limit_key="l", effects=app)
    manual_worker = ManualWorker(app)
    jobs = manual_worker.claim(4)
    assert manual_worker.release(*jobs) == {job.attempt_id for job in jobs}
    assert first.job_id in {job.id for job in jobs}
    assert manual_worker.heartbeat() == (True, set())
    assert manual_worker.rescue().accepted == []
    manual_worker.settle(*((job, Done()) for job in jobs), released=True)
