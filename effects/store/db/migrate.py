"""Creating the tables and bringing them up to date: Alembic, one branch of revisions for each package."""

from __future__ import annotations

from pathlib import Path

from alembic import command
from alembic.config import Config
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, text

from effects.store.db.revisions import VERSION_TABLE, folders, refuse_newer
from effects.store.db.store import Store

OTHER_INIT_SECONDS = 300
_HERE = Path(__file__).parents[1] / "migrations"


def init(store: Store) -> list[str]:
    """Create the tables or migrate them to this version. Running it again changes nothing.

    A step that dies half-way is rolled back; both databases have transactional DDL.

    Returns:
        The revisions that were applied, oldest first; empty if the database was up to date.

    Raises:
        SchemaMismatch: a newer version migrated it; unchanged.
    """
    with store.begin() as connection:
        if store.schema:
            connection.execute(text(f'CREATE SCHEMA IF NOT EXISTS "{store.schema}"'))
            connection.execute(text(f'SET LOCAL search_path TO "{store.schema}"'))
        if store.is_postgresql:
            _wait_for_other_inits(connection)
        refuse_newer(connection, store.schema)
        before = _applied(connection, store.schema)
        command.upgrade(_config(connection, store.schema), "heads")
        after = _applied(connection, store.schema)
    return sorted(after - before)


def _wait_for_other_inits(connection: Connection) -> None:
    """One `init` at a time, however short the timeouts of this database or role are; then its lock timeout again."""
    lock_timeout = connection.scalar(text("SELECT current_setting('lock_timeout')"))
    connection.execute(text(f"SET LOCAL lock_timeout = '{OTHER_INIT_SECONDS}s'"))
    connection.execute(text("SET LOCAL statement_timeout = 0"))  # a large table takes its time, too
    connection.execute(text("SELECT pg_advisory_xact_lock(hashtext('effects init'))"))
    connection.execute(text("SELECT set_config('lock_timeout', :timeout, true)"), {"timeout": lock_timeout})


def _options(schema: str | None) -> dict[str, object]:
    return {"version_table": VERSION_TABLE, "version_table_schema": schema}


def _applied(connection: Connection, schema: str | None) -> set[str]:
    """Every revision that the database has had, not only the newest."""
    heads = MigrationContext.configure(connection, opts=_options(schema)).get_current_heads()
    script = _script()
    known_heads = [head for head in heads if head in {revision.revision for revision in script.walk_revisions()}]
    return {revision.revision for head in known_heads for revision in script.iterate_revisions(head, "base")}


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
