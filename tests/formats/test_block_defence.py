"""The defence by a look at the bytes finds what a look at every text finds, and no more than a few lines beside."""

from __future__ import annotations

import itertools

import pytest
import sqlalchemy as sa
from hypothesis import given
from hypothesis import strategies as st

from effects_reports.formats.base import ChunkSource, Column, Dialect
from effects_reports.formats.csv import Csv
from effects_reports.source.copying import BlockDefence
from tests.formats.characters import BREAKS, INVISIBLE, SIGNS
from tests.formats.rows import columns_of, part, values
from tests.support.sampling import sample

COLUMNS = (Column("first", "first"), Column("amount", "amount"), Column("last", "last"))
PLAIN = ["x", "é", "日", "ß", "😀", "'", "-5", "1", "٣", "한"]
PIECES = [*SIGNS, *INVISIBLE, *BREAKS, *PLAIN, "\n", ",", '"']
DEFENDED: tuple[Dialect, ...] = ("excel", "excel_semicolon")
Row = tuple[str | None, float | None, str | None]


def encoded(rows: list[Row], dialect: Dialect, *, defended: bool) -> bytes:
    """The rows with LF for their ends, as COPY has them."""
    file = Csv(dialect)
    file.defended, file.line_end = defended, "\n"
    return file.encode(COLUMNS, list(zip(*rows, strict=True)))


def looked_at(rows: list[Row], dialect: Dialect) -> int:
    """How many lines were taken apart for the same bytes as those of Python's own look at every text."""
    defence = BlockDefence(Csv(dialect), {0, 2})
    plain = encoded(rows, dialect, defended=False)
    block, lines = defence.defended(plain, len(rows), broken=plain.count(b"\n") != len(rows))
    assert block == encoded(rows, dialect, defended=True)
    return lines


@pytest.mark.parametrize("dialect", DEFENDED)
@pytest.mark.parametrize("sign", sample(SIGNS, 12), ids=ascii)
def test_every_sign_behind_everything_that_may_stand_before_it(sign: str, dialect: Dialect) -> None:
    befores = ["", *BREAKS, *INVISIBLE, *PLAIN, ",", '"', *map("".join, itertools.product(BREAKS, INVISIBLE[::5]))]
    for before in befores:
        text = f"{before}{sign}1+1"
        looked_at([("a", -1.5, text), (text, -1.5, None), (f"x{text}", None, f"{text};y"), ("b", 2.0, "c")], dialect)


@given(
    st.lists(
        st.tuples(
            st.none() | st.lists(st.sampled_from(PIECES), max_size=7).map("".join),
            st.none() | st.floats(),
            st.none() | st.lists(st.sampled_from(PIECES), max_size=4).map("".join),
        ),
        min_size=1,
        max_size=6,
    ),
    st.sampled_from(DEFENDED),
)
def test_any_rows(rows: list[Row], dialect: Dialect) -> None:
    looked_at(rows, dialect)


@pytest.mark.parametrize("text", [
    "plain", "2026-01-14 05:17:00+00", "a - b", "mail@shop.example", "Baden-Württemberg, Süd-Ost", "日-本", "a = b",
    'he said "no"', "C++", "x,y", "1+1", "a;b", "-12.5", "+49170",
])  # fmt: skip
def test_usual_texts_and_numbers_need_no_second_look(text: str) -> None:
    rows: list[Row] = [(text, -12.5, text), ("b", None, text), (text, 1e-7, None)]
    assert looked_at(rows, "excel") == 0


def test_a_negative_number_with_a_comma_needs_no_second_look_but_a_text_like_it_does() -> None:
    assert looked_at([("a", -12.5, "b"), ("c", -0.25, None)], "excel_semicolon") == 0
    assert looked_at([("a", 1.5, "b"), ("c", -0.25, "-12,5")], "excel_semicolon") == 1


def test_only_the_line_of_a_formula_is_taken_apart() -> None:
    rows: list[Row] = [(f"note {n}", -1.0, "=1+1" if n == 500 else "x") for n in range(1000)]
    assert looked_at(rows, "excel") == 1


def test_a_break_inside_a_text_has_all_lines_taken_apart() -> None:
    assert looked_at([("a", 1.0, "b"), ("two\nlines", 1.0, "=1")], "excel") == 2


@pytest.mark.parametrize(("share", "formulas"), [(2, True), (50, False)])
def test_a_part_tells_whether_the_server_had_better_look(postgresql: sa.Connection, share: int, formulas: bool) -> None:
    select = values(postgresql, ["text"], [["=1" if n % share == 0 else "x"] for n in range(100)])
    written, result = part(ChunkSource(columns_of(select), select), connection=postgresql)
    assert (result.suspicious, result.formulas) == (100 // share, formulas)
    by_server, result = part(ChunkSource(columns_of(select), select, formulas=True), connection=postgresql)
    assert (by_server, result.suspicious) == (written, 0)
