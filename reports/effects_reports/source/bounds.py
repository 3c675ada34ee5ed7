"""Where a report's chunks end: every n-th key, found in one walk over the key, however the database takes it."""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Sequence
from typing import Any

import sqlalchemy as sa
from sqlalchemy import Connection, Select
from sqlalchemy.ext.compiler import compiles

from effects_reports.definitions.definition import Statement
from effects_reports.runs.cursor import Key
from effects_reports.source.stored_keys import stored_key


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
    columns = stored_key(statement.subquery("source"), key)
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
