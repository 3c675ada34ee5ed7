"""Values beyond Python: in files as PostgreSQL prints them, refused in mappings, kept as keys."""

from __future__ import annotations

import datetime as dt
import io
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from python_calamine import CalamineWorkbook

from effects_reports.errors import ReportRefused
from effects_reports.formats.base import ChunkSource, Column
from effects_reports.source.wide_values import read_wide_values
from tests.formats.rows import columns_of, numbers_by_ranges, part, values, whole

# Type → values that no type of Python's holds, in the order of the database.
WIDE = {
    "date": ["-infinity", "0044-03-15 BC", "10000-01-01", "infinity"],
    "time": ["24:00:00"],
    "timetz": ["24:00:00+05:30"],
    "timestamp": ["-infinity", "0044-03-15 12:00:00 BC", "10000-01-01 00:00:00.5", "infinity"],
    "timestamptz": ["-infinity", "0044-03-15 12:00:00+00 BC", "10000-01-01 00:00:00.5+00", "infinity"],
    "interval": ["-infinity", "infinity"],
}
# What Python holds too, between them.
ORDINARY = {
    "date": "2026-01-12", "time": "12:30:00", "timetz": "12:30:00+00", "timestamp": "2026-01-12 05:17:00",
    "timestamptz": "2026-01-12 05:17:00+00", "interval": "00:05:00",
}  # fmt: skip


@pytest.fixture
def postgresql(postgresql: sa.Connection) -> sa.Connection:
    postgresql.exec_driver_sql("SET TimeZone = 'UTC'")
    return postgresql


def _by_python(select: sa.Select[Any], name: str, connection: sa.Connection) -> bytes:
    """The file's rows by the route that XLSX takes: a column of a decorated type makes it Python's."""
    columns = tuple(Column(column.name, column.header, _Decorated()) for column in columns_of(select))
    written, result = part(ChunkSource(columns, select), name, "rfc4180", connection)
    assert result.route == "batch"
    return written


class _Decorated(sa.TypeDecorator[Any]):
    impl = sa.Text
    cache_ok = True


@pytest.mark.parametrize("name", ["csv", "ndjson"])
@pytest.mark.parametrize("kind", WIDE)
def test_both_routes_write_what_the_server_prints(kind: str, name: str, postgresql: sa.Connection) -> None:
    select = values(postgresql, [kind], [[value] for value in [*WIDE[kind], ORDINARY[kind]]])

    encoded = _by_python(select, name, postgresql)
    copied, result = part(ChunkSource(columns_of(select), select), name, "rfc4180", postgresql)

    assert result.route == "copy"
    assert encoded == copied
    if name == "csv":
        assert [line.decode() for line in copied.splitlines()][: len(WIDE[kind])] == WIDE[kind]


@pytest.mark.parametrize("kind", WIDE)
def test_a_workbook_holds_them_as_texts(kind: str, postgresql: sa.Connection) -> None:
    select = values(postgresql, [kind], [[value] for value in WIDE[kind]])

    columns = columns_of(select)
    written, _ = part(ChunkSource(columns, select), "xlsx", "excel", postgresql)

    book = CalamineWorkbook.from_filelike(io.BytesIO(whole(columns, [written], "xlsx")))
    assert book.get_sheet_by_index(0).to_python()[1:] == [[value] for value in WIDE[kind]]


@pytest.mark.parametrize("kind", WIDE)
def test_a_mapping_refuses_them_by_column_and_kind(kind: str, postgresql: sa.Connection) -> None:
    for value in WIDE[kind]:
        select = values(postgresql, ["int", kind], [[1, ORDINARY[kind]]] * 3 + [[2, value]])
        mapped = ChunkSource(columns_of(select), select, map_row=tuple)
        with pytest.raises(ReportRefused, match=r"'column 1'.*beyond what Python can hold") as refused:
            part(mapped, "csv", "raw", postgresql)
        assert refused.value.code == "value_out_of_range"


def test_the_connection_is_left_as_it_was(postgresql_engine: sa.Engine) -> None:
    with postgresql_engine.connect() as connection:
        read_wide_values(connection, mapped=False)
        assert connection.exec_driver_sql("SELECT 'infinity'::date").scalar() == "infinity"
        pooled = connection.connection.driver_connection
    with postgresql_engine.connect() as connection:
        assert connection.connection.driver_connection is pooled
        with pytest.raises(sa.exc.DataError):
            connection.exec_driver_sql("SELECT 'infinity'::date").scalar()


KEYS = {
    "date": (sa.Date, [*WIDE["date"][:2], "2026-01-12", *WIDE["date"][2:]]),
    "time": (sa.Time, ["12:30:00", "24:00:00"]),
    "timestamp": (sa.DateTime, [*WIDE["timestamp"][:2], "2026-01-12 05:17:00", *WIDE["timestamp"][2:]]),
    "timestamptz": (
        sa.DateTime(timezone=True),
        [*WIDE["timestamptz"][:2], "2026-01-12 05:17:00+00", *WIDE["timestamptz"][2:]],
    ),
    "float8": (sa.Double, ["-Infinity", "-1.5", "Infinity", "NaN"]),
    "float4": (sa.Float, ["-0.1", "0.1", "1.1"]),
    "numeric": (sa.Numeric, ["-Infinity", "-1.5", "Infinity", "NaN"]),
    "numeric(30)": (sa.Numeric(asdecimal=False), ["1234567890123456781", "1234567890123456782"]),
}


@pytest.mark.parametrize("composite", [False, True], ids=["single", "composite"])
@pytest.mark.parametrize("size", [1, 2])
@pytest.mark.parametrize("kind", KEYS)
def test_as_keys_they_bound_chunks(kind: str, size: int, composite: bool, postgresql: sa.Connection) -> None:
    """Every row is in exactly one range."""
    type_, texts = KEYS[kind]
    postgresql.exec_driver_sql(f"CREATE TEMPORARY TABLE keyed (k {kind}, n serial)")
    for text in reversed(texts):
        postgresql.exec_driver_sql(f"INSERT INTO keyed (k) VALUES ('{text}')")
    table = sa.table("keyed", sa.column("k", type_), sa.column("n", sa.Integer))
    read_wide_values(postgresql, mapped=False)

    rows = numbers_by_ranges(postgresql, sa.select(table), ("k", "n") if composite else ("k",), size)

    assert rows == list(range(len(texts), 0, -1))


@pytest.mark.parametrize(
    ("type_", "stored", "code"),
    [(sa.DateTime, "infinity", "ValueError"), (sa.Date, "12/01/2026", "ValueError"), (sa.Uuid, "x", "ValueError"),
     (sa.Enum("a", "b", name="letters"), "c", "LookupError")],
)  # fmt: skip
def test_sqlite_a_value_that_its_type_cannot_read_is_refused_by_column(
    type_: Any, stored: str, code: str, tmp_path: Path
) -> None:
    engine = sa.create_engine(f"sqlite:///{tmp_path / 'odd.db'}")
    table = sa.Table("odd", sa.MetaData(), sa.Column("id", sa.Integer), sa.Column("value", type_))
    with engine.connect() as connection:
        table.create(connection)
        connection.exec_driver_sql("INSERT INTO odd VALUES (1, ?)", (stored,))
        select = sa.select(table)
        with pytest.raises(ReportRefused, match="column 'value'") as refused:
            part(ChunkSource(columns_of(select), select), "csv", "raw", connection)
        assert refused.value.code == code
    engine.dispose()


def test_ordinary_values_stay_typed(postgresql: sa.Connection) -> None:
    read_wide_values(postgresql, mapped=False)
    moment = postgresql.exec_driver_sql("SELECT timestamptz '2026-01-12 05:17:00+00', interval '5 minutes'").one()
    assert moment == (dt.datetime(2026, 1, 12, 5, 17, tzinfo=dt.UTC), dt.timedelta(minutes=5))


def test_a_mapping_refuses_months_which_python_would_take_for_30_days(postgresql: sa.Connection) -> None:
    for value in ("1 mon", "-1 year", "1 mon -30 days"):
        select = values(postgresql, ["interval"], [["30 days"], [value]])
        with pytest.raises(ReportRefused, match=r"'column 0' \(interval\) is beyond what Python can hold") as refused:
            part(ChunkSource(columns_of(select), select, map_row=tuple), "csv", "raw", postgresql)
        assert refused.value.code == "value_out_of_range"


@pytest.mark.parametrize(("name", "written"), [
    ("csv", b'"{""b"": 1.50,\n ""a"": 1e2}"\n"""x"""\nnull\n\n5\n'),
    ("ndjson", b'{"value":{"b": 1.50,  "a": 1e2}}\n{"value":"x"}\n{"value":null}\n{"value":null}\n{"value":5}\n'),
])  # fmt: skip
def test_sqlite_a_json_document_is_what_is_stored(name: str, written: bytes, tmp_path: Path) -> None:
    engine = sa.create_engine(f"sqlite:///{tmp_path / 'json.db'}")
    table = sa.Table("documents", sa.MetaData(), sa.Column("id", sa.Integer), sa.Column("value", sa.JSON))
    with engine.connect() as connection:
        table.create(connection)
        for number, stored in enumerate(['{"b": 1.50,\n "a": 1e2}', '"x"', "null", None, 5]):
            connection.exec_driver_sql("INSERT INTO documents VALUES (?, ?)", (number, stored))
        select = sa.select(table.c.value).order_by(table.c.id)
        assert part(ChunkSource(columns_of(select), select), name, "raw", connection)[0] == written
    engine.dispose()


class _Shouted(sa.TypeDecorator[str]):
    impl = sa.Text
    cache_ok = True

    def process_result_value(self, value: str | None, dialect: Any) -> str | None:
        return None if value is None else value.upper()


@pytest.mark.parametrize("name", ["csv", "ndjson"])
def test_an_array_of_an_apps_own_type_is_read_by_it(name: str, postgresql: sa.Connection) -> None:
    """By Python, and not by PostgreSQL, which would write what is stored; the other columns stay what they are."""
    select = sa.select(
        sa.literal_column("ARRAY['a']", sa.ARRAY(_Shouted)).label("own"),
        sa.literal_column("interval '1 mon'", sa.Interval).label("term"),
    )  # fmt: skip
    written, result = part(ChunkSource(columns_of(select), select), name, "raw", postgresql)
    assert result.route == "batch"
    assert written == {"csv": b'"[""A""]",P1M\n', "ndjson": b'{"own":["A"],"term":"P1M"}\n'}[name]
