"""What a value of each type of PostgreSQL's is in a file: decided here, whatever the format and whoever encodes it.

A format that has the type holds the value. Each other holds the text that CSV has, which the server writes: Python has
no months in an interval, no other spelling of a number in JSON, and its own of a range. What the types are is asked of
the server: a SELECT of a view, a function or plain text does not know them, and a domain is what it is based on.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal, TypeAlias

import sqlalchemy as sa
from sqlalchemy import ColumnElement, Connection, Dialect, Select, Subquery
from sqlalchemy.types import Enum, Interval, TypeDecorator, TypeEngine, UserDefinedType

from effects_reports.formats.arrow import item_of
from effects_reports.formats.base import Column, Format
from effects_reports.formats.csv import DEFENCES, Csv
from effects_reports.formats.ndjson import Ndjson
from effects_reports.formats.values import LONG, JsonText, Printed

Kind: TypeAlias = Literal[
    "plain", "long", "pointed", "numeric", "single", "oid", "text", "boolean", "moment", "zoned", "network", "span",
    "json", "jsonb", "nested", "other",
]  # fmt: skip

# Types that print as they should. Their output begins with no sign of a formula that is not a number's.
_PLAIN = {
    21, 23, 1082, 2950, 17,  # integers, date, uuid, bytea
    829, 774, 1560, 1562,  # macaddr, macaddr8, bit, varbit
}  # fmt: skip
_KINDS: dict[int, Kind] = {
    **dict.fromkeys(_PLAIN, "plain"),
    **dict.fromkeys((650, 869), "network"),  # cidr, inet
    20: "long",  # integers that may have more digits than a spreadsheet keeps
    **dict.fromkeys((701, 1083, 1266), "pointed"),  # double, time, timetz
    1700: "numeric",
    **dict.fromkeys((25, 1043, 19), "text"),  # text, varchar, name; bpchar loses its spaces in a cast
    700: "single",
    26: "oid",
    16: "boolean",
    1114: "moment",
    1184: "zoned",
    1186: "span",
    114: "json",
    3802: "jsonb",
}
# What may have a decimal point, or a zone.
_POINTED: tuple[Kind, ...] = ("pointed", "numeric", "single", "moment", "zoned")
_NESTED_CATEGORIES = ("A", "C")  # arrays and composites
_DOCUMENTS: tuple[Kind, ...] = ("json", "jsonb", "nested")  # what JSON has a value for
_PRINTED: tuple[Kind, ...] = ("network", "span")  # what is never a formula
FREE: tuple[Kind, ...] = ("text", *_DOCUMENTS, "other")  # what may look like a formula
# What Python would change: it reads the text.
_CHANGED: tuple[Kind, ...] = (*_DOCUMENTS, *_PRINTED, "other")
_UTC_IN_CSV, _UTC_IN_JSON = r"\1 \2+00", r"\1T\2+00:00"  # what stands behind them, ` BC`, stays behind them


def kinds_of(connection: Connection, source: Subquery) -> list[Kind]:
    """The kind of each column."""
    with connection.execute(sa.select(source).limit(0)) as described:
        assert described.cursor is not None
        oids = [int(column[1]) for column in described.cursor.description]  # type: ignore[call-overload]
    unknown = [oid for oid in oids if oid not in _KINDS]
    nested = set()
    if unknown:
        kinds_query = sa.text("SELECT oid FROM pg_type WHERE oid IN :oids AND typcategory IN :categories").bindparams(
            sa.bindparam("oids", unknown, expanding=True),
            sa.bindparam("categories", _NESTED_CATEGORIES, expanding=True),
        )
        nested = set(connection.scalars(kinds_query))
    return [_KINDS.get(oid, "nested" if oid in nested else "other") for oid in oids]


def _widened(column: ColumnElement[Any], kind: Kind) -> ColumnElement[Any]:
    """Python has one kind of float and one of integer; by way of its text a number keeps the digits it shows."""
    return sa.cast(sa.cast(column, sa.Text), sa.Double if kind == "single" else sa.BigInteger)


def text_of_kind(column: ColumnElement[Any], kind: Kind, file: Csv, *, defended: bool) -> ColumnElement[Any]:
    """What CSV has: the value, where its text is that of the server, else its text."""
    defended_sql = DEFENCES[file.separator].defended_sql
    if file.exact and kind in ("long", "numeric"):
        return _exact(column, kind, file)
    if file.decimal_comma and kind in _POINTED:
        return _with_comma(column, kind)
    match kind:
        case "plain" | "long" | "pointed" | "numeric" | "moment" | "network":
            return column
        case "single" | "oid":
            return _widened(column, kind)
        case "text":
            return defended_sql(column) if defended else column
        case "boolean":  # a cast would make a text of each
            words = {True: _constant("true"), False: _constant("false")}
            return sa.case((column, words[True]), (sa.not_(column), words[False]))
        case "zoned":
            return _in_utc(column, _UTC_IN_CSV)
        case "span":
            return _duration(column)
        case "json" | "jsonb" | "nested":
            document: ColumnElement[str] = sa.cast(sa.func.to_json(column) if kind == "nested" else column, sa.Text)
            return defended_sql(document) if defended else document
        case "other":
            printed = _printed(column)
            return defended_sql(printed) if defended else printed


def _exact(column: ColumnElement[Any], kind: Kind, file: Csv) -> ColumnElement[str]:
    """As `formats.values.is_long`, and what `Csv` then writes."""
    is_long: ColumnElement[bool] = sa.or_(column >= sa.text(str(LONG)), column <= sa.text(str(-LONG)))
    if kind == "numeric":  # NaN and infinity have no scale
        is_long = sa.and_(is_long, sa.func.scale(column) == sa.literal_column("0"))
    shown = sa.cast(column, sa.Text)
    usual = _with_comma(column, kind) if file.decimal_comma and kind == "numeric" else shown
    return sa.case((is_long, _as_formula(shown)), else_=usual)


def _as_formula(digits: ColumnElement[str]) -> ColumnElement[str]:
    return sa.func.concat(sa.literal_column("'=\"'"), digits, sa.literal_column("'\"'"), type_=sa.Text)


def _with_comma(column: ColumnElement[Any], kind: Kind) -> ColumnElement[str]:
    """As `formats.values.with_comma`."""
    number = _widened(column, kind) if kind == "single" else column
    shown = sa.func.timezone(_constant("UTC"), number) if kind == "zoned" else number
    return sa.func.replace(sa.cast(shown, sa.Text), sa.literal_column("'.'"), sa.literal_column("','"))


def _in_utc(column: ColumnElement[Any], shape: str) -> ColumnElement[str]:
    """A moment as a session in UTC prints it; `shape` is a replacement for its day, its time and its era, if any."""
    moment = sa.cast(sa.func.timezone(_constant("UTC"), column), sa.Text)
    ours = sa.func.regexp_replace(moment, sa.literal_column("'^(\\S+) (\\S+)'"), sa.literal_column(f"'{shape}'"))
    return sa.case((sa.func.isfinite(column), ours), else_=sa.cast(column, sa.Text))


def _printed(column: ColumnElement[Any]) -> ColumnElement[str]:
    """By the type's own output function, as COPY and every client see it; a cast may differ."""
    return sa.case((column.is_not(None), sa.func.concat(column, type_=sa.Text)))


def value_of_kind(column: ColumnElement[Any], kind: Kind) -> ColumnElement[Any]:
    """What a JSON object has, by the server's own functions."""
    match kind:
        case "single" | "oid":
            return _widened(column, kind)
        case "zoned":
            return _in_utc(column, _UTC_IN_JSON)
        case "span":
            return _duration(column)
        case "other":
            return _printed(column)
        case _:
            return column


def _duration(column: ColumnElement[Any]) -> ColumnElement[str]:
    """An interval as ISO 8601 has it, whatever the session's IntervalStyle: its months, days and seconds stay apart."""
    seconds: ColumnElement[Any] = sa.func.trim_scale(sa.extract("second", column))
    day = _fields(
        (sa.extract("year", column), "Y"), (sa.extract("month", column), "M"), (sa.extract("day", column), "D")
    )
    time = _fields((sa.extract("hour", column), "H"), (sa.extract("minute", column), "M"), (seconds, "S"))
    none: ColumnElement[bool] = sa.func.concat(day, time) == _constant("")
    shown = sa.func.concat(
        _constant("P"),
        day,
        sa.case((none, _constant("T0S"))),
        _constant("T").concat(sa.func.nullif(time, _constant(""))),
    )
    return sa.case((sa.func.isfinite(column), shown), (column.is_not(None), sa.cast(column, sa.Text)))


def _fields(*fields: tuple[ColumnElement[Any], str]) -> ColumnElement[str]:
    """Those that are not 0, each with its letter."""
    zero: ColumnElement[Any] = sa.literal_column("0")
    return sa.func.concat(
        *(sa.cast(sa.func.nullif(number, zero), sa.Text).concat(_constant(letter)) for number, letter in fields),
        type_=sa.Text,
    )


def _constant(text: str) -> ColumnElement[str]:
    return sa.literal_column(f"'{text}'", sa.Text)


# -- for Python ----------------------------------------------------------------------------------------------------


def readable(connection: Connection, select: Select[Any], columns: Sequence[Column], file: Format) -> Select[Any]:
    """The SELECT of these columns as Python encodes it: what it would change comes as the text that the file has."""
    source = select.subquery("source")
    if connection.dialect.name == "postgresql":
        kinds = kinds_of(connection, source)
        texts = [
            text_of_kind(value, kind, Csv("raw"), defended=False) for value, kind in zip(source.c, kinds, strict=True)
        ]
    else:
        kinds = ["json" if isinstance(value.type, sa.JSON) else "text" for value in source.c]
        texts = list(source.c)
    changed = {
        number for number, (kind, column) in enumerate(zip(kinds, columns, strict=True))
        if kind in _CHANGED and is_as_stored(column.type)
    }  # fmt: skip
    values = [
        _as_read(value, texts[number], kinds[number], columns[number], file) if number in changed else value
        for number, value in enumerate(source.c)
    ]
    return sa.select(*values) if changed else select


def _as_read(
    value: ColumnElement[Any], text: ColumnElement[Any], kind: Kind, column: Column, file: Format
) -> ColumnElement[Any]:
    if kind == "nested" and (item := item_of(column.kind)) is not None:
        return sa.cast(value, sa.ARRAY(sa.Text)) if item == "text" else value
    if kind in _DOCUMENTS and isinstance(file, Ndjson):
        return sa.type_coerce(text, _ReadAs(JsonText))
    shown = _printed(text) if kind == "network" else text
    return sa.type_coerce(shown, _ReadAs(Printed) if kind in _PRINTED and isinstance(file, Csv) else sa.Text())


class _ReadAs(UserDefinedType[Any]):
    """A text that is read as a text of this class."""

    cache_ok = True

    def __init__(self, kind: type[str]) -> None:
        self.kind = kind

    def result_processor(self, dialect: Dialect, coltype: object) -> Callable[[Any], Any]:
        return lambda value: self.kind(value) if isinstance(value, str) else value


def is_as_stored(kind: TypeEngine[Any] | None) -> bool:
    """Whether Python takes what the database holds, and makes nothing else of it."""
    if kind is None or isinstance(kind, Interval):
        return True
    if isinstance(kind, sa.ARRAY):
        return is_as_stored(kind.item_type)
    if isinstance(kind, TypeDecorator) or (isinstance(kind, Enum) and kind.enum_class is not None):
        return False
    return _is_builtin(kind) and all(map(_is_builtin, kind._variant_mapping.values()))


def _is_builtin(kind: TypeEngine[Any]) -> bool:
    return type(kind).__module__.startswith("sqlalchemy.") and not isinstance(kind, TypeDecorator)
