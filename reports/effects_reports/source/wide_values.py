"""Values that PostgreSQL has and Python has not: infinity, years beyond 9999 or before Christ, 24:00.

They are read as the text that the server prints, so that a file holds the same on every route. Python code that maps
rows expects typed values and would fail on such a text somewhere else, so there they are refused by their kind.
"""

from __future__ import annotations

import re
from functools import cache
from typing import TYPE_CHECKING, Any

import sqlalchemy as sa
from sqlalchemy import Connection, Select, event

from effects.extend.process import lazy
from effects_reports.formats.values import ServerText

with lazy.modules(__name__):
    import psycopg
    from psycopg import adapt, pq

if TYPE_CHECKING:
    from psycopg.adapt import AdaptersMap, Loader

_MONTHS = re.compile(rb"mon|year")


def read_wide_values(connection: Connection, *, mapped: bool) -> None:
    """Let this connection's cursors load such values: as `ServerText`, or where rows are mapped raise ValueOutOfRange.

    It ends with the Connection object; the pooled connection below it stays as it was. Does nothing on SQLite or with
    a driver other than psycopg.
    """
    if connection.dialect.driver != "psycopg":
        return

    @event.listens_for(connection, "before_cursor_execute")
    def before_execute(*arguments: Any) -> None:
        _register(arguments[1].adapters, _loader(refuse=mapped))


def columns_of_type(connection: Connection, select: Select[Any], oid: int) -> list[str]:
    """The names of a SELECT's columns that have this type, as the server says."""
    with connection.execute(sa.select(select.subquery("source")).limit(0)) as described:
        assert described.cursor is not None
        return [str(column[0]) for column in described.cursor.description if column[1] == oid]


INTERVAL = 1186
KINDS = {
    1082: "date",
    1083: "time",
    1266: "time with time zone",
    1114: "timestamp",
    1184: "timestamp with time zone",
    INTERVAL: "interval",
}


class ValueOutOfRange(Exception):
    """A mapped report met such a value.

    Attributes:
        oid: the type, a key of `KINDS`.
    """

    def __init__(self, oid: int) -> None:
        super().__init__(KINDS[oid])
        self.oid = oid


def _register(adapters: AdaptersMap, loader: type[Loader]) -> None:
    """In place of the driver's loaders; those that an app has registered for itself stay."""
    replaced = (_loader(refuse=False), _loader(refuse=True))
    for oid in KINDS:
        usual = adapters.get_loader(oid, pq.Format.TEXT)
        if usual is not None and (usual.__module__.startswith("psycopg") or usual in replaced):
            adapters.register_loader(oid, loader)


@cache
def _loader(*, refuse: bool) -> type[Loader]:
    """A loader of psycopg's, which is imported for it."""

    class WideLoader(adapt.Loader):
        """The driver's own loader, and the text where it gives up."""

        def __init__(self, oid: int, context: Any = None) -> None:
            super().__init__(oid, context)
            usual = psycopg.adapters.get_loader(oid, pq.Format.TEXT)
            assert usual is not None
            self._load = usual(oid, context).load

        def load(self, data: Any) -> Any:
            try:
                if data[-3:] == b"ity":  # the driver takes an infinite interval for one of no length
                    raise OverflowError
                if self.oid == INTERVAL and _MONTHS.search(data):  # and a month for 30 days
                    raise OverflowError
                return self._load(data)
            except (psycopg.DataError, OverflowError, ValueError):
                if refuse:
                    raise ValueOutOfRange(self.oid) from None
                return ServerText(bytes(data).decode())

    return WideLoader
