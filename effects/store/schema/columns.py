"""What all tables are made of, the packages' too: types that both databases have, columns, indexes, constraints.

Times are `timestamptz` on PostgreSQL and integer milliseconds since 1970 (UTC) on SQLite, always by the
database's clock.

CHECK constraints say what a row must be for the queue to work with it, whoever inserts it. PostgreSQL knows types and
needs ranges only; SQLite takes any value in any column, so its types are checked too. PostgreSQL reads the tree of
every constraint again for every statement that writes a row: few of them, over the columns that something is calculated
or found by, in the shortest words. A condition that is NULL holds.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence
from typing import Any, Literal, NamedTuple, TypeAlias

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

from effects.kit.text.scrub import KEY_CHARS_MAX
from effects.model.limits import SECONDS_MAX

SQLITE_NOW = "CAST((julianday('now') - 2440587.5) * 86400000 AS INTEGER)"
POSTGRES_NOW = "now()"

_EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
# SQLite gives AUTOINCREMENT (an id is never used twice) to INTEGER primary keys only.
Identity = BigInteger().with_variant(Integer(), "sqlite")
Json = JSON().with_variant(JSONB(), "postgresql")
JsonShape: TypeAlias = Literal["object", "array", "texts"]
COUNT_MAX = 1_000_000_000
TOKEN_MAX = 2**62  # a claim adds to it
PAYLOAD_BYTES_MAX = 1024 * 1024  # as stored: what the API takes, 64 KiB of JSON, is far less
# From year 1 to 9999: what Python's datetime can hold, and no infinity.
_FIRST, _END = "'0001-01-01 00:00:00+00'", "'10000-01-01 00:00:00+00'"
_FIRST_MS, _LAST_MS = -62_135_596_800_000, 253_402_300_799_999


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


class _Condition(ColumnElement[bool]):
    """One condition in the words of each database."""

    inherit_cache = False

    def __init__(self, postgresql: Sequence[str], sqlite: Sequence[str]) -> None:
        self.postgresql, self.sqlite = " AND ".join(postgresql), " AND ".join(sqlite)


@compiles(_Condition)
def _on_postgresql(condition: _Condition, compiler: Any, **kw: Any) -> str:
    return condition.postgresql


@compiles(_Condition, "sqlite")
def _on_sqlite(condition: _Condition, compiler: Any, **kw: Any) -> str:
    return condition.sqlite


def check(table: str, name: str, postgresql: Sequence[str], sqlite: Sequence[str]) -> CheckConstraint:
    return CheckConstraint(_Condition(postgresql, sqlite), name=f"ck_{table}_{name}")


def _typed(column: str, kind: str, condition: str) -> str:
    return f"({column} IS NULL OR typeof({column}) = '{kind}' AND {condition})"


def numeric(column: str) -> str:
    return f"typeof({column}) IN ('real', 'integer')"


def check_keys(table: str, *columns: str) -> CheckConstraint:
    """Names and keys have 1 to 255 characters; no NUL, behind which SQLite would not look."""
    lengths = ", ".join(f"length({column})" for column in columns)
    one_to_most = f"BETWEEN 1 AND {KEY_CHARS_MAX}"
    return check(
        table,
        "keys",
        [f"LEAST({', '.join(columns)}) > ''", f"GREATEST({lengths}) <= {KEY_CHARS_MAX}"],
        [
            _typed(column, "text", f"length({column}) {one_to_most} AND instr({column}, char(0)) = 0")
            for column in columns
        ],
    )


class _Range(NamedTuple):
    """What the values of some columns may be, in the words of each database."""

    name: str
    postgresql: tuple[str, str]  # beside the least and beside the greatest of them
    sqlite_types: str
    sqlite: str


# Finite times that Python can represent.
TIMES = _Range("times", (f">= CAST({_FIRST} AS timestamptz)", f"< CAST({_END} AS timestamptz)"), "= 'integer'",
               f"BETWEEN {_FIRST_MS} AND {_LAST_MS}")  # fmt: skip
# Whole numbers from 0 to 1,000,000,000.
COUNTS = _Range("counts", (">= 0", f"<= {COUNT_MAX}"), "= 'integer'", f"BETWEEN 0 AND {COUNT_MAX}")
# Lengths of time: finite (NaN is the greatest), not negative.
SECONDS = _Range("seconds", (">= 0", f"<= {SECONDS_MAX:.0f}"), "IN ('real', 'integer')",
                 f"BETWEEN 0 AND {SECONDS_MAX:.0f}")  # fmt: skip


def check_range(table: str, bounds: _Range, *columns: str) -> CheckConstraint:
    """All of these columns are TIMES, COUNTS or SECONDS."""
    every, (least, greatest) = ", ".join(columns), bounds.postgresql
    return check(
        table,
        bounds.name,
        [f"LEAST({every}) {least}", f"GREATEST({every}) {greatest}"],
        [
            f"({column} IS NULL OR typeof({column}) {bounds.sqlite_types} AND {column} {bounds.sqlite})"
            for column in columns
        ],
    )


def check_types(
    table: str, *, texts: Sequence[str] = (), times: Sequence[str] = (), flags: Sequence[str] = ()
) -> CheckConstraint:
    """SQLite: texts are texts, times whole numbers and flags 0 or 1. PostgreSQL knows by itself."""
    conditions = [f"({column} IS NULL OR typeof({column}) = 'text')" for column in texts]
    conditions += [f"({column} IS NULL OR typeof({column}) = 'integer')" for column in times]
    conditions += [f"({column} IS NULL OR typeof({column}) = 'integer' AND {column} IN (0, 1))" for column in flags]
    return check(table, "types", ["true"], conditions).ddl_if(dialect="sqlite")


def check_payload(table: str) -> CheckConstraint:
    """JSON of a bounded size: hundreds of payloads are read at once."""
    return check(
        table,
        "payload",
        [f"pg_column_size(payload) <= {PAYLOAD_BYTES_MAX}"],
        ["typeof(payload) = 'text'", f"length(CAST(payload AS BLOB)) <= {PAYLOAD_BYTES_MAX}", "json_valid(payload)"],
    )


def check_json(table: str, **shapes: JsonShape) -> CheckConstraint:
    """JSON of one shape: an object, an array, or an array of texts, of which SQLite sees no more than the array.

    Args:
        shapes: column → shape.
    """
    texts = "NOT jsonb_path_exists({}, '$[*] ? (@.type() <> \"string\")')"
    kinds = {column: "array" if shape == "texts" else shape for column, shape in shapes.items()}
    postgresql = [f"jsonb_typeof({column}) = '{kind}'" for column, kind in kinds.items()]
    postgresql += [texts.format(column) for column, shape in shapes.items() if shape == "texts"]
    sqlite = [
        f"({column} IS NULL OR CASE WHEN json_valid({column}) THEN json_type({column}) = '{kind}' ELSE false END)"
        for column, kind in kinds.items()
    ]
    return check(table, "json", postgresql, sqlite)


def check_job(table: str) -> CheckConstraint:
    """A job's own numbers: an id above 0, tries, a small priority, and a token that can be raised."""
    return check(
        table,
        "numbers",
        ["id > 0", "max_attempts > 0", f"lease_token BETWEEN 0 AND {TOKEN_MAX}"],
        [
            "id > 0",
            _typed("max_attempts", "integer", f"max_attempts BETWEEN 1 AND {COUNT_MAX}"),
            _typed("priority", "integer", "priority BETWEEN -32768 AND 32767"),
            _typed("lease_token", "integer", f"lease_token BETWEEN 0 AND {TOKEN_MAX}"),
            _typed("definition_id", "integer", "true"),
            _typed("requeued_from", "integer", "true"),
        ],
    )
