"""Keys as the database itself holds them: read and bound as its driver has them, whatever type the app declares.

A type may write a value otherwise than it was stored: a moment with a space where another program wrote a `T`, a number
with fewer digits, an Enum's member by its name. A bound that came back so would lie elsewhere among the keys, and rows
would be missing from the file, or be in it twice.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import sqlalchemy as sa
from sqlalchemy import ColumnElement, Dialect, Subquery
from sqlalchemy.types import UserDefinedType


class _Stored(UserDefinedType[Any]):
    """No type: PostgreSQL takes a value for one of its column's own."""

    cache_ok = True

    def bind_processor(self, dialect: Dialect) -> Callable[[Any], Any] | None:
        return _without_type if dialect.name == "postgresql" else None


STORED = _Stored()


def stored_key(source: Subquery, key: Sequence[str]) -> list[ColumnElement[Any]]:
    """The key's columns, read and compared as they are stored."""
    return [sa.type_coerce(source.c[name], STORED) for name in key]


def _without_type(value: Any) -> Any:
    """A float as text, because the driver would send a double, from which a `real` of the same digits differs."""
    return repr(value) if isinstance(value, float) else value
