"""Whole files: the same parts give the same bytes, and independent readers find in them what was put in."""

from __future__ import annotations

import csv
import datetime as dt
import gzip
import io
import json
import random
import struct
import subprocess
import sys
import time
import zlib
from collections.abc import Callable, Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import duckdb
import polars as pl
import pytest
import sqlalchemy as sa
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st
from python_calamine import CalamineWorkbook
from sqlalchemy.dialects.postgresql import JSONB

from effects.extend.files import Writer
from effects_reports.errors import ReportInvalid, ReportRefused
from effects_reports.formats.base import ChunkSource, Column, Dialect
from effects_reports.formats.fragments import joined_crc
from effects_reports.formats.ndjson import Ndjson
from effects_reports.formats.opening import open_format
from effects_reports.formats.packing import PackedFile, Packer
from effects_reports.formats.values import JsonText
from effects_reports.readers import batches, write_chunk
from effects_reports.readers import columns_of as values_of
from tests.formats.rows import Memory, columns_of, part, whole

Rows = Callable[[random.Random], Iterator[bytes]]

COLUMNS = (Column("id", "Order no."), Column("note", "=Note"), Column("amount", "Amount"))
MORNING, NOON = dt.datetime.fromisoformat("2013-01-01T05:17"), dt.datetime.fromisoformat("2013-07-01T12:00")
ROWS = [(1, "plain", Decimal("12.50")), (2, 'a "quoted", one\r\nand a line', Decimal("-0.10")), (3, "=1+1", None)]
PLAIN = ("csv", "ndjson", "xlsx")
PACKED = ("csv.gz", "csv.zst", "ndjson.gz", "ndjson.zst")


def file_of(
    rows: list[Any], columns: tuple[Column, ...] = COLUMNS, name: str = "csv", dialect: Dialect = "excel"
) -> bytes:
    """A file of one part for every two rows."""
    parts = [part(ChunkSource(columns, rows=rows[at : at + 2]), name, dialect)[0] for at in range(0, len(rows), 2)]
    return whole(columns, parts, name, dialect)


@pytest.mark.parametrize("name", [*PLAIN, *PACKED])
def test_the_same_rows_give_the_same_bytes(name: str) -> None:
    first = file_of(ROWS * 20, name=name)
    began = time.time()
    while time.time() - began < 0.001:  # the clock has moved on
        pass
    assert file_of(ROWS * 20, name=name) == first


def test_a_moment_that_lies_beyond_the_calendar_in_utc_keeps_its_zone() -> None:
    columns, zone = (Column("at", "at"),), dt.timezone(dt.timedelta(hours=-5))
    rows = [(dt.datetime(9999, 12, 31, 23, 59, 59, tzinfo=zone),)]
    assert file_of(rows, columns, dialect="raw") == b"at\n9999-12-31 23:59:59-05\n"
    assert file_of(rows, columns, "ndjson") == b'{"at":"9999-12-31T23:59:59-05:00"}\n'
    read = CalamineWorkbook.from_filelike(io.BytesIO(file_of(rows, columns, "xlsx"))).get_sheet_by_index(0).to_python()
    assert read == [["at"], [rows[0][0].replace(tzinfo=None)]]


def test_csv_in_its_three_dialects() -> None:
    assert file_of(ROWS) == (
        b"\xef\xbb\xbfOrder no.,'=Note,Amount\r\n1,plain,12.50\r\n"
        b'2,"a ""quoted"", one\r\nand a line",-0.10\r\n3,\'=1+1,\r\n'
    )
    assert file_of(ROWS, dialect="rfc4180") == file_of(ROWS)[3:]
    assert file_of(ROWS, dialect="raw") == (
        b'Order no.,=Note,Amount\n1,plain,12.50\n2,"a ""quoted"", one\r\nand a line",-0.10\n3,=1+1,\n'
    )


@pytest.mark.parametrize("headers", [["ID", "Note"], ["IDENT 1", "a,b"], ["ID"], ["ID,1", "Note"], ["Id", "Note"]])
@pytest.mark.parametrize("dialect", ["rfc4180", "raw", "excel"])
def test_no_file_begins_as_one_of_sylk(dialect: Dialect, headers: list[str], tmp_path: Path) -> None:
    """Excel takes a file that begins with `ID` for one of SYLK, and warns; every reader takes a quoted name."""
    columns = tuple(Column(f"c{number}", header) for number, header in enumerate(headers))
    data, row = file_of([["1"] * len(headers)], columns, dialect=dialect), ["1"] * len(headers)
    assert not data.startswith(b"ID")
    assert gzip.decompress(file_of([row], columns, "csv.gz", dialect)) == data
    assert list(csv.reader(io.StringIO(data.decode("utf-8-sig"), newline=""))) == [headers, row]
    file = tmp_path / "file.csv"
    file.write_bytes(data)
    assert pl.read_csv(file).columns == headers
    if dialect != "excel":  # behind a byte order mark DuckDB reads no field in quotes
        assert duckdb.read_csv(str(file), sep=",", header=True).columns == headers


@pytest.mark.parametrize("dialect", ["excel", "rfc4180", "raw"])
def test_csv_is_read_back(dialect: Dialect) -> None:
    text = file_of(ROWS, dialect=dialect).decode("utf-8-sig")
    read = list(csv.reader(io.StringIO(text, newline="")))
    guard = "" if dialect == "raw" else "'"
    assert read[0] == ["Order no.", f"{guard}=Note", "Amount"]
    assert read[2] == ["2", ROWS[1][1], "-0.10"]
    assert read[3] == ["3", f"{guard}=1+1", ""]


def test_ndjson_is_read_back() -> None:
    lines = file_of(ROWS, name="ndjson").decode().splitlines()
    assert [json.loads(line, parse_float=Decimal) for line in lines] == [
        dict(zip(("id", "note", "amount"), row, strict=True)) for row in ROWS
    ]


BIG = 2**53


def test_big_integers_are_texts_where_that_is_asked_for() -> None:
    columns = tuple(Column(name, name) for name in ("n", "amount", "text", "document", "float", "12345678901234567890"))
    rows = [
        (BIG, Decimal(BIG), f"id: {BIG}", {"ids": [BIG, -BIG, BIG - 1, 0.12345678901234567], "12345678901234567": '"'},
         1e300, BIG + 1),
        (1 - BIG, Decimal(f"{BIG}.0"), f'" {BIG}', JsonText(f'{{"id": {BIG}, "x": {BIG}.5, "e": {BIG}e-20}}'),
         5e15, None),
    ]  # fmt: skip
    file = Ndjson(big_integers="text")
    first, second = map(json.loads, file.encode(columns, list(zip(*rows, strict=True))).splitlines())
    assert list(first.values()) == [
        str(BIG), str(BIG), f"id: {BIG}",
        {"ids": [str(BIG), f"-{BIG}", BIG - 1, 0.12345678901234567], "12345678901234567": '"'}, 1e300, str(BIG + 1),
    ]  # fmt: skip
    assert second["document"] == {"id": str(BIG), "x": BIG + 0.5, "e": BIG * 1e-20}
    assert (second["n"], second["amount"], second["text"], second["float"]) == (1 - BIG, float(BIG), f'" {BIG}', 5e15)
    numbers = Ndjson().encode(columns, list(zip(*rows, strict=True)))
    assert json.loads(numbers.splitlines()[0])["n"] == BIG


def test_postgresql_writes_big_integers_as_python_does(postgresql: sa.Connection) -> None:
    select = sa.text(
        f"SELECT {BIG}::bigint AS n, -{BIG}::numeric AS amount, '{BIG}'::text AS text, "
        f"jsonb_build_object('id', {BIG}, 'text', '{BIG}', 'small', 7) AS document, ARRAY[{BIG}, 1] AS list"
    ).columns(n=sa.BigInteger, amount=sa.Numeric, text=sa.Text, document=JSONB, list=sa.ARRAY(sa.BigInteger))
    rows = sa.select(select.subquery("rows"))
    file = Ndjson(big_integers="text")
    copied = Memory()
    source = ChunkSource(columns_of(rows), rows)
    assert write_chunk(source, file, postgresql, copied, progress=lambda rows, size: None).route == "copy"
    assert json.loads(copied.data) == {
        "n": str(BIG), "amount": f"-{BIG}", "text": str(BIG), "list": [str(BIG), 1],
        "document": {"id": str(BIG), "text": str(BIG), "small": 7},
    }  # fmt: skip
    [batch] = batches(source, postgresql, file)
    assert file.encode(source.columns, values_of(source, [*batch])) == bytes(copied.data)


@pytest.mark.parametrize("name", PACKED)
def test_a_packed_file_holds_the_plain_one(name: str) -> None:
    """As readers see it that end with the first member or frame."""
    packed = file_of(ROWS * 50, name=name)
    plain, _, kind = name.rpartition(".")
    reader: Any = zlib.decompressobj(31) if kind == "gz" else zstandard.ZstdDecompressor().decompressobj()
    assert reader.decompress(packed) == file_of(ROWS * 50, name=plain)
    assert (reader.eof, reader.unused_data) == (True, b"")
    if kind == "gz":
        assert packed[4:8] == bytes(4)  # no time


@pytest.mark.parametrize("parts", [0, 1])
@pytest.mark.parametrize("name", PACKED)
def test_a_packed_file_without_rows_is_one(name: str, parts: int) -> None:
    empty = [part(ChunkSource(COLUMNS, rows=[]), name)[0] for _ in range(parts)]
    packed = whole(COLUMNS, empty, name)
    plain, _, kind = name.rpartition(".")
    assert packed.startswith({"gz": b"\x1f\x8b", "zst": b"\x28\xb5\x2f\xfd"}[kind])
    read = gzip.decompress(packed) if kind == "gz" else zstandard.ZstdDecompressor().decompressobj().decompress(packed)
    assert read == whole(COLUMNS, [], plain)


@pytest.mark.slow
@pytest.mark.parametrize("name", PACKED)
def test_a_large_part_is_packed_the_same_in_any_batches(name: str) -> None:
    rows = [(number, f"text {number * 7919 % 1000}", Decimal(number)) for number in range(30_000)]
    small = part(ChunkSource(COLUMNS, rows=rows, batch_rows=7), name)[0]
    assert part(ChunkSource(COLUMNS, rows=rows, batch_rows=10_000), name)[0] == small


def _orders(draw: random.Random) -> Iterator[bytes]:
    words = ["red", "green", "blue", "large", "small", "ship", "by", "train", "before", "noon", "call", "first"]
    for number in range(60_000):
        note = " ".join(draw.choices(words, k=draw.randrange(6)))
        yield f"{number},{draw.randrange(10**6) / 100},{draw.choice(words)}@shop.example,{note}\r\n".encode()


def _lines(draw: random.Random) -> Iterator[bytes]:
    for number in range(40_000):
        line = {"id": number, "state": draw.choice(("new", "paid")), "at": f"2026-01-{number % 28 + 1:02}"}
        yield json.dumps(line).encode() + b"\n"


def _digests(draw: random.Random) -> Iterator[bytes]:
    for _ in range(20_000):
        yield draw.randbytes(32).hex().encode() + b"\n"


@pytest.mark.parametrize("rows", [_orders, _lines, _digests])
def test_isal_makes_gzip_that_is_hardly_larger_whatever_the_rows(rows: Rows) -> None:
    """At most 1.1 of `gzip -6`, and the same bytes however they come."""
    lines = list(rows(random.Random(1)))
    data = b"".join(lines)
    packed = []
    for pieces in (lines, [data], [data[:300_001], memoryview(data)[300_001:]]):
        out = Memory()
        packer = Packer(out, "isal")
        for piece in pieces:
            packer.write(piece)
        packer.end()
        packed.append(bytes(out.data))
    assert packed[0] == packed[1] == packed[2]
    assert zlib.decompressobj(-15).decompress(packed[0]) == data
    assert len(packed[0]) <= 1.1 * len(gzip.compress(data, 6))


texts = st.text("ab\u1000", max_size=3).flatmap(lambda text: st.integers(1, 900).map(lambda times: text * times))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["csv.gz", "csv.zst"])
@settings(max_examples=40, deadline=None)
@given(parts=st.lists(st.lists(st.tuples(texts), min_size=1, max_size=4), max_size=6))
def test_parts_that_repeat_themselves_and_each_other_are_one_stream(name: str, parts: list[list[tuple[str]]]) -> None:
    """What a compressor would take from before its part, or count on as a frame's beginning, is in no part."""
    columns = (Column("a", "a"),)
    packed = [part(ChunkSource(columns, rows=rows), name, "raw")[0] for rows in parts]
    plain = [part(ChunkSource(columns, rows=rows), "csv", "raw")[0] for rows in parts]
    reader: Any = zlib.decompressobj(31) if name == "csv.gz" else zstandard.ZstdDecompressor().decompressobj()
    assert reader.decompress(whole(columns, packed, name, "raw")) == b"a\n" + b"".join(plain)
    assert (reader.eof, reader.unused_data) == (True, b"")


def test_the_length_of_a_gzip_file_counts_modulo_4_gib() -> None:
    """Its trailer has 32 bits (RFC 1952)."""

    class Large:
        plain_bytes, plain_crc32 = 5 * 2**30 + 7, 0x12345678

        def append_to(self, out: Writer) -> None:
            pass

    out = Memory()
    file = PackedFile(out, "gz")
    file.write(b"head")
    file.append(Large())  # type: ignore[arg-type]
    file.end()
    crc32, size = struct.unpack("<II", bytes(out.data[-8:]))
    assert size == (5 * 2**30 + 7 + 4) % 2**32
    assert crc32 == joined_crc(zlib.crc32(b"head"), Large.plain_crc32, Large.plain_bytes)


@pytest.mark.parametrize("name", [*PLAIN, *PACKED])
def test_a_file_without_rows_has_its_header(name: str) -> None:
    empty = whole(COLUMNS, [], name)
    assert whole(COLUMNS, [part(ChunkSource(COLUMNS, rows=[]), name)[0]], name) == empty
    if name == "csv":
        assert empty == b"\xef\xbb\xbfOrder no.,'=Note,Amount\r\n"
    elif name == "xlsx":
        assert CalamineWorkbook.from_filelike(io.BytesIO(empty)).get_sheet_by_index(0).to_python() == [
            ["Order no.", "=Note", "Amount"]
        ]


# -- XLSX --------------------------------------------------------------------------------------------------------


def test_xlsx_keeps_types() -> None:
    values = [
        7, -1.5, Decimal("12.50"), True, "text", dt.date(2013, 1, 1), MORNING,
        NOON.replace(tzinfo=dt.timezone(dt.timedelta(hours=2))), dt.time(5, 17), None,
    ]  # fmt: skip
    [_, row] = sheet([tuple(values)])
    assert row[:9] == [
        7.0, -1.5, 12.5, True, "text", dt.date(2013, 1, 1), MORNING,
        NOON.replace(hour=10), dt.time(5, 17),
    ]  # fmt: skip


def test_what_excel_would_change_is_a_text() -> None:
    kept = [
        10**15,
        -(10**16),
        Decimal("1234567890123456.7"),
        dt.date(1899, 12, 31),
        float("nan"),
        float("inf"),
        b"\x00",
    ]
    [_, row] = sheet([tuple(kept)])
    assert row == [
        "1000000000000000",
        "-10000000000000000",
        "1234567890123456.7",
        "1899-12-31",
        "NaN",
        "Infinity",
        "\\x00",
    ]


def test_xlsx_formulas_and_links_are_texts() -> None:
    texts = ["=1+1", '=HYPERLINK("http://x")', "{=1}", "http://example.com", "-5", "+1", "@x", "'x", "_x0041_", "<&>"]
    [_, row] = sheet([tuple(texts)])
    assert row == texts


def test_what_xml_cannot_hold_is_left_out() -> None:
    [_, row] = sheet([("a\x00b\x0b\x1f\ufffe\uffffc\ud800d", "tab\tnew\nline", "é😀")])
    assert row == ["abcd", "tab\tnew\nline", "é😀"]


def test_a_text_too_long_for_a_cell_is_refused_with_its_column() -> None:
    longest = "😀" * 16_383 + "x"  # 32,767 units of UTF-16
    assert sheet([(longest,)])[1] == [longest]
    with pytest.raises(ReportRefused, match="column 'c0' holds a text of 32,768 characters") as caught:
        sheet([(longest + "x",)])
    assert caught.value.code == "xlsx_cell_too_long"


def test_more_columns_than_a_sheet_holds_are_refused() -> None:
    with pytest.raises(ReportRefused, match="16,384 columns, not 16,385"):
        whole([Column(f"c{number}", "c") for number in range(16_385)], [], "xlsx")


def sheet(rows: list[tuple[Any, ...]]) -> list[list[Any]]:
    columns = tuple(Column(f"c{number}", f"c{number}") for number in range(len(rows[0])))
    book = CalamineWorkbook.from_filelike(io.BytesIO(file_of(list(rows), columns, "xlsx")))
    return book.get_sheet_by_index(0).to_python(skip_empty_area=False)


# -- what is not there -------------------------------------------------------------------------------------------


def test_csv_for_spreadsheets_whose_decimals_have_a_comma() -> None:
    berlin = dt.timezone(dt.timedelta(hours=2))
    rows = [
        (1, "a;b", Decimal("-12.50")), (2, "a,b", 0.5), (3, "1.5", NOON.replace(tzinfo=berlin)), (4, "x,=1+1", True),
        (5, "", dt.time(5, 17, 0, 500_000)), (6, None, 1e20),
    ]  # fmt: skip
    assert file_of(rows, dialect="excel_semicolon").decode() == (
        '\ufeffOrder no.;\'=Note;Amount\r\n1;"a;b";-12,50\r\n2;a,b;0,5\r\n3;1.5;2013-07-01 10:00:00\r\n'
        '4;x,\'=1+1;true\r\n5;"";05:17:00,5\r\n6;;1e+20\r\n'
    )


@pytest.mark.parametrize("name", ["", "pdf", "csv.bz2", "xlsx.gz", "CSV", "csv.gz.gz"])
def test_the_error_of_an_unknown_format_lists_the_known_ones(name: str) -> None:
    with pytest.raises(ReportInvalid, match="give one of csv, "):
        open_format(name)


def test_the_error_of_an_unknown_dialect_lists_the_known_ones() -> None:
    with pytest.raises(ReportInvalid, match="excel, excel_exact, excel_semicolon, excel_semicolon_exact, rfc4180, raw"):
        open_format("csv", "tsv")  # type: ignore[arg-type]


def test_a_packing_of_another_format_is_refused() -> None:
    for name, packing in [("csv", "isal"), ("csv.zst", "gz"), ("ndjson.gz", "later")]:
        with pytest.raises(ReportInvalid, match=repr(packing)):
            open_format(name, packing=packing)  # type: ignore[arg-type]


@pytest.mark.slow
@pytest.mark.parametrize(("module", "name", "extra"), [
    ("zstandard", "csv.zst", "zstd"), ("pyarrow", "parquet", "parquet"),
])  # fmt: skip
def test_a_missing_extra_is_named(module: str, name: str, extra: str, tmp_path: Path) -> None:
    if module == "zstandard" and sys.version_info >= (3, 14):
        pytest.skip("Python brings its own")
    opening = "from effects_reports.formats.opening import open_format"
    code = f"import sys; sys.modules[{module!r}] = None; {opening}; open_format({name!r})"
    ran = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False
    )
    assert f"pip install 'effects-toolkit-reports[{extra}]'" in ran.stderr


def test_the_exact_dialects_write_long_integers_as_the_text_of_their_digits() -> None:
    columns = (Column("n", "n"), Column("amount", "amount"))
    rows: list[Any] = [
        (10**15, Decimal(-(10**15))),
        (10**15 - 1, Decimal("1234567890123456.5")),
        (True, Decimal("1E+15")),
    ]
    assert file_of(rows, columns, dialect="excel_exact").decode("utf-8-sig") == (
        'n,amount\r\n"=""1000000000000000""","=""-1000000000000000"""\r\n'
        '999999999999999,1234567890123456.5\r\ntrue,"=""1000000000000000"""\r\n'
    )
    assert file_of(rows, columns, dialect="excel_semicolon_exact").decode("utf-8-sig") == (
        'n;amount\r\n"=""1000000000000000""";"=""-1000000000000000"""\r\n'
        '999999999999999;1234567890123456,5\r\ntrue;"=""1000000000000000"""\r\n'
    )
