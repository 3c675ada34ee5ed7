"""Which code works with which revision: what a revision says of itself, and workers that are too old for it."""

from __future__ import annotations

from collections.abc import Iterable

from alembic.script import Script
from sqlalchemy import Connection, MetaData, inspect, text

from effects.errors import SchemaMismatch
from effects.store.db.revisions import branch_of, number_of
from effects.store.db.sql import Sql
from effects.store.schema.tables import build_tables
from effects.store.schema.version_tables import SUPPORT


def oldest_code(script: Script) -> str:
    """The newest revision of the oldest code that works with this one; a package's first needs what made it."""
    return str(getattr(script.module, "oldest_code", script.revision))


def note_support(connection: Connection, schema: str | None, plan: Iterable[Script]) -> None:
    """Write down what these revisions say, for code that will not know them."""
    if not inspect(connection).has_table(SUPPORT, schema=schema):  # a package alone, before the core
        return
    statement = text(
        f"INSERT INTO {_sql(connection, schema).schema_support} (revision, oldest_code) VALUES (:revision, :oldest) "
        "ON CONFLICT (revision) DO UPDATE SET oldest_code = excluded.oldest_code"
    )
    for script in plan:
        connection.execute(statement, {"revision": script.revision, "oldest": oldest_code(script)})


def refuse_older_workers(connection: Connection, schema: str | None, script: Script) -> None:
    """Refuse a revision that takes away what a worker needs that runs now. Until the end of the transaction none comes
    that has not looked at the tables again: a worker registers first, and looks then.

    Raises:
        SchemaMismatch: names the worker.
    """
    oldest = oldest_code(script)
    if script.down_revision is None or number_of(oldest) <= 1:
        return
    sql = _sql(connection, schema)
    if sql.postgresql:
        connection.exec_driver_sql(f"LOCK TABLE {sql.workers} IN SHARE ROW EXCLUSIVE MODE")
    alive = f"ended_at IS NULL AND seen_at >= {sql.after('-lease_seconds')}"
    for row in connection.execute(text(f"SELECT id, version, revisions FROM {sql.workers} WHERE {alive}")):
        newest = {branch_of(name): number_of(name) for name in str(row.revisions).split()}
        if newest.get(branch_of(oldest), number_of(oldest)) < number_of(oldest):
            raise SchemaMismatch(
                f"revision {script.revision} needs workers that know {oldest}, and {row.id} ({row.version}) does not: "
                "deploy the newer version there first, or end it"
            )


def _sql(connection: Connection, schema: str | None) -> Sql:
    return Sql(build_tables(MetaData(schema=schema)), postgresql=connection.dialect.name == "postgresql")
