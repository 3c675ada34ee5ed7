"""Parts of an XLSX file: a line of JSON a row, whose cells keep their types until the workbook is written.

null, booleans, numbers and texts are themselves. A decimal is `["n", "12.50"]`; days, moments and times of day are
`["d", …]`, `["t", …]` and `["c", …]`, in ISO 8601.
"""

from __future__ import annotations

import datetime as dt
import decimal
import math
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, TypeAlias

import msgspec

from effects_reports.errors import ReportRefused
from effects_reports.formats.base import Column
from effects_reports.formats.values import in_utc, text_of

Cell: TypeAlias = bool | int | float | str | list[str] | None

TEXT_UNITS_MAX = 32_767  # of UTF-16, as Excel counts
_EXACT_INTEGER = 10**15  # Excel keeps 15 digits: an identifier with more would become another one
_EXACT_DIGITS = 15
_FIRST_DAY = dt.date(1900, 1, 1)
_illegal = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\ud800-\udfff\ufffe\uffff]")  # XML 1.0, section 2.2
_encode_lines = msgspec.json.Encoder().encode_lines
_decode_line = msgspec.json.Decoder().decode


def encode_cells(columns: Sequence[Column], values: Sequence[Sequence[Any]]) -> bytes:
    """Rows as lines; `values` are the columns' values, all of one length.

    Raises:
        ReportRefused: a text is longer than a cell of XLSX can hold.
    """
    cells = [[_cell(value, column) for value in many] for column, many in zip(columns, values, strict=True)]
    return _encode_lines(zip(*cells, strict=True))


def decode_cells(part: Iterable[bytes]) -> Iterator[list[Cell]]:
    """The rows of a part, from its bytes in pieces of any size."""
    rest = b""
    for piece in part:
        *lines, rest = (rest + piece).split(b"\n")
        yield from map(_decode_line, lines)
    assert not rest, "a part ends with a line"


def _cell(value: Any, column: Column) -> Cell:
    if value is None:
        return None
    show = _CELLS.get(type(value))
    return show(value) if show else _text(text_of(value), column)


def _text(text: str, column: Column) -> str:
    text = _illegal.sub("", text)
    if len(text) > TEXT_UNITS_MAX // 2 and (units := len(text.encode("utf-16-le")) // 2) > TEXT_UNITS_MAX:
        raise ReportRefused(
            f"column {column.name!r} holds a text of {units:,} characters; a cell of XLSX holds "
            f"{TEXT_UNITS_MAX:,}: ask for csv or ndjson, or shorten the text",
            code="xlsx_cell_too_long",
        )
    return text


def _integer(value: int) -> Cell:
    return value if -_EXACT_INTEGER < value < _EXACT_INTEGER else text_of(value)


def _float(value: float) -> Cell:
    return value if math.isfinite(value) else text_of(value)


def _decimal(value: decimal.Decimal) -> Cell:
    exact = value.is_finite() and len(value.as_tuple().digits) <= _EXACT_DIGITS and abs(value.adjusted()) < 300
    return ["n", text_of(value)] if exact else text_of(value)


def _day(value: dt.date) -> Cell:
    return ["d", value.isoformat()] if value >= _FIRST_DAY else value.isoformat()


def _moment(value: dt.datetime) -> Cell:
    """In UTC and without a zone, which no cell can have."""
    plain = in_utc(value).replace(tzinfo=None)
    return ["t", plain.isoformat()] if plain.date() >= _FIRST_DAY else text_of(value)


def _clock(value: dt.time) -> Cell:
    return ["c", value.isoformat()] if value.tzinfo is None else text_of(value)


_CELLS: dict[type, Callable[[Any], Cell]] = {
    bool: bool,
    int: _integer,
    float: _float,
    decimal.Decimal: _decimal,
    dt.datetime: _moment,
    dt.date: _day,
    dt.time: _clock,
}
