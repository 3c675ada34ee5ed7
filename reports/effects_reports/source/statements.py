"""What is asked of a report's own rows: one range of them, and whether a key tells them apart.

Its SELECT is a subquery everywhere.
Ranges are half-open, (lo, hi], and compare the key as a row value: one index serves a composite key too.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import sqlalchemy as sa
from sqlalchemy import ColumnElement, Connection, Row, Select, Subquery, Table

from effects_reports.definitions.definition import Statement
from effects_reports.runs.cursor import Key
from effects_reports.source.stored_keys import STORED, stored_key
from effects_reports.source.wide_values import read_wide_values


def ranged(
    statement: Statement, key: Sequence[str], lo: Key | None, hi: Key | None, columns: Sequence[str]
) -> Select[Any]:
    """The rows with lo < key <= hi, in the order of the key; None is an open end."""
    source = statement.subquery("source")
    return _in_range(source, key, lo, hi, [source.c[name] for name in columns])


def _in_range(
    source: Subquery, key: Sequence[str], lo: Key | None, hi: Key | None, columns: Sequence[ColumnElement[Any]]
) -> Select[Any]:
    chosen = sa.select(*columns)
    if lo is not None:
        chosen = chosen.where(_compared(source, key, lo, above=True))
    if hi is not None:
        chosen = chosen.where(_compared(source, key, hi, above=False))
    return chosen.order_by(*(source.c[name] for name in key))


def _compared(source: Subquery, key: Sequence[str], bound: Key, *, above: bool) -> ColumnElement[bool]:
    columns = stored_key(source, key)
    values = [sa.literal(value, STORED) for value in bound]
    if len(columns) == 1:
        return columns[0] > values[0] if above else columns[0] <= values[0]
    return sa.tuple_(*columns) > sa.tuple_(*values) if above else sa.tuple_(*columns) <= sa.tuple_(*values)


def nth_key(
    connection: Connection, statement: Statement, key: Sequence[str], lo: Key | None, hi: Key | None, number: int
) -> Key | None:
    """The n-th key of a range, other than its last, or None. The range is small, so it is walked."""
    read_wide_values(connection, mapped=False)
    source = statement.subquery("source")
    keys = connection.execute(_in_range(source, key, lo, hi, stored_key(source, key)).offset(number - 1).limit(2)).all()
    return tuple(keys[0]) if len(keys) == 2 else None


def first_null(connection: Connection, statement: Statement, key: Sequence[str]) -> Row[Any] | None:
    """A row in which a part of the key is NULL."""
    source = statement.subquery("source")
    null = sa.or_(*(source.c[name].is_(None) for name in key))
    return connection.execute(sa.select(sa.literal(1)).select_from(source).where(null).limit(1)).first()


def first_repeated(connection: Connection, statement: Statement, key: Sequence[str]) -> Row[Any] | None:
    """A key that two rows have."""
    source = statement.subquery("source")
    columns = [source.c[name] for name in key]
    repeated = sa.select(*columns).group_by(*columns).having(sa.func.count() > 1).limit(1)
    return connection.execute(repeated).first()


def proved_unique(statement: Statement, key: Sequence[str]) -> bool:
    """Whether a table's own declaration says that the key is unique and never NULL: no row need be counted.

    Only of a SELECT from one table, without joins: a join may repeat rows.
    """
    if not isinstance(statement, Select):
        return False
    froms = statement.get_final_froms()
    if len(froms) != 1 or not isinstance(froms[0], Table):
        return False
    table, selected = froms[0], statement.selected_columns
    columns = [table.c.get(name) for name in key]
    unique_columns = [column for column in columns if column is not None and selected[column.key] is column]
    if len(unique_columns) != len(key) or any(column.nullable for column in unique_columns):
        return False
    names = {column.name for column in unique_columns}
    uniques = [
        {column.name for column in constraint.columns}
        for constraint in table.constraints
        if isinstance(constraint, sa.PrimaryKeyConstraint | sa.UniqueConstraint) and len(constraint.columns)
    ]
    uniques += [{column.name for column in index.columns} for index in table.indexes if _whole_unique(index)]
    return any(unique <= names for unique in uniques)


def _whole_unique(index: sa.Index) -> bool:
    """A unique index over every row: a partial one does not cover the others."""
    partial = any(index.dialect_options[name].get("where") is not None for name in ("postgresql", "sqlite"))
    return (
        bool(index.unique)
        and not partial
        and all(isinstance(expression, sa.Column) for expression in index.expressions)
    )
