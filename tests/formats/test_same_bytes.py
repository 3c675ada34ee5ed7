"""What PostgreSQL's COPY writes and what Python writes of the same rows are the same bytes, for every type."""

from __future__ import annotations

import datetime as dt
import io
import json
from collections.abc import Sequence
from typing import Any

import pytest
import sqlalchemy as sa
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from python_calamine import CalamineWorkbook

from effects_reports.formats.base import DIALECTS, ChunkSource, Dialect
from effects_reports.source.snapshot import reading
from tests.formats.rows import both_routes, columns_of, part, values, whole

TYPES: dict[str, list[Any]] = {
    "smallint": [0, -1, 32767],
    "integer": [0, -5, 2147483647],
    "bigint": [0, -(2**63), 2**63 - 1, 10**15, 10**15 - 1, -(10**15), 1 - 10**15],
    "numeric": ["0", "-0.10", "1.500", "1e30", "1e-20",
                "1234567890123456", "-1e15", "999999999999999", "1000000000000000.0", "NaN", "Infinity", "-Infinity"],
    "numeric(12,2)": ["0", "-12.5", "9999999999.99"],
    "float8": [0.0, -0.0, 1.0, 0.1, 1e14, 999999999999999.0, 1e15, 123456789012345678.0, 1234567890123456.5, 1e16,
               1e20, 1e-4, 1e-5, -1.5e-7, 5e-324, 1.7976931348623157e308, "NaN", "Infinity", "-Infinity"],
    "float4": [0.1, 1e10, 3.4e38, 1e-10, 123456.79, 16777216, 1234567],
    "text": ["", " ", "plain", "a,b", 'say "hi"', "two\nlines", "cr\rlf\r\n", "\t=1", "=1+1", "@SUM(A1)", "-5", "-5.",
             "+1e5", "+49 170", "-", "--1", "＝1", "\\.", "\\", "é😀\u202e", "\u2028", "\x01\x1f\x7f", "NULL",
             "=\n1", "y;=cmd|' /C calc'!A0", "a;-5;b", "a;-5x", "\u200b=1", 'x"\t ﹣1', " @x", "x\r\n+1",
             "1|\u00a0⁺2", "-1\n", "a;-5", "a;-5\t*b", "a|+1|b", "a\r\n-5\r\nb",
             "\x01=1", "\x1f\x7f\x9b@x", "x\x85=1", "x\u2028=1", "x\x0b=1", "x\uff1b-5\uff1b", "\u3164=1", "\u2800-1",
             "\U000e0041=1", "\ufe0f＝1", "−5", "−5x", "≠1", "﬩1", "x\u037e \u180e=1", "\u034f\ufff0\u2066+1"],
    "varchar(9)": ["", "=x", "a;b"],
    "char(5)": ["", "=x", "a"],
    "name": ["=x", "plain"],
    '"char"': ["=", "a"],
    "boolean": [True, False],
    "date": ["0001-01-01", "1970-01-01", "9999-12-31"],
    "time": ["00:00", "05:17:00.5", "23:59:59.999999"],
    "timetz": ["05:17+02", "05:17:00.5-03:30"],
    "timestamp": ["0001-01-01 00:00", "2013-03-10 02:30:00.100", "9999-12-31 23:59:59.999999"],
    "timestamptz": ["1900-01-01 00:00+00", "2013-07-01 12:00:00.000120+02", "9999-12-31 00:00+00"],
    "interval": ["1 mon", "-1 year 2 mons -3 days 04:05:06.789", "50 hours", "-0.5 s", "1 mon -30 days", "0",
                 "1 day 25:00:00", "-1 hour", "0.000001 seconds", "-3 days -0.5 seconds", "90 minutes"],
    "uuid": ["0" * 32, "f" * 32],
    "bytea": [b"", b"\x00\xff=", b"=1"],
    "json": ['{"b": 1, "c": [true, null, "é\\n"]}', '"=x"', "-5", "null", "[]", "1.5", '"a,b"', "true",
             "1234567890123456", "-999999999999999", '{"note": "a;=1+1"}', '["=x", "y|-1", -2]',
             '{"b": 1.50,\n\t"a": 1e2}', '"\\n"'],
    "jsonb": ["12345678901234567890", "-1000000000000000",
              '{"b":1.25,"a":{"x":[]}}', '"=x"', '"-5"', "null", "[1, 2]"],
    "integer[]": ["{}", "{1,NULL,-2}", "{{1,2},{3,4}}"],
    "text[]": ["{}", '{"=1+1","a;=1+1","a,b",NULL,"q\\"q"}'],
    "float8[]": ["{1,1e20,0.00001,0.1,NaN}"],
    "numeric[]": ["{1.50,-2}"],
    "boolean[]": ["{t,f}"],
    "date[]": ["{2013-01-01}"],
    "interval[]": ["{1 mon,-2 days}"],
    "json[]": ['{"{\\"b\\": 1.50,\n \\"a\\": 1}"}'],
    "int4range": ["[1,5)", "empty", "(,3]"],
    "tstzrange": ["[2026-01-01 00:00+00,)"],
    "int4multirange": ["{[1,3),[5,7)}"],
    "int4range[]": ['{"[1,5)"}'],
    "varbit": ["1", ""],
    "timestamp[]": ["{2013-01-01 05:17:00.5}"],
    "uuid[]": ["{00000000-0000-0000-0000-000000000000}"],
    "inet": ["::ffff:1.2.3.4", "10.0.0.1", "10.0.0.1/8", "::1"],
    "cidr": ["10.0.0.0/8"],
    "macaddr": ["08:00:2b:01:02:03"],
    "money": ["12", "-12"],
    "bit(3)": ["101"],
    "point": ["(1,2)"],
    "tsvector": ["a b"],
    "oid": [7],
}  # fmt: skip

DRAWN: dict[str, st.SearchStrategy[Any]] = {
    "text": st.text(st.characters(exclude_characters="\x00", exclude_categories=["Cs"]), max_size=8)
    | st.from_regex(r"\A[=+\-@\t\r\n＝＋－＠]?[ 0-9.eE+,\"'\n-]{0,6}\Z")
    | st.text("=+-−＝≠\x01\x1b\x85\x0b\u2028\u037e；;|\t \u200b\ufe0f\u3164\U000e0041x5", max_size=8),
    "float8": st.floats(),
    "float4": st.floats(width=32),
    "numeric": st.decimals(allow_nan=False, allow_infinity=False, min_value=-(10**20), max_value=10**20, places=6),
    "bigint": st.integers(-(2**63), 2**63 - 1),
    "timestamp": st.datetimes(),
    "timestamptz": st.datetimes(timezones=st.just(dt.UTC)),
    "time": st.times(),
    "interval": st.timedeltas(dt.timedelta(days=-9999), dt.timedelta(days=9999)),
    "bytea": st.binary(max_size=8),
    "boolean": st.booleans(),
}  # fmt: skip


def is_changed(kind: str) -> bool:
    """Whether a mapping is given something that has another text than the database's."""
    return kind.endswith(("[]", "range")) or kind in ("interval", "json", "jsonb", "inet")


def check(postgresql: sa.Connection, types: Sequence[str], rows: Sequence[Sequence[Any]], dialect: Dialect) -> None:
    for name in ("csv", "ndjson"):
        with postgresql.begin_nested() as savepoint:
            select = values(postgresql, types, rows)
            copied, by_python = both_routes(select, name, dialect, postgresql, batch_rows=7)
            columns = columns_of(select)
            mapped = None
            if not any(map(is_changed, types)):
                mapped, _ = part(ChunkSource(columns, select, map_batch=list, batch_rows=7), name, dialect, postgresql)
            savepoint.rollback()
        assert copied == by_python
        assert mapped in (None, copied)


@pytest.mark.parametrize("dialect", DIALECTS)
@pytest.mark.parametrize("kind", TYPES)
def test_a_column_alone(postgresql: sa.Connection, kind: str, dialect: Dialect) -> None:
    rows = [[None], *([value] for value in TYPES[kind]), [None]]
    check(postgresql, [kind], rows, dialect)


@pytest.mark.parametrize("dialect", DIALECTS)
def test_all_types_in_one_row(postgresql: sa.Connection, dialect: Dialect) -> None:
    longest = max(map(len, TYPES.values()))
    rows = [[values[number % len(values)] for values in TYPES.values()] for number in range(longest)]
    check(postgresql, list(TYPES), [*rows, [None] * len(TYPES)], dialect)


@pytest.mark.slow
@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data(), st.sampled_from(DIALECTS))
def test_random_rows(postgresql: sa.Connection, data: st.DataObject, dialect: Dialect) -> None:
    types = data.draw(st.lists(st.sampled_from(sorted(DRAWN)), min_size=1, max_size=5))
    row = st.tuples(*(st.none() | DRAWN[kind] for kind in types))
    check(postgresql, types, data.draw(st.lists(row, min_size=1, max_size=12)), dialect)


@pytest.mark.parametrize("zone", ["UTC", "Etc/UTC", "GMT", "Europe/London", "Europe/Berlin", "America/St_Johns"])
def test_moments_are_in_utc_whatever_the_sessions_zone(postgresql: sa.Connection, zone: str) -> None:
    postgresql.exec_driver_sql(f"SET LOCAL TimeZone = '{zone}'")
    rows = [["2013-07-01 12:00:00+02"], ["2013-01-01 00:00:00.5+00"]]
    select = values(postgresql, ["timestamptz"], rows)
    copied, encoded = both_routes(select, "csv", "raw", postgresql)
    assert copied == encoded == b"2013-07-01 10:00:00+00\n2013-01-01 00:00:00.5+00\n"
    for written in both_routes(select, "ndjson", "raw", postgresql):
        moments = [next(iter(json.loads(line).values())) for line in written.splitlines()]
        assert moments == ["2013-07-01T10:00:00+00:00", "2013-01-01T00:00:00.5+00:00"]


@pytest.mark.parametrize("name", ["csv", "xlsx"])
def test_unusual_session_settings_give_the_same_text(postgresql_engine: sa.Engine, name: str) -> None:
    """On every route, in what the SELECT itself casts to text too. How it reads dates stays the session's."""
    types = ["date", "timestamp", "bytea", "float8", "interval"]
    row = "'01/02/2026'::date, '2013-07-01 12:00'::timestamp, '\\xff'::bytea, 0.1::float8, '1 day 1 hour'::interval"
    select = sa.select(*(sa.column(kind) for kind in types), sa.cast(sa.column("interval"), sa.Text).label("shown"))
    select = select.select_from(sa.text(f"(VALUES ({row.replace(':', chr(92) + ':')})) AS v ({', '.join(types)})"))
    unusual = {
        "DateStyle": "SQL, DMY",
        "bytea_output": "escape",
        "extra_float_digits": "0",
        "IntervalStyle": "iso_8601",
    }

    def unusually(connection: sa.Connection) -> None:
        for setting, value in unusual.items():
            connection.exec_driver_sql(f"SET {setting} = '{value}'")
        connection.commit()

    engine = sa.create_engine(postgresql_engine.url, poolclass=sa.NullPool)
    with reading(engine, seconds=60, ready=unusually) as connection:
        written, _ = part(ChunkSource(columns_of(select), select), name, "raw", connection)
    if name == "csv":
        assert written == b"2026-02-01,2013-07-01 12:00:00,\\xff,0.1,P1DT1H,1 day 01:00:00\n"
    else:
        book = CalamineWorkbook.from_filelike(io.BytesIO(whole(columns_of(select), [written], name)))
        day, _, *rest = book.get_sheet_by_index(0).to_python()[1]
        assert (day, rest) == (dt.date(2026, 2, 1), ["\\xff", 0.1, "P1DT1H", "1 day 01:00:00"])


@pytest.mark.parametrize("bound", [None, 0], ids=["nothing bound", "bound"])
def test_percent_signs_are_what_the_author_wrote(postgresql: sa.Connection, bound: int | None) -> None:
    rate = sa.literal_column("format('%s%%', '10')", sa.Text).label("rate %")
    select = sa.select(rate, sa.literal_column("7 % 4", sa.Integer).label("%(x)s"))
    if bound is not None:
        select = select.where(sa.literal(bound) == 0)
    source = ChunkSource(columns_of(select), select)
    assert part(source, "csv", "raw", postgresql)[0] == b"10%,3\n"
    assert json.loads(part(source, "ndjson", "raw", postgresql)[0]) == {"rate %": "10%", "%(x)s": 3}
