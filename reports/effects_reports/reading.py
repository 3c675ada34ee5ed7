"""A read-only connection to what a report is made of."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from sqlalchemy import Connection, Engine, text
from sqlalchemy.exc import DBAPIError

QUERY_CANCELED = "57014"
NO_SUCH_SNAPSHOT = ("22023", "42704", "55000")  # PostgreSQL: its holder is gone


@contextmanager
def reading(engine: Engine, *, seconds: float, snapshot: str | None = None) -> Iterator[Connection]:
    """One read-only transaction, rolled back at the end.

    Args:
        seconds: PostgreSQL ends a statement that takes longer.
        snapshot: an exported snapshot of PostgreSQL, which the transaction then sees.
    """
    if engine.dialect.name != "postgresql":
        with engine.connect() as connection:
            yield connection.execution_options(effects_readonly=True)
        return
    with engine.connect() as plain:
        connection = plain.execution_options(isolation_level="REPEATABLE READ", postgresql_readonly=True)
        if snapshot is not None:
            connection.exec_driver_sql(f"SET TRANSACTION SNAPSHOT '{snapshot}'")  # it takes no parameter
        connection.execute(text(f"SET LOCAL statement_timeout = {max(1, int(seconds * 1000))}"))
        yield connection


def was_too_long(error: Exception) -> bool:
    """Whether PostgreSQL ended the statement for its time."""
    return _sqlstate(error) == QUERY_CANCELED


def has_no_snapshot(error: Exception) -> bool:
    """Whether the exported snapshot is no longer there."""
    return _sqlstate(error) in NO_SUCH_SNAPSHOT


def _sqlstate(error: Exception) -> str | None:
    original = error.orig if isinstance(error, DBAPIError) else error
    state = getattr(original, "sqlstate", None)
    return state if isinstance(state, str) else None
