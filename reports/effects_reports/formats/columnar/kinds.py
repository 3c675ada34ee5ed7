"""Of what kind a typed file's columns are: read from the definition, frozen by the plan as a word.

| kind | of SQLAlchemy | in Parquet and Arrow |
|---|---|---|
| `int64` | Integer and its kin | 64-bit integer |
| `float64` | Float, or a Numeric with asdecimal=False | double |
| `decimal(12,2)` | Numeric(12, 2) | decimal of this precision and scale |
| `bool` | Boolean | boolean |
| `date`, `time` | Date; Time without a zone | date, time of day in microseconds |
| `zoned` | DateTime(timezone=True) | moment in microseconds, in UTC |
| `moment` | DateTime | moment in microseconds, of no zone |
| `binary` | LargeBinary | bytes |
| `text` | all others: String, Uuid, Enum, JSON, arrays, Interval | UTF-8, the text that CSV would have |
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import sqlalchemy as sa
from sqlalchemy.types import NullType, TypeDecorator, TypeEngine

from effects_reports.errors import DefinitionInvalid
from effects_reports.formats.base import Column

_DIGITS_MAX = 38  # of a decimal of 128 bits
_DECIMAL = re.compile(r"decimal\((\d+),(\d+)\)")
# Of each kind the SQLAlchemy type that has it; the first that fits.
_KINDS: tuple[tuple[type[TypeEngine[Any]], str], ...] = (
    (sa.Boolean, "bool"), (sa.Integer, "int64"), (sa.Float, "float64"), (sa.Date, "date"),
    (sa.LargeBinary, "binary"),
)  # fmt: skip


def with_kinds(columns: Sequence[Column]) -> tuple[Column, ...]:
    """The columns, each with its kind; one that a plan has frozen keeps it.

    Raises:
        DefinitionInvalid: a column's type is not known, or is a number of any size; names all of them.
    """
    untyped = [column.name for column in columns if not column.kind and isinstance(column.type, NullType | None)]
    if untyped:
        raise DefinitionInvalid(
            f"a typed file needs the type of each column, and that of {', '.join(map(repr, untyped))} is not known: "
            f"give types={{{untyped[0]!r}: Integer()}}, or what it is, to @report, or ask for csv"
        )
    return tuple(Column(column.name, column.header, column.type, column.kind or _kind(column)) for column in columns)


def decimal_of(kind: str) -> tuple[int, int] | None:
    """Precision and scale of a kind that is a decimal."""
    match = _DECIMAL.fullmatch(kind)
    return (int(match[1]), int(match[2])) if match else None


def _kind(column: Column) -> str:
    kind = column.type
    while isinstance(kind, TypeDecorator) and not isinstance(kind, sa.Interval):
        kind = kind.impl_instance
    if isinstance(kind, sa.Numeric) and not isinstance(kind, sa.Float):
        return _of_numeric(column.name, kind)
    if isinstance(kind, sa.DateTime):
        return "zoned" if kind.timezone else "moment"
    if isinstance(kind, sa.Time):
        return "text" if kind.timezone else "time"
    return next((name for type_, name in _KINDS if isinstance(kind, type_)), "text")


def _of_numeric(name: str, kind: sa.Numeric[Any]) -> str:
    if not kind.asdecimal:
        return "float64"
    if kind.precision is None or kind.precision > _DIGITS_MAX:
        raise DefinitionInvalid(
            f"a typed file holds decimals of a fixed size, at most {_DIGITS_MAX} digits, and column {name!r} is a "
            f"{kind!r}: give types={{{name!r}: Numeric(18, 2)}}, or what it needs, to @report, or ask for csv"
        )
    return f"decimal({kind.precision},{kind.scale or 0})"
