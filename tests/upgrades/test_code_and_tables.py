"""The table of docs/upgrades.md: which code works on which tables, and what refuses the others."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest
import sqlalchemy as sa
from alembic.migration import MigrationContext
from alembic.operations import Operations

from effects import Effects, SchemaMismatch, enqueue
from effects.alembic import newest_revisions, upgrade
from effects.kit.exit_codes import ExitCode
from effects.operate.doctor import examine
from effects.store.db import revisions
from effects.web import Person, dashboard
from tests.support.commands import command
from tests.support.file_jobs import FILE, FileJob
from tests.support.freezing import freeze_between_transactions
from tests.support.manual_workers import row, rows, run_sql
from tests.support.processes import Child, Fleet
from tests.support.releases import Release
from tests.support.waiting import wait_until
from tests.web.browsing import Visitor

APP = "tests.support.file_jobs_app:app"
ENQUEUE = """
from effects import enqueue
from tests.support.file_jobs import FileJob
from tests.support.file_jobs_app import app
enqueue("file_job", FileJob(1), effects=app)
"""
DRAIN = ("--app", APP, "work", "--drain")


@pytest.fixture
def env(tmp_path: Path) -> dict[str, str]:
    return {FILE: str(tmp_path / "written")}


def _columns(app: Effects, table: str = "effects_workers") -> set[str]:
    return {column["name"] for column in sa.inspect(app.engine).get_columns(table)}


def _succeeded(app: Effects) -> int:
    return len(rows(app, "job_history", "status = 'succeeded' AND job_type LIKE 'file_job%'"))


def test_this_release_works_on_the_next_ones_tables(app: Effects, following: Release, env: dict[str, str]) -> None:
    following.run("--app", APP, "init", **env)
    enqueue("file_job", FileJob(1), effects=app)
    assert following.run(*DRAIN, **env)[0] == 0
    assert revisions.check(app.store) == ["core_0004"]
    answer = command(app, "init")
    assert answer.exit_code == 0
    assert "tables are newer than this version, which works with them (core_0004)" in answer.out
    assert app.create_tables() == []
    assert command(app, "status").exit_code == 0
    [finding] = [finding for finding in examine(app) if finding.check == "schema"]
    assert (finding.level, "core_0004" in finding.text) == ("warning", True)
    assert "channel" in _columns(app, "effects_jobs")


def test_a_worker_of_this_release_starts_and_works_there(
    app: Effects, following: Release, processes: Fleet, env: dict[str, str]
) -> None:
    following.run("--app", APP, "init", **env)
    enqueue("file_job.held", FileJob(1), key="one", effects=app)
    worker = processes.worker(app=APP, **env)
    wait_until(lambda: _succeeded(app) == 1)
    assert "schema.newer" in worker.output


@pytest.mark.parametrize("arguments", [DRAIN, ("--app", APP, "work"), ("status",)], ids=["drain", "worker", "status"])
def test_the_next_release_refuses_this_ones_tables(
    app: Effects, following: Release, env: dict[str, str], arguments: tuple[str, ...]
) -> None:
    enqueue("file_job", FileJob(1), effects=app)
    code, output = following.run(*arguments, **env)
    assert (code, "tables of an older version: run `effects" in output) == (ExitCode.ERROR, True), output
    assert len(rows(app, "jobs")) == 1


def test_an_application_of_the_next_release_is_refused_by_the_database(
    app: Effects, following: Release, env: dict[str, str]
) -> None:
    """It does not look first; what it writes is not there."""
    code, output = following.run_program(ENQUEUE, **env)
    assert code == 1
    assert "SchemaMismatch: the tables of effects are missing, or of an older version" in output
    assert rows(app, "jobs") == []
    following.run("--app", APP, "init", **env)
    assert following.run_program(ENQUEUE, **env) == (0, "")
    assert len(rows(app, "jobs")) == 1


def _overview(app: Effects) -> int:
    with closing(dashboard(guard=lambda request: Person("ann", role="viewer"), effects=app)) as board:
        return Visitor(board).get("/").status_code


def _in_their_history(app: Effects) -> None:
    """As a revision of an app's own Alembic history that was written with this release."""
    with app.engine.begin() as connection:
        upgrade(Operations(MigrationContext.configure(connection)), to=newest_revisions(), schema=app.store.schema)


def test_the_dashboard_and_an_apps_own_history_take_the_next_ones_tables_and_no_later_ones(
    app: Effects, following: Release, after_next: Release, env: dict[str, str]
) -> None:
    following.run("--app", APP, "init", **env)
    tables = sa.inspect(app.engine).get_table_names()
    _in_their_history(app)
    assert (_overview(app), sa.inspect(app.engine).get_table_names()) == (200, tables)
    after_next.run("--app", APP, "init", **env)
    with pytest.raises(SchemaMismatch, match="newer"):
        _in_their_history(app)
    assert _overview(app) == 503


def _started(processes: Fleet, app: Effects, env: dict[str, str]) -> Child:
    worker = processes.worker(app=APP, **env)
    wait_until(lambda: len(rows(app, "workers")) == 1)
    return worker


def test_what_a_running_worker_needs_is_not_taken_away(
    app: Effects, after_next: Release, processes: Fleet, env: dict[str, str]
) -> None:
    worker = _started(processes, app, env)
    name = row(app, "workers")["id"]
    code, output = after_next.run("--app", APP, "init", **env)
    assert code == ExitCode.ERROR
    assert f"revision core_0005 needs workers that know core_0004, and {name}" in output
    assert {"zone", "oldest_unsettled_seconds"} <= _columns(app)  # what came before it is applied
    enqueue("file_job", FileJob(1), effects=app)
    wait_until(lambda: _succeeded(app) == 1)
    worker.kill()
    run_sql(app, f"UPDATE effects_workers SET seen_at = {app.store.sql.after('-3600')}")
    assert after_next.run("--app", APP, "init", **env)[0] == 0
    assert "oldest_unsettled_seconds" not in _columns(app)


def test_two_releases_ahead_this_one_is_refused(
    app: Effects, following: Release, after_next: Release, processes: Fleet, env: dict[str, str]
) -> None:
    assert after_next.run("--app", APP, "init", **env)[0] == 0
    enqueue("file_job", FileJob(1), effects=app)
    assert processes.worker(app=APP, **env).wait() == ExitCode.ERROR
    for refused in (("init",), ("status",)):
        answer = processes.start(_run, *refused, **env)
        assert answer.wait() == ExitCode.ERROR
        assert "upgrade the package on this host" in answer.output
    with pytest.raises(SchemaMismatch, match=r"newer than this version of effects .*core_0005"):
        app.create_tables()
    assert rows(app, "workers") == []
    assert following.run(*DRAIN, **env)[0] == 0  # the one before still works there
    assert _succeeded(app) == 1


def _run(*arguments: str) -> None:
    from tests.support.processes import effects  # noqa: PLC0415 - in the child

    effects(*arguments)


def test_a_worker_that_slept_through_a_migration_ends(
    app: Effects, after_next: Release, processes: Fleet, env: dict[str, str]
) -> None:
    """It was silent for longer than its lease, so that nothing waited for it; it comes back and must not go on."""
    worker = _started(processes, app, {**env, "EFFECTS_GRACE_SECONDS": "1"})
    freeze_between_transactions(worker, app)
    run_sql(app, f"UPDATE effects_workers SET seen_at = {app.store.sql.after('-3600')}")
    assert after_next.run("--app", APP, "init", **env)[0] == 0
    enqueue("file_job", FileJob(1), effects=app)
    worker.thaw()
    assert worker.wait() == ExitCode.PART_FAILED, worker.output
    assert "schema.mismatch" in worker.output or "oldest_unsettled_seconds" in worker.output
    assert after_next.run(*DRAIN, **env)[0] == 0
    assert _succeeded(app) == 1
