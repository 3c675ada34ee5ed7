"""How a workbook looks: number formats, widths, totals, the reader's zone, texts that are cut, a cover."""

from __future__ import annotations

import datetime as dt
import io
from decimal import Decimal
from typing import Any

import openpyxl
import pytest
from python_calamine import CalamineWorkbook

from effects_reports import DefinitionInvalid, Workbook
from effects_reports.formats import fragments as sheet_rows
from effects_reports.formats.base import ChunkSource, Column
from effects_reports.formats.xlsx import Xlsx
from effects_reports.readers import write_chunk
from tests.formats.books import EURO, NAMES, workbook
from tests.formats.rows import Memory

at = dt.datetime.fromisoformat  # without a zone
MOMENT = dt.datetime(2026, 7, 14, 22, 30, tzinfo=dt.UTC)
ROWS = [(n, n / 8, Decimal(n) * 5 / 4, dt.date(2026, 1, n), MOMENT, f"note {n}") for n in range(1, 8)]


def opened(file: bytes) -> Any:
    return openpyxl.load_workbook(io.BytesIO(file))


def test_columns_have_their_formats_and_widths() -> None:
    options = Workbook(formats={"share": "0.0%", "price": EURO, "day": "dd.mm.yyyy", "id": "000"}, widths={"note": 40})
    sheet = opened(workbook(ROWS, options)).active

    formats = [cell.number_format for cell in sheet[3]]
    assert formats == ["000", "0.0%", EURO, "dd.mm.yyyy", "yyyy-mm-dd hh:mm:ss", "General"]
    assert [cell.value for cell in sheet[3]][:4] == [2, 0.25, 2.5, at("2026-01-02")]
    assert sheet.column_dimensions["F"].width == 40
    assert sheet.column_dimensions["D"].width >= len("dd.mm.yyyy")
    assert [cell.value for cell in sheet[1]] == [name.title() for name in NAMES]


def test_nulls_texts_and_booleans_in_a_formatted_column_stay_what_they_are() -> None:
    sheet = opened(workbook([(None,), ("x",), (True,), (10**20,), (1,)], Workbook(formats={"id": "0.00"}))).active
    assert [(row[0].value, row[0].number_format) for row in sheet.iter_rows(min_row=2)] == [
        (None, "General"), ("x", "General"), (True, "General"), (str(10**20), "General"), (1, "0.00"),
    ]  # fmt: skip


def test_totals_are_formulas_over_every_sheet(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sheet_rows, "ROWS_MAX", 3)
    options = Workbook(sheet="R & D", totals=("share", "price"), formats={"price": EURO})
    book = opened(workbook(ROWS, options))

    assert book.sheetnames == ["R & D", "R & D 2", "R & D 3"]
    last = [cell.value for cell in list(book["R & D 3"].iter_rows())[-1]]
    assert last == [
        "Total", "=SUM('R & D'!B2:B4,'R & D 2'!B2:B4,'R & D 3'!B2:B2)",
        "=SUM('R & D'!C2:C4,'R & D 2'!C2:C4,'R & D 3'!C2:C2)", None, None, None,
    ]  # fmt: skip
    assert list(book["R & D 3"].iter_rows())[-1][2].number_format == EURO
    assert book.calculation.fullCalcOnLoad


def test_totals_of_a_full_sheet_stand_in_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sheet_rows, "ROWS_MAX", 3)
    book = opened(workbook(ROWS[:3], Workbook(totals=("id",))))
    assert [sheet.max_row for sheet in book] == [4, 2]
    assert book["Report 2"]["A2"].value == "=SUM('Report'!A2:A4)"


def test_moments_are_shown_in_the_readers_zone() -> None:
    beyond = dt.datetime.max.replace(tzinfo=dt.UTC)
    rows = [(MOMENT,), (MOMENT.replace(month=1),), (MOMENT.replace(tzinfo=None),), (None,), (beyond,)]
    for read in (_by_openpyxl, _by_calamine):
        seen = read(workbook(rows, Workbook(zone="Europe/Berlin")))
        assert seen[:2] == [at("2026-07-15T00:30"), at("2026-01-14T23:30")]
        assert seen[2] == MOMENT.replace(tzinfo=None)
        assert seen[4].year == 9999


def _by_openpyxl(file: bytes) -> list[Any]:
    return [row[0].value for row in opened(file).active.iter_rows(min_row=2)]


def _by_calamine(file: bytes) -> list[Any]:
    book = CalamineWorkbook.from_filelike(io.BytesIO(file))
    return [row[0] for row in book.get_sheet_by_index(0).to_python(skip_empty_area=False)[1:]]


@pytest.mark.parametrize("value", ["x" * 40_000, "😀" * 20_000, "x" + "😀" * 20_000, {"a": "y" * 40_000}])
def test_a_long_text_is_cut_to_what_a_cell_holds_and_counted(value: Any) -> None:
    file = Xlsx(Workbook(long_texts="cut"))
    columns = (Column("note", "Note"),)
    fits = "z" * 32_767
    part, out = Memory(), Memory()
    write_chunk(ChunkSource(columns, rows=[(value,), (fits,), (None,)]), file, None, part, progress=lambda *_: None)
    file.assemble(columns, [[bytes(part.data)]], out)

    [cut, whole, empty] = _by_openpyxl(bytes(out.data))
    assert (file.texts_cut, whole, empty) == (1, fits, None)
    assert cut.endswith("…")
    assert 32_765 <= len(cut.encode("utf-16-le")) // 2 <= 32_767


def test_a_cover_has_a_title_and_facts() -> None:
    book = opened(workbook(ROWS, Workbook(cover="Orders <1>", sheet="about"), {"Rows": "7", "since": "=1+1"}))
    assert book.sheetnames == ["About_", "about"]
    assert list(book["About_"].values) == [
        ("Orders <1>", None), (None, None), ("Rows", "7"), ("since", "=1+1"),
    ]  # fmt: skip
    assert book["about"].max_row == 8


def test_a_fact_that_is_too_long_for_a_cell_is_cut() -> None:
    book = opened(workbook(ROWS, Workbook(cover="Orders"), {"ids": "1, " * 20_000}))
    assert book["About"]["B3"].value == f"{('1, ' * 20_000)[:32_766]}…"


@pytest.mark.parametrize(("options", "says"), [
    ({"sheet": "a/b"}, "sheet is 'a/b'"),
    ({"sheet": "x" * 26}, "give 1 to 25 characters"),
    ({"formats": {"id": ""}}, "the format of 'id'"),
    ({"widths": {"id": 0}}, "the width of 'id'"),
    ({"zone": "Europe/Atlantis"}, "there is no zone 'Europe/Atlantis'"),
    ({"long_texts": "drop"}, "give refuse or cut"),
    ({"totals": ("sum",)}, "names the column 'sum'"),
])  # fmt: skip
def test_what_no_workbook_can_be_is_refused(options: Any, says: str) -> None:
    with pytest.raises(DefinitionInvalid, match=says):
        Workbook(**options).check("report 'x'", NAMES)
