"""Creating and checking the tables: Alembic, one branch of revisions for each package that brings tables."""

from __future__ import annotations

import importlib
from importlib.metadata import entry_points
from pathlib import Path

from alembic import command
from alembic.config import Config
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, text

from effects.errors import SchemaMismatch
from effects.store.store import Store

VERSION_TABLE = "effects_schema_version"
_HERE = Path(__file__).parent / "migrations"


def init(store: Store) -> list[str]:
    """Create the tables, or bring them to this version. Running it again changes nothing.

    A step that dies half-way is rolled back; both databases have transactional DDL.

    Returns:
        The revisions that were applied, oldest first; empty if the database was up to date.
    """
    with store.begin() as connection:
        if store.schema:
            connection.execute(text(f'CREATE SCHEMA IF NOT EXISTS "{store.schema}"'))
            connection.execute(text(f'SET LOCAL search_path TO "{store.schema}"'))
        if store.is_postgresql:  # two `effects init` at once: one waits for the other
            connection.execute(text("SELECT pg_advisory_xact_lock(hashtext('effects init'))"))
        before = _applied(connection, store.schema)
        command.upgrade(_config(connection, store.schema), "heads")
        after = _applied(connection, store.schema)
    return sorted(after - before)


def check(store: Store) -> None:
    """Refuse a database whose tables this version does not know.

    Raises:
        SchemaMismatch: there are none, they are older, or they are newer; says what to run.
    """
    wanted = set(_script().get_heads())
    with store.read() as connection:
        found = set(MigrationContext.configure(connection, opts=_options(store.schema)).get_current_heads())
    if not found:
        raise SchemaMismatch("the database has no tables of effects: run `effects init`")
    known = {revision.revision for revision in _script().walk_revisions()}
    if found - known:
        raise SchemaMismatch(
            f"the database is newer than this version of effects (revision {', '.join(sorted(found - known))}): "
            "upgrade the package on this host"
        )
    if found != wanted:
        raise SchemaMismatch("the database has the tables of an older version: run `effects init`")


def _options(schema: str | None) -> dict[str, object]:
    return {"version_table": VERSION_TABLE, "version_table_schema": schema}


def _applied(connection: Connection, schema: str | None) -> set[str]:
    """Every revision that the database has had, not only the newest."""
    heads = MigrationContext.configure(connection, opts=_options(schema)).get_current_heads()
    script = _script()
    known = [head for head in heads if head in {one.revision for one in script.walk_revisions()}]
    return {one.revision for head in known for one in script.iterate_revisions(head, "base")}


def _config(connection: Connection | None = None, schema: str | None = None) -> Config:
    config = Config()
    config.set_main_option("script_location", str(_HERE))
    config.set_main_option("version_path_separator", "newline")
    config.set_main_option("path_separator", "newline")
    config.set_main_option("version_locations", "\n".join(_locations()))
    config.attributes.update(connection=connection, **_options(schema))
    return config


def _script() -> ScriptDirectory:
    return ScriptDirectory.from_config(_config())


def _locations() -> list[str]:
    """The `versions` folder of every installed package that brings tables."""
    entries = sorted(entry_points(group="effects.migrations"), key=lambda entry: entry.name)
    folders = [Path(str(importlib.import_module(entry.value).__file__)).parent for entry in entries]
    return [str(folder / "versions") for folder in folders]
