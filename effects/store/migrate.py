"""Creating the tables and bringing them up to date: Alembic, one branch of revisions for each package."""

from __future__ import annotations

from pathlib import Path

from alembic import command
from alembic.config import Config
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, text

from effects.store.revisions import VERSION_TABLE, folders
from effects.store.store import Store

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
    config.set_main_option("version_locations", "\n".join(map(str, folders())))
    config.attributes.update(connection=connection, **_options(schema))
    return config


def _script() -> ScriptDirectory:
    return ScriptDirectory.from_config(_config())
