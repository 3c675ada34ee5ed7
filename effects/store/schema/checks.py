"""What a row must be for the queue to work with it, as CHECK constraints that both databases enforce on any INSERT.

PostgreSQL knows types and needs ranges only; SQLite takes any value in any column, so its types are checked too.

PostgreSQL reads the tree of every constraint again for every statement that writes a row: few of them, over the columns
that something is calculated or found by, in the shortest words. A condition that is NULL holds.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, NamedTuple, TypeAlias

from sqlalchemy import CheckConstraint
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.expression import ColumnElement

from effects.limits import SECONDS_MAX
from effects.text.scrub import KEY_CHARS_MAX

JsonShape: TypeAlias = Literal["object", "array", "texts"]
COUNT_MAX = 1_000_000_000
TOKEN_MAX = 2**62  # a claim adds to it
PAYLOAD_BYTES_MAX = 1024 * 1024  # as stored: what the API takes, 64 KiB of JSON, is far less
# From year 1 to 9999: what Python's datetime can hold, and no infinity.
_FIRST, _END = "'0001-01-01 00:00:00+00'", "'10000-01-01 00:00:00+00'"
_FIRST_MS, _LAST_MS = -62_135_596_800_000, 253_402_300_799_999


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
