"""Values that PostgreSQL has and Python has not: infinity, years beyond 9999 or before Christ, 24:00.

They are read as the text that the server prints, so that a file holds the same on every route. Python code that maps
rows expects typed values and would fail on such a text somewhere else, so there they are refused by their kind.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import sqlalchemy as sa
from sqlalchemy import Connection, Select, event

from effects.extend import lazy

if TYPE_CHECKING:
    from effects_reports.source import wide_loaders
else:
    wide_loaders = lazy.module("effects_reports.source.wide_loaders")  # brings psycopg


def read_wide_values(connection: Connection, *, mapped: bool) -> None:
    """Let this connection's cursors load such values: as `ServerText`, or where rows are mapped raise ValueOutOfRange.

    It ends with the Connection object; the pooled connection below it stays as it was. Does nothing on SQLite or with
    a driver other than psycopg.
    """
    if connection.dialect.driver != "psycopg":
        return

    @event.listens_for(connection, "before_cursor_execute")
    def adapt(*arguments: Any) -> None:
        wide_loaders.register(arguments[1].adapters, refuse=mapped)


def columns_of_type(connection: Connection, select: Select[Any], oid: int) -> list[str]:
    """The names of a SELECT's columns that have this type, as the server says."""
    with connection.execute(sa.select(select.subquery("source")).limit(0)) as described:
        assert described.cursor is not None
        return [str(column[0]) for column in described.cursor.description if column[1] == oid]
