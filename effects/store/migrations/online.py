"""Indexes beside running workers: what a revision builds on a table that may be large."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from alembic.operations import Operations
from alembic.runtime.migration import MigrationContext
from sqlalchemy import Connection, text

from effects.errors import ConfigurationError
from effects.store.db.engine import pooler_between

BESIDE_WORKERS = "effects_beside_workers"  # option of a migration context: no transaction is open


def create_index_online(op: Operations, name: str, table: str, columns: Sequence[Any], **options: Any) -> None:
    """Build an index that is not there yet, while others write to the table; for revisions with `online = True`.

    On PostgreSQL `effects init` builds it by CREATE INDEX CONCURRENTLY, before the revision's transaction; what a
    killed build has left is dropped first. An empty table gets it within the transaction. On SQLite, whose writers
    wait meanwhile, it is built in the transaction too.

    Args:
        op: the revision's.
        options: of Alembic's `create_index`, such as `unique` and `postgresql_where`.

    Raises:
        ConfigurationError: the revision runs in a transaction of the app, and the table is not empty.
    """
    context = op.get_context()
    connection = context.connection
    assert connection is not None
    if connection.dialect.name != "postgresql":
        op.create_index(name, table, columns, if_not_exists=True, **options)
        return
    schema = context.opts.get("version_table_schema")
    place = {"schema": schema, "table": table, "name": name}
    if (valid := connection.scalar(_VALID, place)) is True:
        return
    if context.opts.get(BESIDE_WORKERS):
        if valid is False:
            op.drop_index(name, table, schema=schema, postgresql_concurrently=True)
        op.create_index(name, table, columns, schema=schema, postgresql_concurrently=True, **options)
    elif connection.scalar(text(f"SELECT EXISTS (SELECT 1 FROM {_qualified(schema, table)})")):
        raise ConfigurationError(
            f"the index {name} is built beside running workers, which is not possible in a transaction: run "
            "`effects init` first, and then this again"
        )
    else:
        op.create_index(name, table, columns, schema=schema, **options)


_VALID = text("""
    SELECT x.indisvalid FROM pg_index AS x JOIN pg_class AS c ON c.oid = x.indexrelid
    JOIN pg_namespace AS n ON n.oid = c.relnamespace JOIN pg_class AS t ON t.oid = x.indrelid
    WHERE c.relname = :name AND t.relname = :table
    AND n.nspname = COALESCE(CAST(:schema AS text), current_schema())""")


def _qualified(schema: str | None, table: str) -> str:
    return f'"{table}"' if schema is None else f'"{schema}"."{table}"'


def build_beside_workers(connection: Connection, schema: str | None, module: Any) -> None:
    """Run the `upgrade` of an online revision outside a transaction; its version is not written.

    Its waits are for transactions that began earlier, and no one waits for them: they have no bound.
    """
    driver = connection.connection.driver_connection
    if not pooler_between(driver):  # where others would get the session's settings
        connection.detach()
        connection.exec_driver_sql("SET lock_timeout = 0")
        connection.exec_driver_sql("SET statement_timeout = 0")
    options = {"version_table_schema": schema, BESIDE_WORKERS: True}
    module.op = Operations(MigrationContext.configure(connection, opts=options))
    module.upgrade()
