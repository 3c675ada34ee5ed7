"""What is asked of a report's own rows: one range of them, whether a key tells them apart, and what that costs.

Its SELECT is a subquery everywhere. Ranges are half-open, (lo, hi], and compare the key as a row value: one index
serves a composite key too. Window functions, aggregates, LIMIT, materialised CTEs and their like may see all rows,
whatever range is asked for: EXPLAIN shows it, before a row is read.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import sqlalchemy as sa
from sqlalchemy import ColumnElement, Connection, Dialect, Row, Select, Subquery, Table
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.types import UserDefinedType

from effects_reports.definitions.definition import Statement
from effects_reports.source.paging import Key
from effects_reports.source.wide_values import read_wide_values


class _Stored(UserDefinedType[Any]):
    """No type: PostgreSQL takes a value for one of its column's own."""

    cache_ok = True

    def bind_processor(self, dialect: Dialect) -> Callable[[Any], Any] | None:
        return _without_type if dialect.name == "postgresql" else None


STORED = _Stored()


def _stored_key(source: Subquery, key: Sequence[str]) -> list[ColumnElement[Any]]:
    """The key's columns, read and compared as they are stored."""
    return [sa.type_coerce(source.c[name], STORED) for name in key]


def _without_type(value: Any) -> Any:
    """A float as text, because the driver would send a double, from which a `real` of the same digits differs."""
    return repr(value) if isinstance(value, float) else value


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
    columns = _stored_key(source, key)
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
    keys = connection.execute(
        _in_range(source, key, lo, hi, _stored_key(source, key)).offset(number - 1).limit(2)
    ).all()
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


def read_bounds(
    connection: Connection, statement: Statement, key: Sequence[str], size: int, rows_max: int
) -> Iterator[tuple[Key, int]]:
    """Each `size`-th key in order, and the last, beside its number; `rows_max` + 1 rows are looked at, at most.

    Args:
        connection: in a transaction, so that one instant is seen.
    """
    keys = _keys(statement, key)
    if connection.dialect.name != "postgresql":
        yield from _numbered(connection, keys.limit(rows_max + 1), size)
        return
    last, total = 0, 0
    for bound, total in _moved(connection, keys, size, rows_max):
        if bound is not None:
            last = total
            yield bound, total
    if total > last:
        end = connection.execute(_keys(statement, key, backwards=True).limit(1)).one()
        yield tuple(end), total


def _keys(statement: Statement, key: Sequence[str], *, backwards: bool = False) -> Select[Any]:
    columns = _stored_key(statement.subquery("source"), key)
    return sa.select(*columns).order_by(*(column.desc() if backwards else column for column in columns))


def _moved(connection: Connection, keys: Select[Any], size: int, rows_max: int) -> Iterator[tuple[Key | None, int]]:
    """(every `size`-th key, its number), then (None, how many there are), unless there are more than `rows_max`.

    A cursor of the server's is moved and gives one key a chunk: a sixth of the time that numbering the rows takes. A
    LIMIT would cost a twelfth more.
    """
    name = f"effects_keys_{secrets.token_hex(4)}"  # its own: a prepared FETCH would remember another's types
    fetch = sa.text(f"FETCH 1 FROM {name}")
    connection.execute(_Declare(keys, name))
    number = 0
    row: Any = ()
    while row is not None and number <= rows_max:
        step = min(size, rows_max + 1 - number)
        moved = connection.exec_driver_sql(f"MOVE FORWARD {step - 1} FROM {name}").rowcount if step > 1 else 0
        row = connection.execute(fetch).first()
        number += moved + (row is not None)
        yield None if row is None else tuple(row), number
    connection.exec_driver_sql(f"CLOSE {name}")


class _Declare(sa.Executable, sa.ClauseElement):
    """A cursor over a SELECT, its parameters bound as they would be."""

    inherit_cache = False

    def __init__(self, select: Select[Any], name: str) -> None:
        self.select, self.name = select, name


@compiles(_Declare)
def _declare(element: _Declare, compiler: Any, **kw: Any) -> str:
    return f"DECLARE {element.name} NO SCROLL CURSOR FOR {compiler.process(element.select, **kw)}"


def _numbered(connection: Connection, keys: Select[Any], size: int) -> Iterator[tuple[Key, int]]:
    """SQLite has no cursors to move: it numbers the rows."""
    rows = keys.subquery("keys")
    order = list(rows.c)
    number = sa.func.row_number().over(order_by=order).label("row_number_")
    more = sa.func.lead(1, 1, 0).over(order_by=order).label("more_")
    numbered = sa.select(*order, number, more).subquery("numbered")
    chosen = (
        sa.select(*list(numbered.c)[:-1])
        .where(sa.or_(numbered.c.row_number_ % size == 0, numbered.c.more_ == 0))
        .order_by(numbered.c.row_number_)
    )
    for row in connection.execute(chosen):
        yield tuple(row[:-1]), int(row[-1])


# A part whose cost is this share of the whole's costs too much, where such a step is in it; of many parts, the second.
_COSTLY_SHARE, _COSTLY_SHARE_OF_MANY = 0.5, 0.25
_MANY_PARTS = 20
_STEPS_OF_ALL_ROWS = {
    "WindowAgg", "Aggregate", "Group", "Unique", "SetOp", "Limit", "CTE Scan", "Recursive Union", "Function Scan",
    "Table Function Scan",
}  # fmt: skip
_COMPUTED = re.compile(r"(CO-ROUTINE|MATERIALIZE) ")
_RESTRICTED = re.compile(r"SEARCH .*[<>]")


class _Explain(sa.Executable, sa.ClauseElement):
    """EXPLAIN of a statement, its parameters bound as they would be."""

    inherit_cache = False

    def __init__(self, statement: Statement) -> None:
        self.statement = statement


@compiles(_Explain)
def _explain(element: _Explain, compiler: Any, **kw: Any) -> str:
    options = "(FORMAT JSON)" if compiler.dialect.name == "postgresql" else "QUERY PLAN"
    return f"EXPLAIN {options} {compiler.process(element.statement, **kw)}"


def estimated_rows(connection: Connection, statement: Statement) -> int | None:
    """What PostgreSQL's planner expects, without reading a row; None on SQLite, which keeps no such number.

    Raises:
        DBAPIError: the database does not take the statement.
    """
    if connection.dialect.name != "postgresql":
        _explained(connection, statement)
        return None
    return int(_plan(connection, statement)["Plan Rows"])


def step_of_all_rows(connection: Connection, statement: Statement, part: Statement, parts: int | None) -> str | None:
    """The step by which the database would compute the whole SELECT for a part of it; None where it need not.

    On PostgreSQL the part holds such a step, and costs half of the whole, or of many parts a quarter. On SQLite, which
    tells no costs, something is computed by itself and nothing is searched for the range.

    Args:
        parts: how many there would be, where that is known.
    """
    if connection.dialect.name != "postgresql":
        return _computed_by_sqlite(connection, statement, part)
    whole, of_part = _plan(connection, statement), _plan(connection, part)
    share = _COSTLY_SHARE_OF_MANY if (parts or 1) >= _MANY_PARTS else _COSTLY_SHARE
    if of_part["Total Cost"] < whole["Total Cost"] * share:
        return None
    return next(filter(None, map(_all_rows, _steps(of_part))), None)


def any_range(connection: Connection, statement: Statement, key: Sequence[str]) -> Select[Any]:
    """The rows of a range whose bounds are not known before it runs: for EXPLAIN, which need not know them."""
    source = statement.subquery("source")
    columns = [source.c[name] for name in key]
    bounds = _unknown_values(connection, statement, key)
    conditions = [(columns[0] > bounds[0]), (columns[0] <= bounds[0])]
    if len(columns) > 1:
        row, bound = sa.tuple_(*columns), sa.tuple_(*bounds)
        conditions = [row > bound, row <= bound]
    return sa.select(source).where(*conditions).order_by(*columns)


def _unknown_values(connection: Connection, statement: Statement, key: Sequence[str]) -> list[ColumnElement[Any]]:
    """Of the key's types. PostgreSQL would compute with a plain NULL while it plans."""
    source = statement.subquery("source")
    columns = [source.c[name] for name in key]
    if connection.dialect.name != "postgresql":
        return [sa.bindparam(None, None, type_=column.type) for column in columns]
    with connection.execute(sa.select(*columns).limit(0)) as described:
        assert described.cursor is not None
        oids = [int(column[1]) for column in described.cursor.description]  # type: ignore[call-overload]
    names = [connection.scalar(sa.select(sa.func.format_type(oid, None))) for oid in oids]
    unset = "NULLIF(current_setting('effects.unset', true), '')"
    return [
        sa.literal_column(f"CAST({unset} AS {name})", column.type) for name, column in zip(names, columns, strict=True)
    ]


def _plan(connection: Connection, statement: Statement) -> dict[str, Any]:
    [[[document]]] = _explained(connection, statement)
    plan: dict[str, Any] = document["Plan"]
    return plan


def _steps(plan: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield plan
    for below in plan.get("Plans", ()):
        yield from _steps(below)


def _all_rows(step: dict[str, Any]) -> str | None:
    """A subquery's rows that are looked at only when they are computed have been computed for every range."""
    name: str = step["Node Type"]
    return name if name in _STEPS_OF_ALL_ROWS or (name == "Subquery Scan" and "Filter" in step) else None


def _computed_by_sqlite(connection: Connection, statement: Statement, part: Statement) -> str | None:
    whole, of_part = ([str(row[3]) for row in _explained(connection, each)] for each in (statement, part))
    if any(_RESTRICTED.match(step) and step not in whole for step in of_part):
        return None
    return next((step for step in of_part if _COMPUTED.match(step)), None)


def _explained(connection: Connection, statement: Statement) -> list[Any]:
    """As the driver has it: the types of the statement's columns are not those of EXPLAIN's."""
    with connection.execute(_Explain(statement)) as result:
        assert result.cursor is not None
        return list(result.cursor.fetchall())
