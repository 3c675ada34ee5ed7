"""Parquet and Arrow files joined from parts: as four independent readers see them, however their rows were divided."""

from __future__ import annotations

import datetime as dt
import io
import uuid
from collections.abc import Callable
from decimal import Decimal
from typing import Any, TypeAlias

import duckdb
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import sqlalchemy as sa
from sqlalchemy.types import TypeDecorator

from effects_reports.errors import DefinitionInvalid, ReportRefused
from effects_reports.formats import arrow, parquet
from effects_reports.formats.arrow import with_kinds
from effects_reports.formats.base import ChunkSource, Column
from effects_reports.formats.opening import open_format
from effects_reports.formats.parquet import _footer_of, _footer_start
from effects_reports.formats.values import ServerText
from tests.formats.rows import Memory, columns_of, part, whole

Rows: TypeAlias = list[tuple[Any, ...]]
BERLIN = dt.timezone(dt.timedelta(hours=1))
at = dt.datetime.fromisoformat
COLUMNS = tuple(
    Column(name, name.title(), kind)
    for name, kind in {
        "whole": sa.BigInteger(), "share": sa.Float(), "price": sa.Numeric(20, 4), "paid": sa.Boolean(),
        "day": sa.Date(), "clock": sa.Time(), "moment": sa.DateTime(), "zoned": sa.DateTime(timezone=True),
        "raw": sa.LargeBinary(), "note": sa.Text(), "ident": sa.Uuid(),
    }.items()
)  # fmt: skip
IDENT = uuid.UUID("00000000-0000-4000-8000-00000000000f")
NASTY: Rows = [
    (2**63 - 1, 0.1, Decimal("1.0000"), True, dt.date(1, 1, 1), dt.time(0), at("0001-01-01"),
     at("2026-01-14T05:17:00.000001+00:00"), b"", "", IDENT),
    (-(2**63), -1e308, Decimal("-9999999999999999.9999"), False, dt.date(9999, 12, 31), dt.time(23, 59, 59, 999999),
     at("9999-12-31T23:59:59.999999"), at("2026-03-29T02:30:00").replace(tzinfo=BERLIN), b"\x00\xff", "=1+1", IDENT),
    (0, float("inf"), Decimal(0), True, dt.date(1900, 2, 28), dt.time(12), at("1969-12-31T23:59:59.5"),
     at("1969-12-31T23:59:59.5+00:00"), b"PAR1", 'a\r\n"b";\t\u2028😀\x00', IDENT),
    (None,) * len(COLUMNS),
    (7, 5e-324, Decimal("0.0001"), False, dt.date(2024, 2, 29), dt.time(1, 2, 3), at("2024-02-29T23:59:59.9999"),
     at("2024-02-29T23:59:59.9999+00:00"), b"x" * 5000, "007" * 1000, IDENT),
]  # fmt: skip


def plain(row: tuple[Any, ...]) -> tuple[Any, ...]:
    """As a typed file holds it: moments in UTC, a UUID as its text."""
    return tuple(
        str(value) if isinstance(value, uuid.UUID)
        else value.astimezone(dt.UTC) if isinstance(value, dt.datetime) and value.tzinfo else value
        for value in row
    )  # fmt: skip


def file_of(rows: Rows, size: int, name: str) -> bytes:
    """A file of one part for every `size` rows."""
    starts = range(0, len(rows), size)
    parts = [part(ChunkSource(COLUMNS, rows=rows[start : start + size]), name)[0] for start in starts]
    return whole(with_kinds(COLUMNS), parts, name)


def by_pyarrow(file: bytes, name: str) -> Rows:
    table = pq.read_table(io.BytesIO(file)) if name == "parquet" else pa.ipc.open_file(file).read_all()
    return list(zip(*(column.to_pylist() for column in table.columns), strict=True))


def by_pandas(file: bytes, name: str) -> Rows:
    kept = {"dtype_backend": "pyarrow"}
    frame = (
        pd.read_parquet(io.BytesIO(file), **kept) if name == "parquet" else pd.read_feather(io.BytesIO(file), **kept)
    )
    return list(zip(*(pa.array(frame[column]).to_pylist() for column in frame.columns), strict=True))


def by_polars(file: bytes, name: str) -> Rows:
    frame = pl.read_parquet(io.BytesIO(file)) if name == "parquet" else pl.read_ipc(io.BytesIO(file))
    return frame.rows()


def by_duckdb(file: bytes, name: str, folder: Any) -> Rows:
    path = folder / "report.parquet"
    path.write_bytes(file)
    with duckdb.connect() as connection:
        connection.execute("SET TimeZone = 'UTC'")
        return connection.execute("SELECT * FROM read_parquet(?)", [str(path)]).fetchall()


READERS: dict[str, Callable[..., Rows]] = {"pyarrow": by_pyarrow, "pandas": by_pandas, "polars": by_polars}


@pytest.mark.parametrize("name", ["parquet", "arrow"])
@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("size", [1, 2, 5])
def test_every_reader_finds_every_value(reader: str, name: str, size: int) -> None:
    assert READERS[reader](file_of(NASTY, size, name), name) == list(map(plain, NASTY))


@pytest.mark.parametrize("size", [1, 5])
def test_duckdb_finds_every_value(size: int, tmp_path: Any) -> None:
    seen = by_duckdb(file_of(NASTY, size, "parquet"), "parquet", tmp_path)
    assert [tuple(_in_utc(value) for value in row) for row in seen] == list(map(plain, NASTY))


def _in_utc(value: Any) -> Any:
    return value.astimezone(dt.UTC) if isinstance(value, dt.datetime) and value.tzinfo else value


def test_the_columns_have_their_types() -> None:
    schema = pq.read_schema(io.BytesIO(file_of(NASTY, 2, "parquet")))
    assert [str(field.type) for field in schema] == [
        "int64", "double", "decimal128(20, 4)", "bool", "date32[day]", "time64[us]", "timestamp[us]",
        "timestamp[us, tz=UTC]", "binary", "string", "string",
    ]  # fmt: skip
    assert schema.names == [column.name for column in COLUMNS]


@pytest.mark.parametrize("name", ["parquet", "arrow"])
def test_a_file_without_rows_has_its_columns(name: str) -> None:
    file = whole(with_kinds(COLUMNS), [], name)
    schema = pq.read_schema(io.BytesIO(file)) if name == "parquet" else pa.ipc.open_file(file).schema
    assert schema.names == [column.name for column in COLUMNS]
    assert by_pyarrow(file, name) == []


@pytest.mark.parametrize("name", ["parquet", "arrow"])
def test_the_same_rows_give_the_same_bytes(name: str) -> None:
    assert file_of(NASTY, 2, name) == file_of(NASTY, 2, name)


def test_the_footer_lists_each_parts_rows_and_their_statistics(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arrow, "GROUP_ROWS", 1000)
    columns = (Column("n", "n", sa.Integer()),)
    parts = [
        part(ChunkSource(columns, rows=[(n,) for n in range(start, start + 2500)]), "parquet")[0]
        for start in (0, 2500)
    ]  # fmt: skip

    metadata = pq.read_metadata(io.BytesIO(whole(with_kinds(columns), parts, "parquet")))

    groups = [metadata.row_group(number) for number in range(metadata.num_row_groups)]
    assert metadata.num_rows == 5000
    assert [group.num_rows for group in groups] == [1000, 1000, 500] * 2
    assert [group.column(0).statistics.min for group in groups] == [0, 1000, 2000, 2500, 3500, 4500]


def test_what_is_read_of_a_footer_and_written_again_has_the_same_bytes() -> None:
    table = pa.table({f"c{n}": pa.array([n, None], pa.int64()) for n in range(40)})
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink, write_page_index=True, sorting_columns=[pq.SortingColumn(0)])
    data = sink.getvalue().to_pybytes()

    assert parquet.write_struct(_footer_of(data)) == data[_footer_start(data) : -8]


def test_a_footer_that_is_cut_off_is_an_error() -> None:
    file = file_of(NASTY, 5, "parquet")
    footer = file[_footer_start(file) : -8]
    for end in range(0, len(footer), 7):
        with pytest.raises((ValueError, IndexError)):
            parquet.read_struct(footer[:end])


def _broken(pieces: list[bytes]) -> Any:
    yield from pieces
    raise EOFError("the part is not what its chunk wrote")


@pytest.mark.parametrize("name", ["parquet", "arrow"])
@pytest.mark.parametrize("place", [0, 2, 5, 40, -1])
def test_a_broken_part_is_read_to_its_end(name: str, place: int) -> None:
    """There it is known to be broken, and by that name: whatever its bytes say."""
    written = bytearray(part(ChunkSource(COLUMNS, rows=NASTY), name)[0])
    written[place] ^= 0xFF

    class Once:
        def __iter__(self) -> Any:
            return _broken([bytes(written[:50]), bytes(written[50:])])

    with pytest.raises(EOFError):
        open_format(name).assemble(with_kinds(COLUMNS), [Once()], Memory())


# -- types ---------------------------------------------------------------------------------------------------------


class Cents(TypeDecorator[int]):
    impl = sa.Integer
    cache_ok = True


def test_a_column_of_a_decorated_type_has_the_type_below() -> None:
    assert [column.kind for column in with_kinds([Column("a", "a", Cents()), Column("b", "b", sa.JSON())])] == [
        "int64", "text",
    ]  # fmt: skip


@pytest.mark.parametrize(("kind", "says"), [
    (None, "'x' is not known"),
    (sa.types.NullType(), "'x' is not known"),
    (sa.Numeric(), "column 'x' is a Numeric"),
    (sa.Numeric(50, 2), "at most 38 digits"),
])  # fmt: skip
def test_a_column_of_no_type_is_refused(kind: Any, says: str) -> None:
    with pytest.raises(DefinitionInvalid, match=says):
        with_kinds([Column("x", "x", kind)])


@pytest.mark.parametrize(("kind", "value", "seen"), [
    (sa.Integer(), Decimal(5), 5),
    (sa.Integer(), True, 1),
    (sa.Float(), Decimal("0.5"), 0.5),
    (sa.Boolean(), 1, True),
    (sa.Numeric(5, 2), 3, Decimal("3.00")),
    (sa.Numeric(5, 2), 0.5, Decimal("0.50")),
    (sa.DateTime(), at("2026-01-14T01:00:00+01:00"), at("2026-01-14T00:00:00")),
    (sa.DateTime(timezone=True), at("2026-01-14T00:00:00"), at("2026-01-14T00:00:00+00:00")),
    (sa.LargeBinary(), memoryview(b"ab"), b"ab"),
    (sa.Text(), {"a": [1.5, None]}, '{"a": [1.5, null]}'),
    (sa.Text(), "\ud800", "?"),
    (sa.Interval(), dt.timedelta(days=1, seconds=1), "P1DT1S"),
])  # fmt: skip
def test_the_same_value_of_another_type_is_taken(kind: Any, value: Any, seen: Any) -> None:
    columns = (Column("x", "x", kind),)
    written = part(ChunkSource(columns, rows=[(value,), (None,)]), "parquet")[0]
    assert by_pyarrow(whole(with_kinds(columns), [written], "parquet"), "parquet") == [(seen,), (None,)]


@pytest.mark.parametrize(("kind", "value"), [
    (sa.Integer(), 2**63), (sa.Integer(), "5"), (sa.Integer(), 0.5), (sa.Boolean(), 2), (sa.Numeric(5, 2), 12345),
    (sa.Numeric(5, 2), Decimal("0.125")), (sa.Numeric(5, 2), Decimal("NaN")), (sa.Date(), at("2026-01-14")),
    (sa.DateTime(timezone=True), ServerText("infinity")), (sa.Date(), ServerText("10000-01-01")), (sa.Date(), 1),
    (sa.Time(), dt.time(1, tzinfo=dt.UTC)), (sa.LargeBinary(), "text"), (sa.LargeBinary(), 5), (sa.Float(), "NaN"),
])  # fmt: skip
def test_a_value_that_the_column_cannot_be_is_refused(kind: Any, value: Any) -> None:
    columns = (Column("x", "x", kind),)
    with pytest.raises(ReportRefused, match="column 'x' is "):
        part(ChunkSource(columns, rows=[(value,)]), "parquet")


def test_a_select_gives_its_types() -> None:
    table = sa.table("t", sa.column("id", sa.Integer), sa.column("at", sa.DateTime(timezone=True)))
    kinds = with_kinds(columns_of(sa.select(table, sa.func.count().label("n"), sa.literal("x").label("t"))))
    assert [column.kind for column in kinds] == ["int64", "zoned", "int64", "text"]
