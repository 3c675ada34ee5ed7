"""An app with an Alembic history of its own: autogenerate leaves our tables alone, and a revision may make them."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from alembic import command
from alembic.autogenerate import compare_metadata
from alembic.config import Config
from alembic.migration import MigrationContext
from alembic.operations import Operations

from effects import ConfigurationError, Effects, SchemaMismatch
from effects.alembic import TABLE_PREFIX, include_name, newest_revisions, upgrade
from effects.store.db import revisions
from effects.store.migrations import migrate
from tests.support.scripted import Scripted

ENV = """
import os

import sqlalchemy as sa
from alembic import context
from effects.alembic import include_name

metadata = sa.MetaData()
sa.Table("shop_orders", metadata, sa.Column("id", sa.Integer, primary_key=True))
engine = sa.create_engine(os.environ["SHOP_URL"], poolclass=sa.NullPool)
if context.is_offline_mode():
    context.configure(url=os.environ["SHOP_URL"], target_metadata=metadata, include_name=include_name)
    context.run_migrations()
else:
    with engine.connect() as connection:
        context.configure(
            connection=connection, target_metadata=metadata, include_name=include_name, include_schemas=True
        )
        with context.begin_transaction():
            context.run_migrations()
"""
REVISION = """
import sqlalchemy as sa
from alembic import op

import effects.alembic

revision, down_revision = "a1", None


def upgrade():
    op.create_table("shop_first", sa.Column("id", sa.Integer, primary_key=True))
    effects.alembic.upgrade(op, to={to!r}, schema={schema!r})
    op.create_table("shop_second", sa.Column("id", sa.Integer, primary_key=True))
    {then}


def downgrade():
    op.drop_table("shop_second")
    op.drop_table("shop_first")
"""
MAKO = """
from alembic import op
import sqlalchemy as sa
revision, down_revision = ${repr(up_revision)}, ${repr(down_revision)}

def upgrade():
    ${upgrades}
"""

Project: Any = Callable[..., Config]


@pytest.fixture(params=[None, "effects_own"], ids=["default", "schema"])
def app(request: pytest.FixtureRequest, empty_database_url: str) -> Iterator[Effects]:
    """On a database without tables."""
    if request.param is not None and not empty_database_url.startswith("postgresql"):
        pytest.skip("SQLite has no schemas")
    app = Effects(empty_database_url, schema=request.param, job_types=[Scripted()])
    yield app
    app.dispose()


@pytest.fixture
def project(app: Effects, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Project:
    """Makes the app's folder of revisions, whose first one creates our tables too."""
    url = app.engine.url.set(drivername="postgresql+psycopg" if app.store.is_postgresql else "sqlite")
    monkeypatch.setenv("SHOP_URL", url.render_as_string(hide_password=False))

    def make(to: object = None, then: str = "", *, revision: bool = True) -> Config:
        versions = tmp_path / "history" / "versions"
        versions.mkdir(parents=True)
        (versions.parent / "env.py").write_text(ENV)
        (versions.parent / "script.py.mako").write_text(MAKO)
        if revision:
            text = REVISION.format(to=to or newest_revisions(), schema=app.store.schema, then=then)
            (versions / "a1.py").write_text(text)
        (tmp_path / "alembic.ini").write_text(f"[alembic]\nscript_location = {versions.parent}\npath_separator = os\n")
        return Config(tmp_path / "alembic.ini")

    return make


def tables(app: Effects, schema: str | None = None) -> set[str]:
    with app.store.read() as connection:
        return set(sa.inspect(connection).get_table_names(schema=schema))


def test_every_table_has_the_prefix(app: Effects) -> None:
    assert [
        name for table in app.store.metadata.tables.values() if not (name := table.name).startswith(TABLE_PREFIX)
    ] == []
    assert revisions.VERSION_TABLE.startswith(TABLE_PREFIX)


@pytest.mark.parametrize("include_schemas", [False, True])
def test_autogenerate_proposes_nothing_about_our_tables(app: Effects, include_schemas: bool) -> None:
    migrate.init(app.store)
    options = {"include_name": include_name, "include_schemas": include_schemas, "compare_type": True}
    theirs = sa.MetaData()
    sa.Table("shop_orders", theirs, sa.Column("id", sa.Integer, primary_key=True))
    with app.engine.begin() as connection:
        connection.execute(sa.text("CREATE TABLE shop_gone (id integer)"))
        context = MigrationContext.configure(connection, opts=options)
        proposed = {(change[0], change[1].name) for change in compare_metadata(context, theirs)}
    assert proposed == {("add_table", "shop_orders"), ("remove_table", "shop_gone")}


@pytest.mark.slow
def test_the_command_proposes_nothing_about_our_tables(app: Effects, project: Project, tmp_path: Path) -> None:
    project(revision=False)
    migrate.init(app.store)
    arguments = ["revision", "--autogenerate", "-m", "orders"]
    done = subprocess.run(
        [sys.executable, "-m", "alembic", *arguments], cwd=tmp_path, check=False, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    [written] = (tmp_path / "history" / "versions").glob("*_orders.py")
    assert "op.create_table('shop_orders'" in written.read_text()
    assert "effects" not in written.read_text()
    assert "drop" not in written.read_text()


def test_a_revision_of_the_app_makes_our_tables(app: Effects, project: Project) -> None:
    """Its own operations before and after go where they would without."""
    config = project()
    command.upgrade(config, "head")
    revisions.check(app.store)
    assert {"shop_first", "shop_second", "alembic_version"} <= tables(app)
    assert migrate.init(app.store) == []
    command.downgrade(config, "base")
    assert not {"shop_first", "shop_second"} & tables(app)
    revisions.check(app.store)
    command.upgrade(config, "head")  # again: what is there stays
    assert {"shop_first", "shop_second"} <= tables(app)


def test_a_migration_makes_the_same_tables_as_init(app: Effects, project: Project) -> None:
    if app.store.schema:
        pytest.skip("Alembic compares indexes in a schema by texts that differ")
    command.upgrade(project(), "head")
    with app.store.read() as connection:
        options = {"include_object": _ours, "compare_type": True}
        assert compare_metadata(MigrationContext.configure(connection, opts=options), app.store.metadata) == []


def _ours(thing: Any, name: str | None, kind: str, *_: Any) -> bool:
    return kind != "table" or (not include_name(name, kind, {}) and name != revisions.VERSION_TABLE)


def test_one_package_alone(app: Effects, project: Project) -> None:
    command.upgrade(project(to=["core_0001"]), "head")
    assert "effects_jobs" in tables(app, app.store.schema)
    assert "effects_webhook_events" not in tables(app, app.store.schema)
    with pytest.raises(SchemaMismatch, match=r"older version: run `effects .*init`"):
        revisions.check(app.store)
    assert sorted(migrate.init(app.store)) == sorted(revisions.all_names() - {"core_0001"})


def test_a_failing_revision_takes_it_back(app: Effects, project: Project) -> None:
    with pytest.raises(RuntimeError, match="of the app"):
        command.upgrade(project(then="raise RuntimeError('of the app')"), "head")
    before = set() if app.store.is_postgresql else {"shop_first"}  # Python begins no transaction before DDL
    assert tables(app, app.store.schema) - {"alembic_version"} == before


@pytest.mark.parametrize(
    ("to", "says"),
    [([], "to must be a list of revisions; today's are .*core_0001"), ("core_0001", "to must be a list"),
     (["core_9999"], "revision core_9999 is not known to this version; today's are .*core_0001")],
)  # fmt: skip
def test_wrong_revisions_are_refused(app: Effects, to: Any, says: str) -> None:
    with app.engine.begin() as connection:
        operations = Operations(MigrationContext.configure(connection))
        with pytest.raises(ConfigurationError, match=says):
            upgrade(operations, to=to)
    assert tables(app) == set()


def test_a_newer_database_is_refused_and_unchanged(app: Effects, project: Project) -> None:
    migrate.init(app.store)
    with app.engine.begin() as connection:
        schema = f"{app.store.schema}." if app.store.schema else ""
        connection.execute(sa.text(f"INSERT INTO {schema}effects_schema_version VALUES ('core_9999')"))
    with pytest.raises(SchemaMismatch, match=r"newer.*core_9999"):
        command.upgrade(project(), "head")


def test_a_script_without_a_database_is_refused(project: Project) -> None:
    with pytest.raises(ConfigurationError, match="--sql cannot know"):
        command.upgrade(project(), "head", sql=True)
