"""What all tables are made of, the packages' too: types that both databases have, columns, partial indexes.

Times are `timestamptz` on PostgreSQL and integer milliseconds since 1970 (UTC) on SQLite, always by the
database's clock.
"""

from __future__ import annotations

import datetime as dt
from typing import Any

from sqlalchemy import (
    BigInteger,
    Boolean,
    CheckConstraint,
    Column,
    DateTime,
    Dialect,
    Double,
    Index,
    Integer,
    Table,
    Text,
    TypeDecorator,
    text,
)
from sqlalchemy.dialects.postgresql import JSONB
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.schema import SchemaItem
from sqlalchemy.sql.expression import ColumnElement
from sqlalchemy.types import JSON, TypeEngine

SQLITE_NOW = "CAST((julianday('now') - 2440587.5) * 86400000 AS INTEGER)"
POSTGRES_NOW = "now()"

_EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)


class UtcTime(TypeDecorator[dt.datetime]):
    """An aware UTC datetime; milliseconds since 1970 on SQLite."""

    impl = DateTime(timezone=True)
    cache_ok = True

    def load_dialect_impl(self, dialect: Dialect) -> TypeEngine[Any]:
        if dialect.name == "sqlite":
            return dialect.type_descriptor(BigInteger())
        return dialect.type_descriptor(DateTime(timezone=True))

    def process_bind_param(self, value: dt.datetime | None, dialect: Dialect) -> Any:
        if value is None or dialect.name != "sqlite":
            return value
        return (value - _EPOCH) // dt.timedelta(milliseconds=1)

    def process_result_value(self, value: Any, dialect: Dialect) -> dt.datetime | None:
        if value is None:
            return None
        if dialect.name == "sqlite":
            return _EPOCH + dt.timedelta(milliseconds=value)
        return value.astimezone(dt.UTC)  # type: ignore[no-any-return]


class DatabaseNow(ColumnElement[dt.datetime]):
    """The database's clock as a server default."""

    inherit_cache = True
    type = UtcTime()


@compiles(DatabaseNow)
def _now_default(element: DatabaseNow, compiler: Any, **kw: Any) -> str:
    return POSTGRES_NOW


@compiles(DatabaseNow, "sqlite")
def _now_sqlite(element: DatabaseNow, compiler: Any, **kw: Any) -> str:
    return f"({SQLITE_NOW})"


# SQLite gives AUTOINCREMENT (an id is never used twice) to INTEGER primary keys only.
Identity = BigInteger().with_variant(Integer(), "sqlite")
Json = JSON().with_variant(JSONB(), "postgresql")


def now_column(name: str) -> Column[dt.datetime]:
    """A NOT NULL column of a time, whose default is the database's clock."""
    return Column(name, UtcTime, nullable=False, server_default=DatabaseNow())


def int_column(name: str, default: int = 0) -> Column[int]:
    return Column(name, Integer, nullable=False, server_default=text(str(default)))


def seconds_column(name: str) -> Column[float]:
    return Column(name, Double, nullable=False, server_default=text("0"))


def flag_column(name: str, default: str = "false") -> Column[bool]:
    return Column(name, Boolean, nullable=False, server_default=text(default))


def ledger_columns() -> list[SchemaItem]:
    """What every ledger has, whichever package it belongs to. What an attempt changes comes before what it does not: of
    an update PostgreSQL logs what is between the first difference and the last.
    """
    return [
        Column("state", Text, nullable=False, server_default="intended"),
        Column("released_at", UtcTime),
        Column("expires_at", UtcTime),
        now_column("updated_at"),
        Column("job_id", BigInteger, nullable=False, index=True),  # the newest job of this effect
        now_column("created_at"),
        Column("digest", Text, nullable=False),
        CheckConstraint(
            "state IN ('intended', 'released', 'done', 'refused', 'unknown', 'abandoned')",
            name="ck_ledger_state",
        ),
    ]


def partial_index(name: str, table: Table, columns: list[str], where: str, *, unique: bool = False) -> None:
    Index(
        name,
        *(table.c[column] for column in columns),
        unique=unique,
        sqlite_where=text(where),
        postgresql_where=text(where),
    )
