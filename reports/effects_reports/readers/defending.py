"""The defence against formulas in rows that PostgreSQL has written as CSV: a look at the bytes instead of at each text.

A sign begins a cell only behind a separator, a break or the beginning of a line, with nothing but what programs strip
between. Where a block has no such place, no text of it needs more than that: a sixth of what a regular expression on
each text costs the server. Lines that have one are taken apart, and their texts are defended one by one.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator

from effects_reports.formats.csv import Csv
from effects_reports.formats.formulas import SIGNS

# What may stand before a sign that begins a cell: a separator, a break, or a character that is stripped.
_BEFORE = rb'\x00-\x20",;|\x7f-\xff'
_STRIPPED = bytes([*range(9), *range(0x0E, 0x1C), 0x1F, *b' "', 0x7F])
_BREAKS = b",;|\t\r\n\x0b\x0c\x1c\x1d\x1e"
# The last bytes of letters of two and of three bytes, of which none is stripped and none a break.
_NO_LETTER = rb"(?<![\xc3-\xcc\xce-\xd7\xd9\xda].%s)(?<![\xe4-\xed]..%s)"
_NUMBER = rb"(?:[0-9]+(?:[.][0-9]*)?|[.][0-9]+)(?:[eE][+-]?[0-9]+)?"
_ASCII_MAX = 0x7F
_LOOK_BACK = 64


class BlockDefence:
    """What a file's dialect asks of blocks of whole rows.

    Args:
        texts: which of the columns, from 0 on, hold texts; what the others hold stays.
    """

    def __init__(self, file: Csv, texts: Collection[int]) -> None:
        self._file, self._texts = file, frozenset(texts)
        self._separator = file.separator.encode()
        separator = re.escape(self._separator)
        self._ascii = {sign.encode(): _search(sign, separator) for sign in SIGNS if sign.isascii()}
        self._ascii |= {b"\t": re.compile(rb'\t(?<![^"\n%s]\t)' % separator), b"\r": re.compile(rb'\r(?<="\r)')}
        self._wide = _wide_signs()
        self._field = re.compile(rb'("(?:[^"]|"")*"|[^"\n%s]*)([\n%s])' % (separator, separator))

    def defended(self, block: bytes, rows: int, *, broken: bool) -> tuple[bytes, int]:
        """The block with the texts of its lines defended, and how many lines had to be taken apart for it.

        Args:
            rows: how many the block has.
            broken: a text of it has several lines.
        """
        if not self._texts:
            return block, 0
        if broken:
            return self._lines(block), rows
        pieces, end, taken = [], 0, 0
        for place in self._places(block):
            start = block.rfind(b"\n", 0, place) + 1
            if place < end or not self._may_be_text(block, start, place):
                continue
            before = end
            end = block.index(b"\n", place) + 1
            pieces += [block[before:start], self._lines(block[start:end])]
            taken += 1
        return (b"".join([*pieces, block[end:]]), taken) if pieces else (block, 0)

    def _may_be_text(self, block: bytes, start: int, place: int) -> bool:
        """Whether a place in the line that begins at `start` lies in a column of texts, as far as one look tells."""
        quoted = block.find(b'"', start, place) >= 0
        return quoted or block.count(self._separator, start, place) in self._texts

    def _places(self, block: bytes) -> list[int]:
        """Where a text may be that needs a look, in order: at all of those, and at few others."""
        looks = [look for sign, look in self._ascii.items() if sign in block]
        places = [match.start() for look in looks for match in look.finditer(block)]
        places = [place for place in places if _begins_cell(block, place)]
        if not block.isascii():
            places += [match.start() for look in self._wide for match in look.finditer(block)]
        return sorted(places)

    def _lines(self, lines: bytes) -> bytes:
        return b"".join(self._fields(lines))

    def _fields(self, lines: bytes) -> Iterator[bytes]:
        column = 0
        for match in self._field.finditer(lines):
            field, end = match.groups()
            yield self._text(field) if column in self._texts and field else field
            yield end
            column = 0 if end == b"\n" else column + 1

    def _text(self, field: bytes) -> bytes:
        text = (field[1:-1].replace(b'""', b'"') if field[:1] == b'"' else field).decode()
        defended = self._file.defend(text)
        return field if defended == text else self._file.in_quotes(defended).encode()


def _search(sign: str, separator: bytes) -> re.Pattern[bytes]:
    """One sign that may begin a cell, but for a plain number that is a whole field.

    It begins with the sign itself, so that the search runs from one to the next at the memory's speed.
    """
    literal = re.escape(sign.encode())
    whole_number = rb"(?!(?<![^\n%s]%s)%s[\n%s])" % (separator, literal, _NUMBER, separator)
    no_letter = _NO_LETTER % (literal, literal)
    number = whole_number if sign in "+-" else b""
    return re.compile(rb"%s(?<![^%s]%s)%s%s" % (literal, _BEFORE, literal, no_letter, number), re.DOTALL)


def _wide_signs() -> list[re.Pattern[bytes]]:
    """The forms of signs beyond ASCII, by the byte with which they begin."""
    forms = [sign.encode() for sign in SIGNS if not sign.isascii()]
    firsts = sorted({form[:1] for form in forms})
    return [
        re.compile(re.escape(first) + b"(?:" + b"|".join(re.escape(f[1:]) for f in forms if f[:1] == first) + b")")
        for first in firsts
    ]


def _begins_cell(block: bytes, place: int) -> bool:
    """Whether what stands before is a break, a separator or the beginning, but for what programs strip."""
    before = block[max(0, place - _LOOK_BACK) : place].rstrip(_STRIPPED)
    return not before or before[-1] in _BREAKS or before[-1] > _ASCII_MAX
