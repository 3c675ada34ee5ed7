"""A read-only connection to what a report is made of."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext

from sqlalchemy import Connection, Engine, text
from sqlalchemy.exc import DBAPIError

from effects_reports.source.snapshot import import_snapshot, opened_copy

QUERY_CANCELED = "57014"


@contextmanager
def reading(
    engine: Engine, *, seconds: float, snapshot: str | None = None, ready: Callable[[Connection], None] | None = None
) -> Iterator[Connection]:
    """One read-only transaction, rolled back at the end.

    Args:
        seconds: PostgreSQL ends a statement that takes longer.
        snapshot: what the transaction then sees: an exported snapshot of PostgreSQL, the path of a copy on SQLite.
        ready: called with the connection before its transaction begins, on PostgreSQL; what it raises passes through.

    Raises:
        SnapshotLost: it is no longer there.
    """
    if engine.dialect.name != "postgresql":
        source = nullcontext(engine) if snapshot is None else opened_copy(snapshot)
        with source as source_engine, source_engine.connect() as connection:
            yield connection.execution_options(effects_readonly=True)
        return
    with engine.connect() as plain:
        if ready is not None:
            ready(plain)
        connection = plain.execution_options(isolation_level="REPEATABLE READ", postgresql_readonly=True)
        if snapshot is not None:
            import_snapshot(connection, snapshot)
        limit_statements(connection, seconds)
        yield connection


def limit_statements(connection: Connection, seconds: float) -> None:
    """PostgreSQL ends a statement of this transaction that takes longer."""
    connection.execute(text(f"SET LOCAL statement_timeout = {max(1, int(seconds * 1000))}"))


def was_too_long(error: Exception) -> bool:
    """Whether PostgreSQL ended the statement for its time."""
    return has_state(error, QUERY_CANCELED)


def has_state(error: Exception, state: str) -> bool:
    """Whether PostgreSQL raised this with this SQLSTATE, by way of SQLAlchemy or of the driver alone."""
    original = error.orig if isinstance(error, DBAPIError) else error
    return getattr(original, "sqlstate", None) == state
