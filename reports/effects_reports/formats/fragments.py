"""Rows of a sheet as XML (ECMA-376, part 1, section 18.3), deflated in frames that are joined without being unpacked.

A frame is a header and a piece of a deflate stream (RFC 1951) that looks back at nothing before it and ends with a
byte, so that frames of any parts, one after the other, are one stream. It holds whole rows, about 256 KiB of XML
before they were numbered: which rows that are does not depend on their numbers.

In place of a row's number stands a mark, until it is known. A NULL is no cell, but for the first of a row: so a row of
NULLs is a row to every reader.
"""

from __future__ import annotations

import datetime as dt
import decimal
import math
import re
import struct
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache
from types import MappingProxyType
from typing import Any, NamedTuple

from effects_reports.errors import ReportRefused
from effects_reports.formats.base import Column
from effects_reports.formats.values import in_utc, text_of

_ROW_END = b"</row>"  # never part of a text, whose `<` is escaped
ROWS_MAX = 1_048_575  # of a sheet, under the header; those beyond stand in a further sheet
HEADER_ROWS = 1
MARK = "\0"
_PLACE = MARK.encode()
_MARKED_END = _PLACE + b'">'


@cache
def letters(number: int) -> str:
    """A column, from 0 on, as spreadsheets call it: A, …, Z, AA."""
    name = ""
    number += 1
    while number:
        number, place = divmod(number - 1, 26)
        name = chr(ord("A") + place) + name
    return name


def row_number(before: int) -> int:
    """The number of a row in its sheet, where so many rows of the report come before it and fill their sheets."""
    return before % ROWS_MAX + HEADER_ROWS + 1


def rows_of(xml: bytes) -> list[bytes]:
    """Whole rows, each without its end."""
    return xml.split(_ROW_END)[:-1]


def numbered(rows: Sequence[bytes], first: int) -> bytes:
    """The XML of rows of which the first has this number; behind a full sheet's last they begin the next one's."""
    numbers = _numbers(first, len(rows))
    return b"".join([row.replace(_PLACE, b"%d" % n) + _ROW_END for n, row in zip(numbers, rows, strict=True)])


def unnumbered(rows: Sequence[bytes], first: int) -> list[bytes]:
    """The rows without the numbers that `numbered` gave them."""
    numbers = _numbers(first, len(rows))
    return [row.replace(b'%d">' % n, _MARKED_END) for n, row in zip(numbers, rows, strict=True)]


def _numbers(first: int, count: int) -> list[int]:
    last = ROWS_MAX + HEADER_ROWS
    return [n if n <= last else row_number(n - HEADER_ROWS - 1) for n in range(first, first + count)]


TEXT_UNITS_MAX = 32_767  # of UTF-16, as Excel counts
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
_EMPTY, _EMPTY_FIRST = "", f'<c r="A{MARK}"></c>'
_TEXT, _TEXT_END = '<c t="inlineStr"><is><t>', "</t></is></c>"
_SPACED_TEXT = '<c t="inlineStr"><is><t xml:space="preserve">'
_NONE = type(None)

_illegal = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\ud800-\udfff\ufffe\uffff]")  # XML 1.0, section 2.2
# What needs a second look: escapes of XML, of Excel (_x0041_), line ends, spaces that a reader would strip.
_special = re.compile("[\x00-\x1f\ud800-\udfff\ufffe\uffff<>&]|_x[0-9A-Fa-f]{4}_|(?:^|\xa4)\\s|\\s(?:$|\xa4)").search
_escape_lookalikes = re.compile("(?=_x[0-9A-Fa-f]{4}_)").sub
_number = re.compile(r'^<c(?: s="\d+")?(?=><v>)').sub  # the opening of a cell that is neither a text nor a boolean
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
    cells = [
        _cells(many, column, style, looks.get(column.kind), f' r="{letters(number)}{MARK}">')
        for number, (column, many) in enumerate(zip(columns, values, strict=True))
    ]
    cells[0] = [cell or _EMPTY_FIRST for cell in cells[0]]
    row = f'<row r="{MARK}">'
    rows = f"</row>{row}".join(map("".join, zip(*cells, strict=True)))
    return f"{row}{rows}</row>".encode()


def _cells(values: Sequence[Any], column: Column, style: int, look: int | None, place: str) -> list[str]:
    """A column's cells, each with its place at the end of its tag.

    Mostly a column's values are of one type, and nothing in them needs a second look.
    """
    kinds = set(map(type, values))
    if kinds == {str} and not style and not _needs_a_look(values):
        opening = _placed(_TEXT, place)
        return [opening + value + _TEXT_END for value in values]
    if kinds == {int} and min(values) > -_EXACT_INTEGER and max(values) < _EXACT_INTEGER:
        opening = _placed(f'<c s="{look}">' if look else "<c>", place)
        return [f"{opening}<v>{value}</v></c>" for value in values]
    cells = [_EMPTY if value is None else _cell(value, column, style) for value in values]
    if look is not None:
        cells = [_number(f'<c s="{look}"', cell, 1) for cell in cells]
    return [_placed(cell, place) for cell in cells]


def _placed(cell: str, place: str) -> str:
    return cell.replace(">", place, 1)


def _needs_a_look(values: Sequence[str]) -> bool:
    return max(map(len, values)) > TEXT_UNITS_MAX // 2 or _special(_BETWEEN.join(values)) is not None


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


_LONG_KINDS = (str, dict, list, tuple)
_CHARS_ALWAYS_FIT = TEXT_UNITS_MAX // 2
_MARK = "…"


def in_zone(values: Sequence[Any], zone: dt.tzinfo) -> Sequence[Any]:
    """Moments that have a zone as a clock in this zone shows them."""
    if not any(issubclass(kind, dt.datetime) for kind in set(map(type, values))):
        return values
    return [_local(value, zone) if isinstance(value, dt.datetime) and value.tzinfo else value for value in values]


def _local(value: dt.datetime, zone: dt.tzinfo) -> dt.datetime:
    try:
        return value.astimezone(zone).replace(tzinfo=None)
    except OverflowError:  # at an end of Python's calendar
        return value.replace(tzinfo=None)


def shortened(values: Sequence[Any]) -> tuple[Sequence[Any], int]:
    """The values with texts that fit a cell, and how many were too long."""
    kinds = set(map(type, values))
    if kinds.isdisjoint(_LONG_KINDS) or (kinds == {str} and max(map(len, values)) <= _CHARS_ALWAYS_FIT):
        return values, 0
    short = [_short(value) if isinstance(value, _LONG_KINDS) else None for value in values]
    fitting = [value if text is None else text for value, text in zip(values, short, strict=True)]
    return fitting, sum(text is not None for text in short)


def _short(value: Any) -> str | None:
    """Its text, cut; None where it fits."""
    text = text_of(value).replace("\r\n", "\n")
    if len(text) <= _CHARS_ALWAYS_FIT:
        return None
    units = text.encode("utf-16-le", "surrogatepass")
    if len(units) // 2 <= TEXT_UNITS_MAX:
        return None
    return units[: 2 * (TEXT_UNITS_MAX - len(_MARK))].decode("utf-16-le", "ignore") + _MARK


_HEADER = struct.Struct("<IIIII")
_LEVEL = 5
_RAW = -15
_POLYNOMIAL = 0xEDB88320  # of CRC-32, its bits from the lowest power on


class Fragment(NamedTuple):
    """The header of a frame: rows, the number of the first, bytes of their XML, bytes deflated, CRC-32 of the XML."""

    rows: int
    first: int
    plain: int
    packed: int
    crc: int


def deflated(xml: bytes, *, last: bool = False) -> bytes:
    """A piece of a deflate stream; `last` ends the stream."""
    compressor = zlib.compressobj(_LEVEL, zlib.DEFLATED, _RAW)
    return compressor.compress(xml) + compressor.flush(zlib.Z_FINISH if last else zlib.Z_FULL_FLUSH)


def framed(rows: Sequence[bytes], first: int) -> tuple[Fragment, bytes]:
    """Rows without numbers as a frame whose first row has this one."""
    xml = numbered(rows, first)
    packed = deflated(xml)
    return Fragment(len(rows), first, len(xml), len(packed), zlib.crc32(xml)), packed


def rows_in(fragment: Fragment, packed: bytes) -> list[bytes]:
    """The rows of a frame without their numbers; what can be read of one that is broken."""
    try:
        xml = zlib.decompressobj(_RAW).decompress(packed, fragment.plain)
    except zlib.error:
        xml = b""
    return unnumbered(rows_of(xml), fragment.first)


class FragmentPacker:
    """Rows without numbers, in blocks of any size, to frames of whole rows.

    Args:
        rows_before: how many rows of the report come before these.
    """

    def __init__(self, rows_before: int) -> None:
        self._waiting = b""
        self._before = rows_before

    def compress(self, block: bytes | memoryview, /) -> bytes:
        """The frame of all rows that are whole by now; nothing where no row is."""
        data = self._waiting + block
        end = data.rfind(_ROW_END) + len(_ROW_END)
        if end < len(_ROW_END):
            self._waiting = data
            return b""
        rows, self._waiting = rows_of(data[:end]), data[end:]
        fragment, packed = framed(rows, row_number(self._before))
        self._before += len(rows)
        return _HEADER.pack(*fragment) + packed

    def flush(self) -> bytes:
        assert not self._waiting, "a part ends with a row"
        return b""


def read_frames(part: Iterable[bytes]) -> Iterator[tuple[Fragment, Iterator[bytes]]]:
    """The frames of a part, from its bytes in pieces of any size; each one's bytes must be taken before the next.

    Nothing is believed about the bytes, which are known to be whole only once the part has ended: a broken part is
    read to its end.
    """
    pieces = Pieces(part)
    while header := pieces.take(_HEADER.size):
        if len(header) == _HEADER.size:
            fragment = Fragment(*_HEADER.unpack(header))
            yield fragment, pieces.up_to(fragment.packed)


class Pieces:
    """A stream in pieces, read in others."""

    def __init__(self, pieces: Iterable[bytes]) -> None:
        self._pieces, self._rest = iter(pieces), b""

    def take(self, size: int) -> bytes:
        """So many bytes, or fewer where the stream ends."""
        return b"".join(self.up_to(size))

    def up_to(self, size: int) -> Iterator[bytes]:
        while size > 0 and (piece := self._rest or next(self._pieces, b"")):
            self._rest = piece[size:]
            taken = piece[:size]
            size -= len(taken)
            yield taken


# -- CRC-32 of joined pieces -------------------------------------------------------------------------------------


def joined_crc(first: int, second: int, second_size: int) -> int:
    """The CRC-32 of two pieces one after the other, from theirs: `first` times x^(8 size), modulo the polynomial."""
    return _times(_power(second_size), first) ^ second


@cache
def _square(number: int) -> int:
    """x^(8 · 2^number)."""
    if number == 0:
        return 1 << 23
    before = _square(number - 1)
    return _times(before, before)


def _power(size: int) -> int:
    """x^(8 size)."""
    power = 1 << 31
    for number in range(size.bit_length()):
        if size >> number & 1:
            power = _times(_square(number), power)
    return power


def _times(first: int, second: int) -> int:
    """The product of two polynomials; the highest bit is x^0."""
    product = 0
    for bit in range(31, -1, -1):
        if first >> bit & 1:
            product ^= second
        second = second >> 1 ^ (_POLYNOMIAL if second & 1 else 0)
    return product
