"""One value in every format: what the file holds is what PostgreSQL itself prints, or a value of that text."""

from __future__ import annotations

import datetime as dt
import io
import json
import math
from collections.abc import Callable, Iterator
from decimal import Decimal
from typing import Any

import psycopg
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import sqlalchemy as sa
from python_calamine import CalamineWorkbook
from sqlalchemy.dialects.postgresql import DOMAIN, JSONB

from effects_reports.errors import ReportRefused
from effects_reports.formats.arrow import with_kinds
from effects_reports.formats.base import ChunkSource, Column
from tests.formats.rows import part, whole
from tests.support.sampling import sample

# Domains, an enum, a composite; of hstore and xml a server may have none.
DECLARATIONS = """
    CREATE DOMAIN positive AS integer CHECK (VALUE > 0); CREATE DOMAIN tagged AS text[];
    CREATE DOMAIN paid AS numeric(12,2);
    CREATE TYPE mood AS ENUM ('sad', 'it''s %'); CREATE TYPE pair AS (b integer, a text)
"""
MOMENT, TEXT = sa.DateTime(timezone=True), sa.Text()
# Type of PostgreSQL → its type in SQLAlchemy, by which a typed file's columns are, and values.
TYPES: dict[str, tuple[Any, list[str]]] = {
    "smallint": (sa.SmallInteger(), ["-32768"]),
    "bigint": (sa.BigInteger(), ["-9223372036854775808", "9007199254740993"]),
    "numeric(12,2)": (sa.Numeric(12, 2), ["1.50", "-0.10", "0"]),
    "numeric": (TEXT, ["1.500", "NaN", "Infinity", "1e30", "1e-20"]),
    "float8": (sa.Double(), ["0.1", "1", "1e20", "-0", "5e-324", "NaN", "-Infinity"]),
    "float4": (sa.Float(), ["0.1", "3.4e38"]),
    "boolean": (sa.Boolean(), ["true", "false"]),
    "text": (TEXT, ["", "1.50", "a\nb", "é😀", "\\x"]),
    "char(5)": (TEXT, ["a"]),
    "bytea": (sa.LargeBinary(), ["\\x", "\\x00ff"]),
    "uuid": (sa.Uuid(), ["00000000-0000-4000-8000-00000000000f"]),
    "date": (sa.Date(), ["2026-01-14", "1900-01-01", "10000-01-01", "0044-03-15 BC", "infinity"]),
    "time": (sa.Time(), ["05:17:00.5", "24:00:00"]),
    "timetz": (sa.Time(timezone=True), ["05:17:00+02", "24:00:00-03:30"]),
    "timestamp": (sa.DateTime(), ["2026-01-14 05:17:00.5", "12026-01-01 00:00:00", "-infinity"]),
    "timestamptz": (MOMENT, ["2026-01-14 05:17:00+00", "10000-01-01 00:00:00+00", "0044-03-15 12:00:00+00 BC"]),
    "interval": (
        sa.Interval(),
        ["1 mon", "-1 year 2 mons -3 days 04:05:06.789", "0", "50 hours", "-0.5 s", "infinity"],
    ),
    "int4range": (TEXT, ["[1,5)", "empty", "(,3)"]),
    "tstzrange": (TEXT, ["[2026-01-01 00:00+00,)"]),
    "numrange": (TEXT, ["[1.50,2]"]),
    "int4multirange": (TEXT, ["{[1,3),[5,7)}"]),
    "json": (sa.JSON(), ['{"b": 1.50,\n "a": 1e2, "b": "x"}', "1.50", '"x"', "null", "[]"]),
    "jsonb": (JSONB(), ['{"b": 1.50, "a": {}}', "12345678901234567890", '"=x"', "null"]),
    "money": (TEXT, ["-12.5"]),
    "bit(3)": (TEXT, ["101"]),
    "varbit": (TEXT, ["1"]),
    "inet": (TEXT, ["::ffff:1.2.3.4", "10.0.0.1", "10.0.0.1/8"]),
    "cidr": (TEXT, ["10.0.0.0/8"]),
    "macaddr": (TEXT, ["08:00:2b:01:02:03"]),
    "tsvector": (TEXT, ["'a':1 'b'"]),
    "point": (TEXT, ["(1,2.5)"]),
    "box": (TEXT, ["(3,4),(1,2)"]),
    "mood": (sa.Enum("sad", "it's %", name="mood"), ["it's %"]),
    "pair": (TEXT, ['(1,"x, ""y""")', "(,)"]),
    "positive": (DOMAIN("positive", sa.Integer()), ["7"]),
    "paid": (DOMAIN("paid", sa.Numeric(12, 2)), ["1.50"]),
    "tagged": (DOMAIN("tagged", sa.ARRAY(sa.Text)), ['{a,NULL,"b,c"}']),
    "integer[]": (sa.ARRAY(sa.Integer), ["{}", "{1,NULL,-2}"]),
    "numeric(12,2)[]": (sa.ARRAY(sa.Numeric(12, 2)), ["{1.50,NULL}"]),
    "text[]": (sa.ARRAY(sa.Text), ['{"=1","a,b",NULL}']),
    "boolean[]": (sa.ARRAY(sa.Boolean), ["{t,NULL}"]),
    "integer[][]": (sa.ARRAY(sa.Integer, dimensions=2), ["{{1,2},{3,NULL}}"]),
    "date[]": (sa.ARRAY(sa.Date), ["{2026-01-14}"]),
    "interval[]": (sa.ARRAY(sa.Interval), ["{1 mon,50:00:00}"]),
    "int4range[]": (sa.ARRAY(sa.Text), ['{"[1,5)"}']),
    "uuid[]": (sa.ARRAY(sa.Uuid), ["{00000000-0000-4000-8000-00000000000f}"]),
    "mood[]": (sa.ARRAY(sa.Text), ["{sad}"]),
    "oid": (sa.BigInteger(), ["4294967295"]),
    "name": (TEXT, ["x%"]),
    "xid": (TEXT, ["7"]),
    "regclass": (TEXT, ["pg_class"]),
}
ARRAYS = ("[]", "tagged", "pair")  # which are JSON in texts
# What a format cannot hold: refused, by (format, type).
BEYOND = dict.fromkeys(("parquet", "arrow"), ("date", "time", "timestamp", "timestamptz"))
WIDE = ("infinity", "BC", "10000-", "12026-", "24:00")
CASES = [(kind, value) for kind, (_, values) in TYPES.items() for value in [*values, None]]


@pytest.fixture(scope="module")
def server(postgresql_engine: sa.Engine) -> Iterator[psycopg.Connection[Any]]:
    """A connection beside the engine's, with the settings that the page names, and the types, declared once."""
    url = postgresql_engine.url.set(drivername="postgresql").render_as_string(False)
    with psycopg.connect(url, autocommit=True) as connection:
        for declaration in DECLARATIONS.split(";"):
            connection.execute(declaration.encode())
        connection.execute("SET TimeZone = 'UTC'")
        yield connection


def quoted(value: str | None) -> str:
    return "NULL" if value is None else "'" + value.replace("'", "''") + "'"


def printed(server: psycopg.Connection[Any], kind: str, value: str | None) -> str | None:
    """What the database's plain SELECT has."""
    is_json = kind.endswith(ARRAYS)
    server.execute(f"SET IntervalStyle = '{'postgres' if is_json else 'iso_8601'}'".encode())
    select = f"to_json({quoted(value)}::{kind})" if is_json else f"{quoted(value)}::{kind}"
    row = server.execute(f"SELECT format('%s', {select})".encode()).fetchone()  # by the type's output function
    assert row is not None
    if value is None:
        return None
    return {"t": "true", "f": "false"}[row[0]] if kind == "boolean" else row[0]


def by_csv(file: bytes) -> Any:
    text = file.decode().removeprefix("x\n").removesuffix("\n")
    return None if not text else text[1:-1].replace('""', '"') if text[0] == '"' else text


def by_ndjson(file: bytes) -> Any:
    return file.decode().removeprefix('{"x":').removesuffix("}\n")


def by_xlsx(file: bytes) -> Any:
    """Of an empty cell it has nothing."""
    _, *cells = CalamineWorkbook.from_filelike(io.BytesIO(file)).get_sheet_by_index(0).to_python()
    return cells[0][0] if cells else ""


READERS: dict[str, Callable[[bytes], Any]] = {
    "csv": by_csv,
    "ndjson": by_ndjson,
    "xlsx": by_xlsx,
    "parquet": lambda file: pq.read_table(io.BytesIO(file)).to_pylist()[0]["x"],
    "arrow": lambda file: pa.ipc.open_file(file).read_all().to_pylist()[0]["x"],
}


def is_same(cell: Any, text: Any) -> bool:
    """Whether a cell holds the value that the database prints so."""
    if cell is None or text is None:
        return cell is text
    if isinstance(cell, bool):
        return bool(text == ("true" if cell else "false"))
    if isinstance(cell, float):
        return math.isnan(cell) if text == "NaN" else float(text) == cell
    if isinstance(cell, int | Decimal):
        return Decimal(text) == cell
    if isinstance(cell, bytes):
        return bool(text == "\\x" + cell.hex())
    if isinstance(cell, list):
        items = json.loads(text, parse_int=str, parse_float=str) if isinstance(text, str) else text
        words = {True: "true", False: "false"}
        items = [words[item] if isinstance(item, bool) else item for item in items]
        return len(cell) == len(items) and all(map(is_same, cell, items))
    if isinstance(cell, dt.datetime):
        moment = dt.datetime.fromisoformat(text)
        return moment == (cell if moment.tzinfo is None else cell.replace(tzinfo=dt.UTC))
    if isinstance(cell, dt.date | dt.time):
        return type(cell).fromisoformat(text) == cell
    return bool(cell == text)


def as_json(kind: str, text: str | None) -> str:
    """How a line of NDJSON has what the database prints so."""
    if text is None:
        return "null"
    numbers = ("smallint", "bigint", "numeric", "numeric(12,2)", "float8", "float4", "positive", "paid", "oid")
    embedded = kind.endswith((*ARRAYS, "json", "jsonb")) or kind == "boolean"
    if embedded or (kind in numbers and text[-1].isdigit()):
        return text.replace("\n", " ")
    if kind.startswith("timestamp") and text[0].isdigit():
        text = text.replace(" ", "T", 1).replace("+00", "+00:00")
    return json.dumps(text, ensure_ascii=False)


@pytest.mark.parametrize("name", READERS)
def test_a_value_is_what_the_database_prints(
    name: str, postgresql: sa.Connection, server: psycopg.Connection[Any]
) -> None:
    postgresql.exec_driver_sql("SET LOCAL TimeZone = 'UTC'")
    wrong = {}
    for kind, value in sample(CASES, 30):
        type_, _ = TYPES[kind]
        columns = (Column("x", "x", type_),)
        columns = with_kinds(columns) if name in BEYOND else columns
        written = sa.literal_column(f"{quoted(value)}::{kind}", type_)
        source = ChunkSource(columns, sa.select(written.label("x")))
        if kind in BEYOND.get(name, ()) and value is not None and any(word in value for word in WIDE):
            with pytest.raises(ReportRefused, match="which that cannot be"):
                part(source, name, "raw", postgresql)
            continue
        text = printed(server, kind, value)
        cell = READERS[name](whole(columns, [part(source, name, "raw", postgresql)[0]], name, "raw"))
        expected: Any = as_json(kind, text) if name == "ndjson" else text
        if not is_same(cell, "" if name == "xlsx" and text is None else expected):
            wrong[kind, value] = (cell, expected)
    assert wrong == {}
