"""Whether the database can restrict a SELECT to a range of its key, as its EXPLAIN shows, before a row is read.

Window functions, aggregates, LIMIT, materialised CTEs and their like may see all rows, whatever range is asked for.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any

import sqlalchemy as sa
from sqlalchemy import ColumnElement, Connection, Select
from sqlalchemy.ext.compiler import compiles

from effects_reports.definitions.definition import Statement

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
