"""The XML of a cover and of a row of totals."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from effects_reports.formats.base import Column
from effects_reports.formats.cells import BOLD, encode_rows
from effects_reports.formats.sheets.values import shortened

COVER = "About"
_TEXT = Column("text", "text")


def cover_rows(title: str, facts: Mapping[str, str]) -> bytes:
    """A title, an empty row, and a row for each fact, cut where it is too long for a cell."""
    columns = (_TEXT, _TEXT)
    head = encode_rows(columns, [[title, None], [None, None]], style=BOLD)
    if not facts:
        return head
    return head + encode_rows(columns, [shortened(list(many))[0] for many in (facts, facts.values())])


def totals_row(
    columns: Sequence[Column], totals: Sequence[str], sheets: Sequence[tuple[str, int]], styles: Mapping[str, int]
) -> bytes:
    """The sums of these columns over all sheets, each given by its name and its rows under the header."""
    cells = []
    for number, column in enumerate(columns):
        if column.name in totals:
            ranges = ",".join(_range(name, _letters(number), rows) for name, rows in sheets)
            style = f' s="{styles[column.kind]}"' if column.kind in styles else ""
            cells.append(f"<c{style}><f>SUM({ranges})</f></c>")
        else:
            cells.append("<c/>" if number else f'<c s="{BOLD}" t="inlineStr"><is><t>Total</t></is></c>')
    return f"<row>{''.join(cells)}</row>".encode()


def free_name(name: str, names: Sequence[str]) -> str:
    """The name, or with an underscore where a sheet has it; Excel sees no difference of case."""
    while name.lower() in {each.lower() for each in names}:
        name += "_"
    return name


def _range(sheet: str, letters: str, rows: int) -> str:
    return f"'{sheet}'!{letters}2:{letters}{max(rows, 1) + 1}".replace("&", "&amp;").replace("<", "&lt;")


def _letters(number: int) -> str:
    """A column as spreadsheets call it: A, …, Z, AA."""
    letters = ""
    number += 1
    while number:
        number, place = divmod(number - 1, 26)
        letters = chr(ord("A") + place) + letters
    return letters
