"""Texts that a spreadsheet would run as formulas, by every form of a sign, and behind whatever a program strips."""

from __future__ import annotations

import csv
import datetime as dt
import io
import re
import unicodedata
import zipfile
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from effects_reports.formats.base import ChunkSource, Column, Dialect
from effects_reports.formats.csv import DEFENCES, Csv
from tests.formats.characters import BREAKS, INVISIBLE, SIGNS
from tests.formats.rows import part, whole

defended = DEFENCES[","].defended


def written(rows: list[tuple[Any, ...]], columns: tuple[Column, ...], name: str = "csv") -> bytes:
    """A file of these rows."""
    return whole(columns, [part(ChunkSource(columns, rows=rows), name)[0]], name)


@pytest.mark.parametrize(
    "text",
    ["=1+1", "+1+1", "-1+1", "@SUM(1)", "\t=1", "\r=1", "\n=1", "=cmd|' /C calc'!A0", "-2+3+cmd|' /C calc'!A0", "＝1+1",
     "＋1", "－1", "＠x", '=HYPERLINK("http://x?"&A1)', "-", "--1", "+49 170 555", "-1,5", "-0x1", "-1e", "=", "-1\n"],
)  # fmt: skip
def test_what_looks_like_a_formula_gets_an_apostrophe(text: str) -> None:
    assert defended(text)[0] == "'"


@pytest.mark.parametrize(
    "text", ["-5", "-12.50", "+49170", "-.5", "-5.", "+1e-7", "-1E9", "", "'=1", "a=1", "1-1", "a;b", "a;-5;b", "x|1"]
)
def test_numbers_and_other_texts_stay(text: str) -> None:
    assert defended(text) == text


def test_no_field_of_the_corpus_begins_like_a_formula() -> None:
    """Each beginning, before each of some bodies, read back as a spreadsheet would take it."""
    corpus = [
        (f"{first}{body}",) for first in "=+-@\t\r\n＝＋－＠" for body in ("1+1", "cmd|x", '"a",b', "SUM(A1)", "")
    ]
    text = written(corpus, (Column("x", "x"),)).decode("utf-8-sig")
    read = [row[0] for row in csv.reader(io.StringIO(text, newline=""))][1:]
    assert [field[0] for field in read] == ["'"] * len(corpus)
    assert [field.replace("'", "") for field in read] == [body.replace("'", "") for [body] in corpus]


def _cells_of(line: str, separator: str) -> list[str]:
    """How a spreadsheet with this list separator divides text of ours, and what it strips before it looks."""
    records = csv.reader(io.StringIO(line, newline=""), delimiter=separator)
    return [cell.strip(' "\u00a0\u200b\ufeff\u2003') for record in records for cell in record]


@pytest.mark.parametrize(("dialect", "separator"), [
    *(("excel", separator) for separator in ";\t|"), *(("rfc4180", separator) for separator in ";\t|"),
    *(("excel_semicolon", separator) for separator in ",\t|"),
])  # fmt: skip
def test_no_separator_of_a_locale_makes_a_cell_that_begins_like_a_formula(dialect: Dialect, separator: str) -> None:
    """Each sign in each of its forms, behind anything that begins a cell somewhere, in a first and a second column."""
    signs = "=+-@＝＋－＠﹢﹣﹦﹫⁺⁻⁼₊₋₌"
    between = ["", " ", '"', '""', "\u00a0", "\u200b", "\ufeff", '\u2003 "']
    breaks = ["", ";", ",", "\t", "|", "\r\n", "\n", "\r", ";;", "x;", "x\n", 'x";', 'x"\n', "1,2;", "\n\n"]
    texts = [f"{begin}{skipped}{sign}cmd|' /C calc'!A0" for begin in breaks for skipped in between for sign in signs]
    columns = (Column("first", "first"), Column("second", "second"))
    for text in texts:
        line = Csv(dialect).encode(columns, [[text], [text]]).decode()
        cells = [cell for cell in _cells_of(line, separator) if cell]
        dangerous = [cell for cell in cells if cell[0] in signs]
        assert dangerous == [], (text, line)


@pytest.mark.parametrize("separator", [";", "\t", "|"])
def test_a_number_inside_a_text_is_no_beginning_of_a_formula(separator: str) -> None:
    """Between two breaks of different kinds, or at the text's end, the cell goes on: `-1,5*cmd|…`, in German."""
    breaks = [";", "\t", "|", "\r", "\n", ""]
    texts = [
        f"x{begin}{number}{end}*cmd|' /C calc'!A0" for begin in breaks for end in breaks for number in ("-1", "+.5")
    ]
    columns = (Column("first", "first"), Column("second", "second"))
    for first in [*texts, *(f"x{begin}-1" for begin in breaks)]:
        line = Csv("excel").encode(columns, [[first], ["5*cmd|' /C calc'!A0"]]).decode()
        cells = [cell for cell in _cells_of(line, separator) if cell and cell[0] in "+-"]
        assert [cell for cell in cells if cell not in ("-1", "+.5")] == [], line


def _shown(cell: str) -> str:
    """A cell as a program that drops everything invisible and normalises the rest would take it."""
    visible = "".join(char for char in cell if char not in INVISIBLE)
    return unicodedata.normalize("NFKC", visible)


def _is_dangerous(cell: str) -> bool:
    return _shown(cell)[:1] in set("=+-@\u2212")


@pytest.mark.parametrize("char", SIGNS, ids=ascii)
def test_every_form_of_a_sign_is_defended_behind_everything_invisible(char: str) -> None:
    undefended = [
        ascii(skipped) for skipped in INVISIBLE if _is_dangerous(defended(f"{skipped}{char}cmd|' /C calc'!A0"))
    ]
    assert undefended == []


@pytest.mark.parametrize("end", BREAKS, ids=ascii)
def test_no_cell_separator_lets_a_formula_begin_after_it(end: str) -> None:
    for skipped in INVISIBLE:
        cells = defended(f"x{end}{skipped}=cmd|' /C calc'!A0").partition(end)
        assert not _is_dangerous(cells[2]), ascii(skipped)


@given(
    st.lists(st.sampled_from([*INVISIBLE, *BREAKS, *SIGNS, "x", "1", "-5", "'"]), max_size=9), st.sampled_from(BREAKS)
)
def test_no_combination_makes_a_cell_a_formula(pieces: list[str], separator: str) -> None:
    """Plain numbers are no formulas; one is a whole cell, or a whole text."""
    cells = re.split("[\r\n]" if separator in "\r\n" else re.escape(separator), defended("".join(pieces)))
    assert [cell for cell in cells if _is_dangerous(cell) and not re.fullmatch("[-+\u2212]?[0-9]+", cell)] == []


@given(st.lists(st.sampled_from([*INVISIBLE, *BREAKS, *SIGNS, "a"]), max_size=20).map("".join))
def test_in_xlsx_every_text_is_a_text(text: str) -> None:
    archive = zipfile.ZipFile(io.BytesIO(written([(text or "a",)], (Column("x", "x"),), "xlsx")))
    cells = archive.read("xl/worksheets/sheet1.xml").decode()
    assert "<f" not in cells
    assert cells.count('t="inlineStr"') + cells.count('t="s"') == cells.count("<c ") == 2


@pytest.mark.parametrize("value", [{"note": "a;=1+1"}, ["x", "a;=1+1"], ("a;=1+1",), {"a;=1+1"}], ids=repr)
def test_texts_inside_documents_and_arrays_are_defended(value: Any) -> None:
    assert b"a;'=1+1" in written([(value,)], (Column("x", "x"),))


def test_only_texts_are_defended() -> None:
    columns = tuple(Column(name, name) for name in "abcd")
    assert (
        written([(-5, Decimal("-1.5"), -0.5, dt.timedelta(days=-1))], columns).splitlines()[1] == b"-5,-1.5,-0.5,P-1D"
    )
