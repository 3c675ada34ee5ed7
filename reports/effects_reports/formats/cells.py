"""Rows of a sheet as XML (ECMA-376, part 1, section 18.3), column by column.

Neither rows nor cells carry their number, which is optional there: so their bytes do not depend on where in the sheet
they will stand. A NULL is an empty cell.
"""

from __future__ import annotations

import datetime as dt
import decimal
import math
import re
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from effects_reports.errors import ReportRefused
from effects_reports.formats.base import Column
from effects_reports.formats.values import in_utc, text_of

TEXT_UNITS_MAX = 32_767  # of UTF-16, as Excel counts
ROW_END = b"</row>"  # never part of a text, whose `<` is escaped
BOLD, DAY, MOMENT, CLOCK, DECIMAL = 1, 2, 3, 4, 5  # styles, as `xlsx` lists them; DECIMAL with no digit after the point
DECIMALS_MAX = 30  # that a format of Excel can show
_EXACT_INTEGER = 10**15  # Excel keeps 15 digits: an identifier with more would become another one
_EXACT_DIGITS = 15
_FIRST_DAY = dt.date(1900, 3, 1)  # before it programs disagree: Excel has a 29 February 1900
_DAY_ZERO = dt.date(1899, 12, 30)
_MOMENT_ZERO = dt.datetime(1899, 12, 30)  # noqa: DTZ001 - cells have no zone
_DAY_MICROSECONDS = 86_400_000_000
_LAST_HALF_SECOND = _DAY_MICROSECONDS - 500_000  # programs that show whole seconds would round it into the next day
_SECOND = 1_000_000
_EMPTY = "<c/>"
_TEXT, _TEXT_END = '<c t="inlineStr"><is><t>', "</t></is></c>"
_SPACED_TEXT = '<c t="inlineStr"><is><t xml:space="preserve">'
_NONE = type(None)

_illegal = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\ud800-\udfff\ufffe\uffff]")  # XML 1.0, section 2.2
# What needs a second look: escapes of XML, of Excel (_x0041_), line ends, spaces that a reader would strip.
_special = re.compile("[\x00-\x1f\ud800-\udfff\ufffe\uffff<>&]|_x[0-9A-Fa-f]{4}_|(?:^|\xa4)\\s|\\s(?:$|\xa4)").search
_escape_lookalikes = re.compile("(?=_x[0-9A-Fa-f]{4}_)").sub
_number = re.compile(r'^<c(?: s="\d+")?><v>').sub  # the opening of a cell that is neither a text nor a boolean
_BETWEEN = "\xa4"


def encode_rows(
    columns: Sequence[Column],
    values: Sequence[Sequence[Any]],
    *,
    style: int = 0,
    looks: Mapping[str, int] = MappingProxyType({}),
) -> bytes:
    """Rows as XML; `values` are the columns' values, all of one length.

    Args:
        style: of texts.
        looks: the style of the other cells of a column, by its kind: a number format.

    Raises:
        ReportRefused: a text is longer than a cell can hold.
    """
    cells = [_cells(many, column, style, looks.get(column.kind)) for column, many in zip(columns, values, strict=True)]
    rows = "</row><row>".join(map("".join, zip(*cells, strict=True)))
    return f"<row>{rows}</row>".encode()


def _cells(values: Sequence[Any], column: Column, style: int, look: int | None) -> list[str]:
    """A column's cells. Mostly its values are of one type, and nothing in them needs a second look."""
    kinds = set(map(type, values))
    if kinds == {str} and not style:
        return _texts(values, column)
    if kinds == {int} and min(values) > -_EXACT_INTEGER and max(values) < _EXACT_INTEGER:
        opening = f'<c s="{look}">' if look else "<c>"
        return [f"{opening}<v>{value}</v></c>" for value in values]
    cells = [_EMPTY if value is None else _cell(value, column, style) for value in values]
    return cells if look is None else [_number(rf'<c s="{look}"><v>', cell, 1) for cell in cells]


def _texts(values: Sequence[str], column: Column) -> list[str]:
    if max(map(len, values)) > TEXT_UNITS_MAX // 2 or _special(_BETWEEN.join(values)):
        return [_text(value, column) for value in values]
    return [_TEXT + value + _TEXT_END for value in values]


def _cell(value: Any, column: Column, style: int) -> str:
    show = _CELLS.get(type(value))
    shown = show(value) if show else None
    return shown if shown is not None else _text(text_of(value), column, style)


def _text(text: str, column: Column, style: int = 0) -> str:
    """A text with LF for its line ends, and without what XML cannot represent."""
    text = _illegal.sub("", text.replace("\r\n", "\n").replace("\r", "\n"))
    if len(text) > TEXT_UNITS_MAX // 2 and (units := len(text.encode("utf-16-le")) // 2) > TEXT_UNITS_MAX:
        raise ReportRefused(
            f"column {column.name!r} holds a text of {units:,} characters; a cell of XLSX holds "
            f"{TEXT_UNITS_MAX:,}: ask for csv or ndjson, or shorten the text",
            code="xlsx_cell_too_long",
        )
    escaped = text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    spaced = text != text.strip() or "\n" in text
    opening = _SPACED_TEXT if spaced else _TEXT
    if style:
        opening = opening.replace("<c ", f'<c s="{style}" ')
    return f"{opening}{_escape_lookalikes('_x005F', escaped)}{_TEXT_END}"


# -- what is no text; None where Excel would change it -----------------------------------------------------------


def _boolean(value: bool) -> str:
    return f'<c t="b"><v>{value:d}</v></c>'


def _integer(value: int) -> str | None:
    return f"<c><v>{value}</v></c>" if -_EXACT_INTEGER < value < _EXACT_INTEGER else None


def _float(value: float) -> str | None:
    return f"<c><v>{value!r}</v></c>" if math.isfinite(value) else None


def _decimal(value: decimal.Decimal) -> str | None:
    """Shown with as many decimals as it has: 12.50 with both."""
    if not value.is_finite() or len(value.as_tuple().digits) > _EXACT_DIGITS or abs(value.adjusted()) >= 300:
        return None
    text = text_of(value)
    digits = len(text.partition(".")[2])
    style = f' s="{DECIMAL + digits}"' if digits <= DECIMALS_MAX else ""
    return f"<c{style}><v>{text}</v></c>"


def _day(value: dt.date) -> str | None:
    return f'<c s="{DAY}"><v>{(value - _DAY_ZERO).days}</v></c>' if value >= _FIRST_DAY else None


def _moment(value: dt.datetime) -> str | None:
    """In UTC and without a zone, which no cell can have."""
    plain = value if value.tzinfo is None else in_utc(value).replace(tzinfo=None)
    if plain.date() < _FIRST_DAY:
        return None
    passed = plain - _MOMENT_ZERO
    microseconds = _within_its_day(passed.seconds * _SECOND + passed.microseconds)
    return f'<c s="{MOMENT}"><v>{(passed.days * _DAY_MICROSECONDS + microseconds) / _DAY_MICROSECONDS!r}</v></c>'


def _clock(value: dt.time) -> str | None:
    if value.tzinfo is not None:
        return None
    seconds = (value.hour * 60 + value.minute) * 60 + value.second
    shown = _within_its_day(seconds * _SECOND + value.microsecond) / _DAY_MICROSECONDS
    return f'<c s="{CLOCK}"><v>{shown!r}</v></c>'


def _within_its_day(microseconds: int) -> int:
    """A day's last half second as its last second, so that no program shows the next day."""
    return microseconds if microseconds < _LAST_HALF_SECOND else _DAY_MICROSECONDS - _SECOND


_CELLS: dict[type, Callable[[Any], str | None]] = {
    bool: _boolean,
    int: _integer,
    float: _float,
    decimal.Decimal: _decimal,
    dt.datetime: _moment,
    dt.date: _day,
    dt.time: _clock,
}
