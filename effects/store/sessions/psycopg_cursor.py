"""A cursor of psycopg that neither knows what its connection was set to, nor leaves anything there."""

from __future__ import annotations

from typing import Any, Self

import psycopg
from psycopg.adapt import AdaptersMap
from psycopg.rows import tuple_row


class PlainCursor(psycopg.Cursor[Any]):
    """Rows are tuples, types are psycopg's own, and no statement is prepared, whatever the connection says."""

    def __init__(self, connection: psycopg.Connection[Any]) -> None:
        self._plain = AdaptersMap(psycopg.adapters)
        super().__init__(connection, row_factory=tuple_row)

    @property
    def adapters(self) -> AdaptersMap:
        """psycopg's own."""
        return self._plain

    def execute(self, query: Any, params: Any = None, **options: Any) -> Self:
        """Execute without a prepared statement, which would stay in the caller's connection."""
        return super().execute(query, params, **options | {"prepare": False})
