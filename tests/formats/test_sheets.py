"""Workbooks joined from parts: as two independent readers see them, however their rows were divided."""

from __future__ import annotations

import csv
import datetime as dt
import io
import os
import subprocess
import zipfile
import zlib
from decimal import Decimal
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import openpyxl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from python_calamine import CalamineWorkbook

from effects_reports.formats.base import ChunkSource, Column
from effects_reports.formats.fragments import FragmentPacker, joined_crc, letters, read_frames
from effects_reports.formats.xlsx import Archive, Xlsx
from tests.formats.books import NASTY
from tests.formats.rows import Memory, part, whole
from tests.support import needs

at = dt.datetime.fromisoformat  # without a zone


def columns(count: int) -> tuple[Column, ...]:
    return tuple(Column(f"c{number}", f"head {number}") for number in range(count))


def workbook(rows: list[tuple[Any, ...]], size: int, error: int = 0) -> bytes:
    """A file of one part for every `size` rows, each of which was planned so many rows further below."""
    named = columns(len(rows[0]))
    sources = [
        ChunkSource(named, rows=rows[at : at + size], rows_before=at + error) for at in range(0, len(rows), size)
    ]
    return whole(named, [part(source, "xlsx")[0] for source in sources], "xlsx")


def by_openpyxl(file: bytes, sheet: int = 0) -> list[list[Any]]:
    book = openpyxl.load_workbook(io.BytesIO(file))
    return [[cell.value for cell in row] for row in book.worksheets[sheet].iter_rows()]


def by_calamine(file: bytes, sheet: int = 0) -> list[list[Any]]:
    book = CalamineWorkbook.from_filelike(io.BytesIO(file))
    rows = book.get_sheet_by_index(sheet).to_python(skip_empty_area=False)
    return [[None if cell == "" else cell for cell in row] for row in rows]


@pytest.mark.parametrize("read", [by_openpyxl, by_calamine])
def test_two_readers_find_every_value(read: Any) -> None:
    rows = [(text, number, Decimal(number) / 8, number % 2 == 0) for number, text in enumerate(NASTY)]
    header, *seen = read(workbook(rows, 7))
    assert header == [f"head {number}" for number in range(4)]
    empty = "" if read is by_openpyxl else None  # the other does not distinguish it from NULL
    if read is by_openpyxl:  # which leaves Excel's escapes in inline texts as they are
        seen = [[_unescaped(text), *rest] for text, *rest in seen]
    assert seen == [[text or empty, number, number / 8, number % 2 == 0] for number, text in enumerate(NASTY)]


def test_libreoffice_finds_every_value(tmp_path: Path) -> None:
    """On demand. It shows a cell as a person sees it: numbers by their format, booleans as words."""
    if not os.environ.get("EFFECTS_TEST_LIBREOFFICE"):
        pytest.skip("on demand: EFFECTS_TEST_LIBREOFFICE=1")
    rows = [(text, number, Decimal(number) / 8, number % 2 == 0) for number, text in enumerate(NASTY)]
    (tmp_path / "nasty.xlsx").write_bytes(workbook(rows, 7))
    profile, target = (
        f"-env:UserInstallation={(tmp_path / 'profile').as_uri()}",
        "csv:Text - txt - csv (StarCalc):44,34,76",
    )
    command = [needs.program("soffice"), profile, "--headless", "--convert-to", target, "--outdir", str(tmp_path)]
    subprocess.run([*command, str(tmp_path / "nasty.xlsx")], check=True, capture_output=True, timeout=240)
    with (tmp_path / "nasty.csv").open(newline="", encoding="utf-8-sig") as file:
        header, *seen = list(csv.reader(file))
    assert header == [f"head {number}" for number in range(4)]
    assert [(text, int(number), Decimal(share), word) for text, number, share, word in seen] == [
        (text, number, share, str(is_even).upper()) for text, number, share, is_even in rows
    ]


def _unescaped(text: str) -> str:
    return text.replace("_x005F_", "_")


texts = st.text(st.characters(exclude_categories=["Cs", "Cc"], exclude_characters="\ufffe\uffff"), max_size=20)
cells = st.none() | st.integers(-(10**15) + 1, 10**15 - 1) | st.booleans() | texts | st.floats(allow_nan=False)


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(cells, cells, texts), min_size=1, max_size=30), st.integers(1, 30))
def test_any_rows_divided_anyhow(rows: list[tuple[Any, ...]], size: int) -> None:
    file = workbook(rows, size)
    assert zipfile.ZipFile(io.BytesIO(file)).testzip() is None
    unpacked = [
        zipfile.ZipFile(io.BytesIO(each)).read("xl/worksheets/sheet1.xml") for each in (file, workbook(rows, 30))
    ]
    assert unpacked[0] == unpacked[1]
    _, *seen = by_openpyxl(file)
    assert seen == [[_as_cell(value) for value in row] for row in rows]


def _as_cell(value: Any) -> Any:
    infinite = isinstance(value, float) and value in (float("inf"), float("-inf"))
    return ("Infinity" if value > 0 else "-Infinity") if infinite else value


def test_rows_beyond_a_sheet_stand_in_a_further_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("effects_reports.formats.fragments.ROWS_MAX", 10)
    file = workbook([(number, "x") for number in range(25)], 5)
    assert openpyxl.load_workbook(io.BytesIO(file)).sheetnames == ["Report", "Report 2", "Report 3"]
    for read in (by_openpyxl, by_calamine):
        sheets = [read(file, number) for number in range(3)]
        assert [sheet[0] for sheet in sheets] == [["head 0", "head 1"]] * 3
        assert [row[0] for sheet in sheets for row in sheet[1:]] == list(range(25))
        assert [len(sheet) for sheet in sheets] == [11, 11, 6]


@pytest.mark.parametrize("rows_max", [1, 4, 10, 1000])
@pytest.mark.parametrize("error", [0, 1, 3, 999, 10**9])
def test_rows_have_the_numbers_of_their_places_wherever_they_were_planned(
    rows_max: int, error: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A chunk that expected other rows before it changes no byte of the file."""
    monkeypatch.setattr("effects_reports.formats.fragments.ROWS_MAX", rows_max)
    rows = [(number, f'r="A{number}"', None if number % 3 else "x", f'{number}">') for number in range(25)]
    file = workbook(rows, 5, error)
    assert file == workbook(rows, 5)
    with zipfile.ZipFile(io.BytesIO(file)) as archive:
        sheets = [archive.read(name) for name in archive.namelist() if "/sheet" in name]
    assert len(sheets) == -(-25 // rows_max)
    for sheet in sheets:
        data = ElementTree.fromstring(sheet).find("{*}sheetData")
        assert data is not None
        assert [row.get("r") for row in data] == [str(number) for number in range(1, len(data) + 1)]
        for row in data:
            full = "ABCD" if len(row) == 4 else "ABD"
            assert [cell.get("r") for cell in row] == [f"{name}{row.get('r')}" for name in full]


def test_columns_beyond_z_have_their_letters() -> None:
    assert [letters(number) for number in (0, 25, 26, 701, 702, 16_383)] == ["A", "Z", "AA", "ZZ", "AAA", "XFD"]
    file = workbook([tuple(range(703))], 1)
    assert by_openpyxl(file)[1] == by_calamine(file)[1] == list(range(703))


def test_line_ends_are_lf() -> None:
    [_, row] = by_openpyxl(workbook([("a\r\nb\rc\nd",)], 1))
    assert row == ["a\nb\nc\nd"]


@pytest.mark.parametrize("moment", [
    at("2024-02-29T23:59:59.999900"), at("2024-02-29T23:59:59.500000"),
    at("9999-12-31T23:59:59.999999"), at("2024-02-29T23:59:59.499999"),
])  # fmt: skip
def test_no_moment_becomes_the_next_day(moment: dt.datetime) -> None:
    [_, [seen, clock]] = by_openpyxl(workbook([(moment, moment.time())], 1))
    assert seen.replace(microsecond=0) == moment.replace(microsecond=0)
    assert clock.replace(microsecond=0) == dt.time(23, 59, 59)


def test_days_on_which_programs_disagree_are_texts() -> None:
    [_, row] = by_openpyxl(workbook([(dt.date(1900, 2, 28), dt.date(1900, 3, 1), at("1900-02-28T05:00"))], 1))
    assert row == ["1900-02-28", at("1900-03-01"), "1900-02-28 05:00:00"]


def test_columns_of_days_and_moments_are_wide_enough() -> None:
    file = workbook([(None, "x", None), (dt.date(2024, 1, 1), "x", at("2024-01-01T05:00"))], 1)
    sheet = openpyxl.load_workbook(io.BytesIO(file)).worksheets[0]
    assert (sheet.freeze_panes, sheet.cell(1, 1).font.b) == ("A2", True)
    wide = openpyxl.load_workbook(io.BytesIO(workbook([(dt.date(2024, 1, 1), "x", at("2024-01-01T05:00"))], 1)))
    assert [wide.worksheets[0].column_dimensions[name].width for name in "AC"] == [11.0, 19.0]


# -- fragments and archives --------------------------------------------------------------------------------------


@settings(max_examples=100, deadline=None)
@given(st.binary(max_size=300), st.binary(max_size=300))
def test_the_crc_of_joined_pieces(first: bytes, second: bytes) -> None:
    assert joined_crc(zlib.crc32(first), zlib.crc32(second), len(second)) == zlib.crc32(first + second)


@settings(max_examples=100, deadline=None)
@given(st.lists(st.integers(1, 40), min_size=1, max_size=20), st.integers(1, 60), st.integers(1, 60))
def test_frames_come_back_from_pieces_of_any_size(widths: list[int], block: int, piece: int) -> None:
    rows = b"".join(b"<row>" + b"x" * width + b"</row>" for width in widths)
    packer = FragmentPacker(0)
    packed = b"".join(packer.compress(rows[at : at + block]) for at in range(0, len(rows), block)) + packer.flush()

    inflate, rows_seen = zlib.decompressobj(-15), 0
    seen = b""
    for fragment, pieces in read_frames(packed[at : at + piece] for at in range(0, len(packed), piece)):
        plain = inflate.decompress(b"".join(pieces))
        assert (len(plain), zlib.crc32(plain)) == (fragment.plain, fragment.crc)
        rows_seen += fragment.rows
        seen += plain
    assert (seen, rows_seen) == (rows, len(widths))


@settings(max_examples=100, deadline=None)
@given(st.binary(max_size=400))
def test_a_broken_part_is_read_to_its_end(broken: bytes) -> None:
    """Only there is it known to be broken."""
    ended = []

    def pieces() -> Any:
        yield broken[:200] or b"x"
        yield broken[200:] or b"x"
        ended.append(True)

    Xlsx().assemble(columns(2), [pieces()], Memory())
    assert ended


def test_an_archive_beyond_4_gib_is_read_by_others(tmp_path: Path) -> None:
    path, before = tmp_path / "large.zip", 5 * 2**30
    with path.open("wb") as file:
        file.seek(before)  # a hole: it takes no room
        archive = Archive(file)  # type: ignore[arg-type]
        archive._written = before
        archive.add("a/name.xml", b"text" * 1000)
        archive.add("b.xml", b"")
        archive.end()
    with zipfile.ZipFile(path) as unzipped:
        assert unzipped.namelist() == ["a/name.xml", "b.xml"]
        assert (unzipped.read("a/name.xml"), unzipped.testzip()) == (b"text" * 1000, None)
