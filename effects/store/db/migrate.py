"""Creating the tables and bringing them up to date: Alembic, one branch of revisions for each package."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from alembic.config import Config
from alembic.migration import MigrationContext
from alembic.operations import Operations
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, text

from effects.store.db.revisions import VERSION_TABLE, folders, newest, refuse_newer
from effects.store.db.store import Store

OTHER_INIT_SECONDS = 300
_HERE = Path(__file__).parents[1] / "migrations"


def init(store: Store, record: Callable[[Connection, list[str]], None] = lambda connection, applied: None) -> list[str]:
    """Create the tables or migrate them to this version. Running it again changes nothing.

    A step that dies half-way is rolled back; both databases have transactional DDL.

    Args:
        record: called in the same transaction with the revisions, where there are any.

    Returns:
        The revisions that were applied, oldest first; empty if the database was up to date.

    Raises:
        SchemaMismatch: a newer version migrated it; unchanged.
    """
    with store.begin() as connection:
        applied = upgrade(connection, store.schema, newest())
        if applied:
            record(connection, applied)
        return applied


def upgrade(connection: Connection, schema: str | None, to: Collection[str]) -> list[str]:
    """Apply these revisions, and those before them, in the caller's transaction; those that it has stay.

    Args:
        schema: of the tables, on PostgreSQL; created if it is missing. None: the first of the search path.

    Returns, Raises:
        As `init`.
    """
    with _within(connection, schema):
        if connection.dialect.name == "postgresql":
            _wait_for_other_inits(connection)
        refuse_newer(connection, schema)
        script = _script()
        before = _applied(connection, schema, script)
        missing = sorted(set(to) - before)
        if missing:
            _run(connection, schema, script, missing)
        return sorted(_applied(connection, schema, script) - before)


def _run(connection: Connection, schema: str | None, script: ScriptDirectory, to: Sequence[str]) -> None:
    """Apply revisions on this connection.

    Each script gets operations of its own: `alembic.op` may belong to the app's own revision, which calls this.
    """

    def steps(heads: Any, context: MigrationContext) -> Any:
        operations = Operations(context)
        destination: Any = tuple(to)
        for step in script._upgrade_revs(destination, heads):
            step.revision.module.op = operations  # type: ignore[attr-defined]
            yield step

    MigrationContext.configure(connection, opts={**_options(schema), "fn": steps}).run_migrations()


@contextmanager
def _within(connection: Connection, schema: str | None) -> Iterator[None]:
    """Make names without a schema mean this one, and then again what they meant before."""
    if schema is None or connection.dialect.name != "postgresql":
        yield
        return
    before = connection.scalar(text("SELECT current_setting('search_path')"))
    connection.execute(text(f'CREATE SCHEMA IF NOT EXISTS "{schema}"'))
    connection.execute(text(f'SET LOCAL search_path TO "{schema}"'))
    yield  # after an error the transaction takes no further statement, and its end takes the setting back
    connection.execute(text("SELECT set_config('search_path', :path, true)"), {"path": before})


def _wait_for_other_inits(connection: Connection) -> None:
    """One `init` at a time, however short the timeouts of this database or role are; then its lock timeout again."""
    lock_timeout = connection.scalar(text("SELECT current_setting('lock_timeout')"))
    connection.execute(text(f"SET LOCAL lock_timeout = '{OTHER_INIT_SECONDS}s'"))
    connection.execute(text("SET LOCAL statement_timeout = 0"))  # a large table takes its time, too
    connection.execute(text("SELECT pg_advisory_xact_lock(hashtext('effects init'))"))
    connection.execute(text("SELECT set_config('lock_timeout', :timeout, true)"), {"timeout": lock_timeout})


def _options(schema: str | None) -> dict[str, object]:
    return {"version_table": VERSION_TABLE, "version_table_schema": schema}


def _applied(connection: Connection, schema: str | None, script: ScriptDirectory) -> set[str]:
    """Every revision that the database has had, not only the newest."""
    heads = MigrationContext.configure(connection, opts=_options(schema)).get_current_heads()
    return {revision.revision for head in heads for revision in script.iterate_revisions(head, "base")}


def _script() -> ScriptDirectory:
    config = Config()
    config.set_main_option("script_location", str(_HERE))
    config.set_main_option("version_path_separator", "newline")
    config.set_main_option("path_separator", "newline")
    config.set_main_option("version_locations", "\n".join(map(str, folders())))
    return ScriptDirectory.from_config(config)
