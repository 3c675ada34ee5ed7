"""The words in which SQLite and PostgreSQL differ, so that most statements are written once.

A `Sql` belongs to one Store: it knows the qualified table names and the clock. Statements are functions
`(sql: Sql) -> str`; the Store builds each once.
"""

from __future__ import annotations

from collections.abc import Mapping

from sqlalchemy import Table

from effects.store.columns import POSTGRES_NOW, SQLITE_NOW

_POSTGRES_TYPES = {
    "int": "bigint",
    "num": "double precision",
    "text": "text",
    "bool": "boolean",
    "json": "jsonb",
}


class Sql:
    """Fragments of SQL for one database. `sql.jobs` is the qualified name of `effects_jobs`, and so on."""

    def __init__(self, tables: Mapping[str, Table], *, postgresql: bool) -> None:
        self.postgresql = postgresql
        self._tables = tables
        self.shift_seconds = 0.0  # a test may move the clock; nothing else does

    def __getattr__(self, table: str) -> str:
        try:
            return self._tables[table].fullname
        except KeyError:
            raise AttributeError(table) from None

    @property
    def now(self) -> str:
        """The database's clock. Stable within a statement, so that an index may be used with it."""
        if not self.shift_seconds:
            return POSTGRES_NOW if self.postgresql else SQLITE_NOW
        if self.postgresql:
            return f"({POSTGRES_NOW} + interval '{self.shift_seconds} seconds')"
        return f"({SQLITE_NOW} + {int(self.shift_seconds * 1000)})"

    def after(self, seconds: str, since: str | None = None) -> str:
        """The time `seconds` (an SQL expression, may be negative) after now or `since`."""
        if self.postgresql:
            return f"({since or self.now} + ({seconds}) * interval '1 second')"
        return f"({since or self.now} + CAST(({seconds}) * 1000 AS INTEGER))"

    def seconds(self, start: str, end: str | None = None) -> str:
        """Seconds from `start` to `end` (default now), as a number."""
        if self.postgresql:
            return f"date_part('epoch', {end or self.now} - {start})"
        return f"(({end or self.now} - {start}) / 1000.0)"

    def time(self, expression: str) -> str:
        """A time given as seconds since 1970."""
        if self.postgresql:
            return f"to_timestamp({expression})"
        return f"CAST(round(({expression}) * 1000) AS INTEGER)"

    def epoch(self, expression: str) -> str:
        """A time as seconds since 1970."""
        if self.postgresql:
            return f"date_part('epoch', {expression})"  # extract would go through numeric
        return f"({expression} / 1000.0)"

    def rows(self, parameter: str, columns: Mapping[str, str]) -> str:
        """A JSON array of objects, bound as one parameter, as a relation.

        Columns are int, num, text, bool or json.
        """
        if self.postgresql:
            typed = ", ".join(f"{name} {_POSTGRES_TYPES[kind]}" for name, kind in columns.items())
            return f"(SELECT * FROM json_to_recordset(CAST(:{parameter} AS json)) AS given({typed}))"
        picked = ", ".join(
            f"value {'->' if kind == 'json' else '->>'} '{name}' AS {name}" for name, kind in columns.items()
        )
        return f"(SELECT {picked} FROM json_each(:{parameter}))"

    def any_of(self, parameter: str, kind: str = "text") -> str:
        """The right side of a comparison with any value of a JSON array: `id {sql.any_of("ids", "int")}`.

        An array and not a subquery on PostgreSQL: a filter keeps the order of the index, a semi-join may sort
        everything before the first row.
        """
        if self.postgresql:
            values = f"jsonb_array_elements_text(CAST(:{parameter} AS jsonb))"
            return f"= ANY(ARRAY(SELECT CAST(v AS {_POSTGRES_TYPES[kind]}) FROM {values} AS v))"
        return f"IN (SELECT value FROM json_each(:{parameter}))"

    def among(self, relation: str, column: str = "id") -> str:
        """The right side of `id {sql.among("picked")}`, which the planner cannot turn into a nested scan.

        Statistics of a queue table are always wrong; a join on them may read the whole table once a row.
        """
        if self.postgresql:
            return f"= ANY(ARRAY(SELECT {column} FROM {relation}))"
        return f"IN (SELECT {column} FROM {relation})"

    def least(self, column: str, source: str) -> str:
        """The first value in an index (`source` is FROM and WHERE), or NULL. Planned in half the time of `min`."""
        return f"(SELECT {column} {source} ORDER BY {column} LIMIT 1)"

    def found(self, source: str) -> str:
        """Whether FROM and WHERE find a row, with one probe for each row that asks.

        Not EXISTS: PostgreSQL may make a join or a hash of that, and read the whole other table for a few rows.
        """
        return f"((SELECT 1 {source} LIMIT 1) IS NOT NULL)"

    def greatest(self, *expressions: str) -> str:
        """The greatest of several values, none of which is NULL."""
        return f"{'GREATEST' if self.postgresql else 'max'}({', '.join(expressions)})"

    def smallest(self, *expressions: str) -> str:
        """The smallest of several values, none of which is NULL."""
        return f"{'LEAST' if self.postgresql else 'min'}({', '.join(expressions)})"

    def own(self, alias: str, column: str) -> str:
        """A column of the updated table in RETURNING, where SQLite knows no alias."""
        return f"{alias}.{column}" if self.postgresql else column

    def json_text(self, expression: str) -> str:
        """A stored JSON column as text."""
        return f"CAST({expression} AS text)" if self.postgresql else f"{expression}"

    def lock(self, *, skip: bool = True, of: str = "") -> str:
        """The row lock of a SELECT. SQLite needs none: its writer is alone."""
        if not self.postgresql:
            return ""
        return f"FOR NO KEY UPDATE{f' OF {of}' if of else ''}{' SKIP LOCKED' if skip else ''}"
