"""A migration beside workers: it waits for no lock for long, can be killed anywhere, and two at once are one."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest
import sqlalchemy as sa
from alembic.migration import MigrationContext
from alembic.operations import Operations

from effects import ConfigurationError, Done, Effects, enqueue
from effects.store.db import revisions
from effects.store.migrations.migrate import create_index_online
from tests.support.file_jobs import FILE, FileJob
from tests.support.manual_workers import ManualWorker, rows, run_sql
from tests.support.processes import Fleet
from tests.support.releases import Release
from tests.support.waiting import wait_until

APP = "tests.support.file_jobs_app:app"
INIT = ("--app", APP, "init")
INDEX = "ix_effects_job_history_queue"


@pytest.fixture
def env(tmp_path: Path) -> dict[str, str]:
    return {FILE: str(tmp_path / "written")}


def _applied(app: Effects) -> set[str]:
    with app.store.read() as connection:
        return revisions._in_database(connection, app.store.schema)


def _valid_indexes(app: Effects) -> list[bool]:
    with app.store.read() as connection:
        statement = "SELECT x.indisvalid FROM pg_index AS x JOIN pg_class AS c ON c.oid = x.indexrelid"
        return list(connection.scalars(sa.text(f"{statement} WHERE c.relname = '{INDEX}'")))


def _postgresql(app: Effects) -> None:
    if not app.store.is_postgresql:
        pytest.skip("SQLite has one writer, and transactions of milliseconds")


def _done(app: Effects, number: int) -> None:
    """A job that is enqueued now is carried out now."""
    job_id = enqueue("file_job.held", FileJob(number), key=f"job:{number}", effects=app).job_id
    wait_until(lambda: rows(app, "job_history", "id = :id", id=job_id))


@contextmanager
def _open_transaction(app: Effects, *statements: str) -> Iterator[sa.Connection]:
    """Of someone who has forgotten it."""
    with app.engine.connect() as connection:
        for statement in statements:
            connection.execute(sa.text(statement))
        yield connection
        connection.rollback()


@pytest.mark.parametrize("table", ["effects_workers", "effects_jobs"])
def test_workers_go_on_while_a_migration_waits_for_a_forgotten_transaction(
    app: Effects, following: Release, processes: Fleet, env: dict[str, str], table: str
) -> None:
    _postgresql(app)
    processes.worker(app=APP, **env)
    _done(app, 0)
    with _open_transaction(app, f"SELECT count(*) FROM {table}"):
        init = following.start(*INIT, **env)
        wait_until(lambda: following.output_of(init).count("migration.waits") >= 3)
        beats = rows(app, "workers")[0]["beat"]
        for number in range(1, 20):
            _done(app, number)
        wait_until(lambda: rows(app, "workers")[0]["beat"] >= beats + 3)
        assert init.poll() is None
        assert f"has used {table}" in following.output_of(init)
    assert init.wait(timeout=60) == 0
    assert "core_0004" in _applied(app)


def test_workers_go_on_while_an_index_is_built(
    app: Effects, following: Release, processes: Fleet, env: dict[str, str]
) -> None:
    """It waits for every transaction that began earlier; nobody waits for it."""
    _postgresql(app)
    processes.worker(app=APP, **env)
    _done(app, 0)
    with _open_transaction(app, "SET TRANSACTION ISOLATION LEVEL REPEATABLE READ", "SELECT 1"):
        init = following.start(*INIT, **env)
        wait_until(lambda: _valid_indexes(app) == [False])
        for number in range(1, 20):
            _done(app, number)
        assert (init.poll(), "core_0003" in _applied(app)) == (None, False)
    assert init.wait(timeout=60) == 0
    assert _valid_indexes(app) == [True]


def _kill(init: subprocess.Popen[str], app: Effects) -> None:
    """With its connections, as when its host is gone."""
    init.kill()
    init.wait()
    run_sql(app, "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE query LIKE '%CONCURRENTLY%' "
            "AND pid <> pg_backend_pid()")  # fmt: skip


def test_an_index_that_was_half_built_is_built_again(app: Effects, following: Release, env: dict[str, str]) -> None:
    _postgresql(app)
    with _open_transaction(app, "SET TRANSACTION ISOLATION LEVEL REPEATABLE READ", "SELECT 1"):
        init = following.start(*INIT, **env)
        wait_until(lambda: _valid_indexes(app) == [False])
        _kill(init, app)
    assert _valid_indexes(app) == [False]
    code, output = following.run(*INIT, **env)
    assert (code, _valid_indexes(app)) == (0, [True]), output


@pytest.mark.parametrize("point", ["migration.before_commit", "migration.built"])
@pytest.mark.parametrize("nth", [1, 2, 3])
def test_a_migration_that_is_killed_goes_on_where_it_was(
    app: Effects, following: Release, processes: Fleet, env: dict[str, str], point: str, nth: int
) -> None:
    if point == "migration.built" and (nth > 1 or not app.store.is_postgresql):
        pytest.skip("one index is built beside workers, on PostgreSQL")
    processes.worker(app=APP, **env)
    _done(app, 0)
    assert following.run(*INIT, **env, EFFECTS_CRASHPOINT=f"{point}:{nth}:kill")[0] < 0
    reached = 2 if point == "migration.built" else nth
    assert f"core_000{reached}" in _applied(app)
    assert revisions.check(app.store) == ([] if reached == 1 else [f"core_000{reached}"])
    _done(app, 1)
    assert following.run(*INIT, **env)[0] == 0
    assert "core_0004" in _applied(app)
    assert {row["revision"] for row in rows(app, "schema_support")} >= {f"core_000{n}" for n in (1, 2, 3, 4)}
    _done(app, 2)


def test_two_migrations_at_once_are_one(app: Effects, following: Release, env: dict[str, str]) -> None:
    inits = [following.start(*INIT, **env) for _ in range(3)]
    outputs = [(init.wait(timeout=60), following.output_of(init)) for init in inits]
    assert [code for code, _ in outputs] == [0] * len(inits), outputs
    for name in ("core_0002", "core_0003", "core_0004"):
        assert sum(name in text for _, text in outputs) == 1
    entries = rows(app, "audit_log", "action = 'init'")
    assert len(entries) == len(set(map(str, entries)))


def _in_a_transaction(app: Effects, connection: sa.Connection) -> None:
    options = {"version_table_schema": app.store.schema}
    operations = Operations(MigrationContext.configure(connection, opts=options))
    create_index_online(operations, INDEX, "effects_job_history", ["queue", "id"])


def _indexes(app: Effects) -> Sequence[str | None]:
    return [index["name"] for index in sa.inspect(app.engine).get_indexes("effects_job_history")]


def test_in_a_transaction_of_the_app_an_index_is_built_on_an_empty_table_alone(app: Effects) -> None:
    with app.store.begin() as connection:
        _in_a_transaction(app, connection)
        _in_a_transaction(app, connection)  # it is there
    assert _indexes(app).count(INDEX) == 1
    run_sql(app, f"DROP INDEX {INDEX}")
    enqueue("file_job", FileJob(1), effects=app)
    worker = ManualWorker(app)
    worker.settle((worker.claim_one(), Done()))
    if app.store.is_postgresql:
        with pytest.raises(ConfigurationError, match="run `effects init` first"), app.store.begin() as connection:
            _in_a_transaction(app, connection)
        assert INDEX not in _indexes(app)
