"""The words in which SQLite and PostgreSQL differ, so that most statements are written once.

A `Sql` belongs to one Store: it knows the qualified table names and the clock. Statements are functions
`(sql: Sql) -> str`; the Store builds each once.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Collection, Mapping
from functools import cache
from types import NoneType
from typing import Annotated, Any, Literal, TypeAlias, TypeVar, get_args, get_origin

import msgspec
from sqlalchemy import Dialect, Table

from effects.store.schema.columns import POSTGRES_NOW, SQLITE_NOW

T = TypeVar("T")

MISSED_HEARTBEATS = 3  # after which a worker counts as silent, long before its lease ends
TOKEN_STEP_MAX = 2**40  # BIGINT holds more than 8 million of the widest steps

_POSTGRES_TYPES = {
    "int": "bigint",
    "num": "double precision",
    "text": "text",
    "bool": "boolean",
    "json": "jsonb",
    "bytes": "bytea",
}

# Name → kind (int, num, text, bool or json), or a struct whose fields say both. Of kind bytes and time are parameters
# alone: JSON has none.
Columns: TypeAlias = Mapping[str, str] | type[msgspec.Struct]
_KINDS = {bool: "bool", int: "int", float: "num", str: "text", bytes: "bytes", dt.datetime: "time"}


class Window(msgspec.Struct, frozen=True):
    """Which rows a list has, by one time of theirs; None is no bound.

    Args:
        since: aware; the earliest time, included.
        until: aware; the latest time, excluded.
        older: least age, in seconds.
        newer: greatest age, in seconds.
    """

    since: dt.datetime | None = None
    until: dt.datetime | None = None
    older: float | None = None
    newer: float | None = None

    def parameters(self) -> dict[str, float | None]:
        """What a statement with conditions of `Sql.bounds` is to be given."""
        since, until = (None if time is None else time.timestamp() for time in (self.since, self.until))
        return {"since": since, "until": until, "older": self.older, "newer": self.newer}

    def times(self, now: float) -> tuple[float | None, float | None]:
        """The earliest time and the end, in seconds since 1970; None is no bound."""
        bounds = self.parameters()
        starts = [bounds["since"], None if self.newer is None else now - self.newer]
        ends = [bounds["until"], None if self.older is None else now - self.older]
        return (
            max((time for time in starts if time is not None), default=None),
            min((time for time in ends if time is not None), default=None),
        )


ANY_TIME = Window()


def set_filters(values: Mapping[str, T | None]) -> dict[str, T]:
    """The filters that are set, as parameters of the statement that `and_each` builds for just these."""
    return {name: value for name, value in values.items() if value is not None}


def and_each(conditions: Mapping[str, str], names: Collection[str]) -> str:
    """` AND …` for the condition of each filter that is set: so each set of filters has its own statement, whose
    plan can use an index.
    """
    return "".join(f" AND {condition}" for name, condition in conditions.items() if name in names)


class Sql:
    """Fragments of SQL for one database. `sql.jobs` is the qualified name of `effects_jobs`, and so on."""

    def __init__(self, tables: Mapping[str, Table], dialect: Dialect) -> None:
        self.postgresql = dialect.name == "postgresql"
        self.tables = tables
        self._name = dialect.identifier_preparer.format_table
        self.shift_seconds = 0.0  # moved by tests only
        self.names_histories = self.postgresql  # not every server that speaks its language does

    def __getattr__(self, table: str) -> str:
        try:
            return self._name(self.tables[table])
        except KeyError:
            raise AttributeError(table) from None

    @property
    def job_attempts(self) -> str:
        """The view of all attempts, whichever row holds them."""
        return self.attempt_log.removesuffix("attempt_log") + "job_attempts"

    @property
    def revisions(self) -> str:
        """The revisions of the tables that the database has, in one text."""
        names = f"SELECT version_num FROM {self.schema_support.removesuffix('support')}version ORDER BY version_num"
        together = "string_agg(version_num, ' ')" if self.postgresql else "group_concat(version_num, ' ')"
        return f"(SELECT {together} FROM ({names}) AS v)"

    @property
    def now(self) -> str:
        """The database's clock. Stable within a statement, so that an index may be used with it."""
        if not self.shift_seconds:
            return POSTGRES_NOW if self.postgresql else SQLITE_NOW
        if self.postgresql:
            return f"({POSTGRES_NOW} + interval '{self.shift_seconds} seconds')"
        return f"({SQLITE_NOW} + {int(self.shift_seconds * 1000)})"

    @property
    def statement_now(self) -> str:
        """The clock as the statement begins, where `now` is that of the transaction, which an app may have begun long
        before.
        """
        return self.now.replace(POSTGRES_NOW, "statement_timestamp()")

    @property
    def next_token(self) -> str:
        """The row's `lease_token` raised by a random step of 1 to 2^40, drawn for each row.

        After commits are lost (a standby promoted, a backup restored) the database hands out the same ids again, and
        counted tokens would follow each other as before: an attempt that survived could pass the fence of another.
        """
        if self.postgresql:
            return f"lease_token + 1 + CAST(floor(random() * {TOKEN_STEP_MAX}) AS bigint)"
        return f"lease_token + 1 + (random() & {TOKEN_STEP_MAX - 1})"

    @property
    def history(self) -> str:
        """The name of the history that the database goes by: the cluster and its timeline, of which a promotion begins
        another. NULL on a standby and where there are no such names.
        """
        if not self.names_histories:
            return "CAST(NULL AS text)"
        timeline = "substr(pg_walfile_name(pg_current_wal_lsn()), 1, 8)"
        system = "(SELECT CAST(system_identifier AS text) FROM pg_control_system())"
        return f"(CASE WHEN pg_is_in_recovery() THEN NULL ELSE {system} || '/' || {timeline} END)"

    @property
    def in_flight(self) -> str:
        """Condition: the job runs and its lease is valid, so that a lost job does not occupy capacity forever."""
        return f"status = 'running' AND locked_until > {self.now}"

    def is_alive(self, row: str = "") -> str:
        """Condition: this worker's row has not ended and sent a heartbeat within a lease (`lease` is bound)."""
        silent = self.after("-" + self.number("lease"))
        return f"({row}ended_at IS NULL AND {row}seen_at >= {silent})"

    def is_silent(self, row: str = "") -> str:
        """Condition: this worker's row has ended, or missed heartbeats by the interval that it was registered with."""
        last = self.after(f"-{MISSED_HEARTBEATS} * {row}heartbeat_seconds")
        return f"({row}ended_at IS NOT NULL OR {row}seen_at < {last})"

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

    def floor(self, expression: str) -> str:
        """The greatest whole number up to a number that is not negative."""
        return f"floor({expression})" if self.postgresql else f"CAST({expression} AS INTEGER)"

    def finite(self, column: str) -> str:
        """A stored number that can be added up: 0 for infinity, for what is not a number, and for none."""
        return f"CASE WHEN {column} BETWEEN -1e15 AND 1e15 THEN {column} ELSE 0 END"

    def number(self, parameter: str) -> str:
        """A bound parameter that is a number: PostgreSQL must be told."""
        return self.bound(parameter, "num")

    def bound(self, parameter: str, kind: str) -> str:
        """A bound parameter, whose type PostgreSQL is told. One of kind time is bound as seconds since 1970."""
        if kind == "time":
            return self.time(self.number(parameter))
        return f"CAST(:{parameter} AS {_POSTGRES_TYPES[kind]})" if self.postgresql else f":{parameter}"

    def contains(self, column: str, parameter: str) -> str:
        """Whether a text has another one as a part, ignoring case."""
        return f"{'strpos' if self.postgresql else 'instr'}(lower({column}), lower(:{parameter})) > 0"

    def contains_word(self, column: str, parameter: str) -> str:
        """Whether a text has a word of letters, digits and underscores, ignoring case."""
        if self.postgresql:
            return f"{column} ~* ('[[:<:]]' || CAST(:{parameter} AS text) || '[[:>:]]')"
        edge = "[^a-z0-9_]"
        return f"' ' || lower({column}) || ' ' GLOB '*{edge}' || lower(:{parameter}) || '{edge}*'"

    def matches(self, column: str, parameter: str) -> str:
        """Whether a column has the text of a filter's parameter; NULL is no filter."""
        return f"(CAST(:{parameter} AS text) IS NULL OR {column} = CAST(:{parameter} AS text))"

    def bounds(self, column: str) -> dict[str, str]:
        """The conditions of a `Window` on a time, by their parameters. An index on the column serves them."""
        since, until = (self.time(self.number(name)) for name in ("since", "until"))
        older, newer = (self.after(f"-{self.number(name)}") for name in ("older", "newer"))
        return {
            "since": f"{column} >= {since}",
            "until": f"{column} < {until}",
            "older": f"{column} <= {older}",
            "newer": f"{column} > {newer}",
        }

    def rows(self, parameter: str, columns: Columns) -> str:
        """A JSON array of objects, bound as one parameter, as a relation."""
        if not isinstance(columns, Mapping):
            columns = columns_of(columns)
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

    def exists(self, source: str) -> str:
        """Whether FROM and WHERE find a row, with one probe for each row that asks.

        Not EXISTS: PostgreSQL may make a join or a hash of that, and read the whole other table for a few rows.
        """
        return f"((SELECT 1 {source} LIMIT 1) IS NOT NULL)"

    def greatest(self, *expressions: str) -> str:
        """The greatest of several values that are not NULL."""
        return f"{'GREATEST' if self.postgresql else 'max'}({', '.join(expressions)})"

    def smallest(self, *expressions: str) -> str:
        """The smallest of several values that are not NULL."""
        return f"{'LEAST' if self.postgresql else 'min'}({', '.join(expressions)})"

    def own(self, alias: str, column: str) -> str:
        """A column of the updated table in RETURNING, where SQLite knows no alias."""
        return f"{alias}.{column}" if self.postgresql else column

    def json_text(self, expression: str) -> str:
        """A stored JSON column as text: on SQLite, too, where an app may have Python convert columns that say JSON."""
        return f"CAST({expression} AS text)"

    def joined(self, column: str, separator: int) -> str:
        """The texts of a stored JSON column in one, with the character of that code between them."""
        if self.postgresql:
            return f"string_agg({self.json_text(column)}, chr({separator}))"
        return f"group_concat({column}, char({separator}))"

    def lock(self, *, skip: bool = True, of: str = "") -> str:
        """The row lock of a SELECT. SQLite needs none: its writer is alone."""
        if not self.postgresql:
            return ""
        return f"FOR NO KEY UPDATE{f' OF {of}' if of else ''}{' SKIP LOCKED' if skip else ''}"


@cache
def columns_of(row: type[msgspec.Struct]) -> dict[str, str]:
    """The columns of a struct, in the order of its fields: name → kind, as of `Sql.rows`."""
    return {field.encode_name: _kind(field.type) for field in msgspec.structs.fields(row)}


def _kind(hint: Any) -> str:
    if get_origin(hint) is Annotated:
        return _kind(get_args(hint)[0])
    members = [member for member in get_args(hint) if member is not NoneType]
    if get_origin(hint) is Literal:
        return _KINDS[type(members[0])]
    if NoneType in get_args(hint) and len(members) == 1:
        return _kind(members[0])
    return _KINDS.get(hint, "json")
