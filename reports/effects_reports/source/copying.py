"""A report's SELECT as PostgreSQL's COPY writes it in the format: each column as the text that Python would give.

What the types are is asked of the server: a SELECT of a view, a function or plain text does not know them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import sqlalchemy as sa
from sqlalchemy import ColumnElement, Connection, Select, Subquery
from sqlalchemy.dialects.postgresql import JSONB

from effects_reports.formats.base import Column, Format
from effects_reports.formats.csv import Csv
from effects_reports.formats.formulas import DEFENCES
from effects_reports.formats.values import LONG

Kind: TypeAlias = Literal[
    "plain", "long", "pointed", "numeric", "single", "oid", "text", "boolean", "moment", "zoned", "span", "json",
    "nested", "other",
]  # fmt: skip

# Types that print as they should. Their output begins with no sign of a formula that is not a number's.
_PLAIN = {
    21, 23, 1082, 2950, 17,  # integers, date, uuid, bytea
    650, 829, 774, 869, 1560, 1562,  # cidr, macaddr, macaddr8, inet, bit, varbit
}  # fmt: skip
_KINDS: dict[int, Kind] = {
    **dict.fromkeys(_PLAIN, "plain"),
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
    3802: "json",
}
# What may have a decimal point, or a zone.
_POINTED: tuple[Kind, ...] = ("pointed", "numeric", "single", "moment", "zoned")
_NESTED_CATEGORIES = ("A", "C")  # arrays and composites

# What the texts depend on, for this transaction alone. The time zone is left: the SELECT may depend on it.
_SETTINGS = (
    "SELECT current_setting('TimeZone'), "
    "set_config('DateStyle', 'ISO, YMD', true), set_config('IntervalStyle', 'iso_8601', true), "
    "set_config('bytea_output', 'hex', true), set_config('extra_float_digits', '1', true)"
)
_UTC = {"UTC", "Etc/UTC", "GMT"}  # what a server is set up with where its machine keeps UTC
_UTC_IN_CSV, _UTC_IN_JSON = r"\1 \2+00", r"\1T\2+00:00"  # what stands behind them, ` BC`, stays behind them
_CSV = "FORMAT csv, ENCODING 'UTF8'"
# JSON holds no control character, so that nothing is ever quoted; the text format would double its backslashes.
_LINES = "FORMAT csv, ENCODING 'UTF8', QUOTE E'\\x01', DELIMITER E'\\x02'"


@dataclass(frozen=True, slots=True)
class CopyStatement:
    """A COPY for psycopg and its parameters, which psycopg quotes: COPY itself takes none.

    `undefended`: columns, from 0 on, whose texts the reader has to defend against formulas.
    """

    text: str
    parameters: dict[str, Any]
    undefended: tuple[int, ...]


def copy_statement(
    connection: Connection, select: Select[Any], columns: Sequence[Column], file: Format, *, defends: bool
) -> CopyStatement:
    """The SELECT as a COPY.

    The session is made to print what the formats need, until its transaction ends.

    Args:
        defends: PostgreSQL itself defends every text, where the file's dialect asks for that.
    """
    zone = connection.exec_driver_sql(_SETTINGS).scalar_one()
    source = select.subquery("source")
    kinds = _kinds(connection, source)
    if zone in _UTC and not (isinstance(file, Csv) and file.decimal_comma):
        kinds = ["moment" if kind == "zoned" else kind for kind in kinds]
    undefended = () if defends or not isinstance(file, Csv) else _undefended(kinds, file)
    query = _csv(source, kinds, file, undefended) if isinstance(file, Csv) else _json(source, kinds, columns)
    compiled = query.compile(dialect=connection.dialect)
    state = compiled.construct_expanded_state()
    processors = {**compiled._bind_processors, **state.processors}  # those of every parameter, and of expanded ones
    options = f"{_CSV}, DELIMITER '{file.separator}'" if isinstance(file, Csv) else _LINES
    values = {name: _processed(processors, name, value) for name, value in state.parameters.items()}
    return CopyStatement(f"COPY ({state.statement}) TO STDOUT ({options})", values, undefended)


def _undefended(kinds: Sequence[Kind], file: Csv) -> tuple[int, ...]:
    """A JSON number with a decimal comma, or one as a formula, would look like a text of the file's."""
    texts: tuple[Kind, ...] = ("text", "nested", "other")
    if not (file.decimal_comma or file.exact):
        texts = (*texts, "json")
    return tuple(number for number, kind in enumerate(kinds) if file.defended and kind in texts)


def _processed(processors: Any, name: str, value: Any) -> Any:
    process = processors.get(name)
    return process(value) if process else value


def _kinds(connection: Connection, source: Subquery) -> list[Kind]:
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


def _csv(source: Subquery, kinds: Sequence[Kind], file: Csv, undefended: Sequence[int]) -> Select[Any]:
    texts = [
        _text(column, kind, file, defended=file.defended and number not in undefended)
        for number, (column, kind) in enumerate(zip(source.c, kinds, strict=True))
    ]
    return sa.select(*(text.label(f"c{number}") for number, text in enumerate(texts)))


def _text(column: ColumnElement[Any], kind: Kind, file: Csv, *, defended: bool) -> ColumnElement[Any]:
    defended_sql = DEFENCES[file.separator].defended_sql
    if file.exact and kind in ("long", "numeric"):
        return _exact(column, kind, file)
    if file.decimal_comma and kind in _POINTED:
        return _with_comma(column, kind)
    match kind:
        case "plain" | "long" | "pointed" | "numeric" | "moment":
            return column
        case "single" | "oid":
            return _widened(column, kind)
        case "text":
            return defended_sql(column) if defended else column
        case "boolean":  # a cast would make a text of each
            words = {True: sa.literal_column("'true'", sa.Text), False: sa.literal_column("'false'", sa.Text)}
            return sa.case((column, words[True]), (sa.not_(column), words[False]))
        case "zoned":
            return _in_utc(column, _UTC_IN_CSV)
        case "span":
            return sa.cast(sa.func.justify_hours(column), sa.Text)
        case "json":  # a JSON text is that text; JSON's null is NULL
            text: ColumnElement[str] = sa.cast(column, JSONB).op("#>>", return_type=sa.Text())(
                sa.literal_column("'{}'")
            )
            shown = defended_sql(text) if defended else text
            usual = _comma_in_numbers(column, shown) if file.decimal_comma else shown
            return _exact_document(column, text, usual) if file.exact else usual
        case "nested":
            document: ColumnElement[str] = sa.cast(sa.func.to_jsonb(column), sa.Text)
            return defended_sql(document) if defended else document
        case "other":
            printed = _printed(column)
            return sa.case((column.is_not(None), defended_sql(printed) if defended else printed))


def _exact(column: ColumnElement[Any], kind: Kind, file: Csv) -> ColumnElement[str]:
    """As `formats.values.is_long`, and what `Csv` then writes."""
    is_long: ColumnElement[bool] = sa.or_(column >= sa.text(str(LONG)), column <= sa.text(str(-LONG)))
    if kind == "numeric":  # NaN and infinity have no scale
        is_long = sa.and_(is_long, sa.func.scale(column) == sa.literal_column("0"))
    shown = sa.cast(column, sa.Text)
    usual = _with_comma(column, kind) if file.decimal_comma and kind == "numeric" else shown
    return sa.case((is_long, _as_formula(shown)), else_=usual)


def _exact_document(document: ColumnElement[Any], text: ColumnElement[str], shown: ColumnElement[str]) -> Any:
    """A JSON document that is a long integer is one to Python too."""
    is_number = sa.func.jsonb_typeof(sa.cast(document, JSONB)) == sa.literal_column("'number'")
    is_long = sa.and_(is_number, text.op("~")(sa.literal_column(f"'^-?[0-9]{{{len(str(LONG))},}}$'")))
    return sa.case((is_long, _as_formula(text)), else_=shown)


def _as_formula(digits: ColumnElement[str]) -> ColumnElement[str]:
    return sa.func.concat(sa.literal_column("'=\"'"), digits, sa.literal_column("'\"'"), type_=sa.Text)


def _with_comma(column: ColumnElement[Any], kind: Kind) -> ColumnElement[str]:
    """As `formats.values.with_comma`."""
    number = _widened(column, kind) if kind == "single" else column
    shown = sa.func.timezone(sa.literal_column("'UTC'"), number) if kind == "zoned" else number
    return sa.func.replace(sa.cast(shown, sa.Text), sa.literal_column("'.'"), sa.literal_column("','"))


def _comma_in_numbers(document: ColumnElement[Any], shown: ColumnElement[str]) -> ColumnElement[str]:
    """A JSON document that is a number is one to Python too."""
    kind = sa.func.jsonb_typeof(sa.cast(document, JSONB))
    with_comma = sa.func.replace(shown, sa.literal_column("'.'"), sa.literal_column("','"))
    return sa.case((kind == sa.literal_column("'number'"), with_comma), else_=shown)


def _in_utc(column: ColumnElement[Any], shape: str) -> ColumnElement[str]:
    """A moment as a session in UTC prints it; `shape` is a replacement for its day, its time and its era, if any."""
    moment = sa.cast(sa.func.timezone(sa.literal_column("'UTC'"), column), sa.Text)
    ours = sa.func.regexp_replace(moment, sa.literal_column("'^(\\S+) (\\S+)'"), sa.literal_column(f"'{shape}'"))
    return sa.case((sa.func.isfinite(column), ours), else_=sa.cast(column, sa.Text))


def _printed(column: ColumnElement[Any]) -> ColumnElement[str]:
    """By the type's own output function, as COPY and every client see it; a cast may differ. NULL is the empty text."""
    return sa.func.concat(column, type_=sa.Text)


def _json(source: Subquery, kinds: Sequence[Kind], columns: Sequence[Column]) -> Select[Any]:
    members = [
        _value(value, kind).label(column.name) for value, kind, column in zip(source.c, kinds, columns, strict=True)
    ]
    rows = sa.select(*members).subquery("line")
    return sa.select(sa.func.row_to_json(sa.literal_column(rows.name)).label("line")).select_from(rows)


def _value(column: ColumnElement[Any], kind: Kind) -> ColumnElement[Any]:
    match kind:
        case "plain" | "long" | "pointed" | "numeric" | "text" | "boolean" | "moment":
            return column
        case "single" | "oid":
            return _widened(column, kind)
        case "zoned":
            return _in_utc(column, _UTC_IN_JSON)
        case "span":
            return sa.func.justify_hours(column)
        case "json":
            return sa.cast(column, JSONB)
        case "nested":
            return sa.func.to_jsonb(column)
        case "other":
            return sa.case((column.is_not(None), _printed(column)))
