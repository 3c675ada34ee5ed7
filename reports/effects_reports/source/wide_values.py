"""Values that PostgreSQL has and Python has not: infinity, years beyond 9999 or before Christ, 24:00.

They are read as the text that the server prints, so that a file holds the same on every route. Python code that maps
rows expects typed values and would fail on such a text somewhere else, so there they are refused by their kind.
"""

from __future__ import annotations

from typing import Any

import psycopg
import sqlalchemy as sa
from psycopg.adapt import AdaptersMap, Loader
from psycopg.pq import Format
from sqlalchemy import Connection, Select, event

from effects_reports.formats.values import ServerText

KINDS = {
    1082: "date",
    1083: "time",
    1266: "time with time zone",
    1114: "timestamp",
    1184: "timestamp with time zone",
    1186: "interval",
}
_BEYOND_PYTHON = (psycopg.DataError, OverflowError, ValueError)


class ValueOutOfRange(Exception):
    """A mapped report met such a value.

    Attributes:
        oid: the type, a key of `KINDS`.
    """

    def __init__(self, oid: int) -> None:
        super().__init__(KINDS[oid])
        self.oid = oid


def read_wide_values(connection: Connection, *, mapped: bool) -> None:
    """Let this connection's cursors load such values: as `ServerText`, or where rows are mapped raise ValueOutOfRange.

    It ends with the Connection object; the pooled connection below it stays as it was. Does nothing on SQLite or with
    a driver other than psycopg.
    """
    if not isinstance(connection.connection.driver_connection, psycopg.Connection):
        return

    @event.listens_for(connection, "before_cursor_execute")
    def adapt(*arguments: Any) -> None:
        cursor: psycopg.Cursor[Any] = arguments[1]
        _register(cursor.adapters, refuse=mapped)


def _register(adapters: AdaptersMap, *, refuse: bool) -> None:
    """In place of the driver's loaders; those that an app has registered for itself stay."""
    for oid in KINDS:
        loader = adapters.get_loader(oid, Format.TEXT)
        if loader is not None and (loader.__module__.startswith("psycopg") or issubclass(loader, _WideLoader)):
            adapters.register_loader(oid, _LOADERS[refuse])


class _WideLoader(Loader):
    """The driver's own loader, and the text where it gives up."""

    refuse = False

    def __init__(self, oid: int, context: Any = None) -> None:
        super().__init__(oid, context)
        usual = psycopg.adapters.get_loader(oid, Format.TEXT)
        assert usual is not None
        self._load = usual(oid, context).load

    def load(self, data: Any) -> Any:
        try:
            if data[-3:] == b"ity":  # the driver takes an infinite interval for one of no length
                raise OverflowError
            return self._load(data)
        except _BEYOND_PYTHON:
            if self.refuse:
                raise ValueOutOfRange(self.oid) from None
            return ServerText(bytes(data).decode())


class _RefusingLoader(_WideLoader):
    refuse = True


_LOADERS = {False: _WideLoader, True: _RefusingLoader}


def columns_of_type(connection: Connection, select: Select[Any], oid: int) -> list[str]:
    """The names of a SELECT's columns that have this type, as the server says."""
    with connection.execute(sa.select(select.subquery("source")).limit(0)) as described:
        assert described.cursor is not None
        return [str(column[0]) for column in described.cursor.description if column[1] == oid]
