"""Parts of a sheet: its rows deflated in frames, which are joined without being unpacked.

A frame is a header and a piece of a deflate stream (RFC 1951) that looks back at nothing before it and ends with a
byte, so that frames of any parts, one after the other, are one stream. It holds whole rows, about 256 KiB of XML.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterable, Iterator
from functools import cache
from typing import NamedTuple

from effects_reports.formats.cells import ROW_END

_HEADER = struct.Struct("<IIII")
_LEVEL = 6
_RAW = -15
_POLYNOMIAL = 0xEDB88320  # of CRC-32, its bits from the lowest power on


class Fragment(NamedTuple):
    """The header of a frame: rows, bytes of their XML, bytes deflated, CRC-32 of the XML."""

    rows: int
    plain: int
    packed: int
    crc: int


def deflated(xml: bytes, *, last: bool = False) -> bytes:
    """A piece of a deflate stream; `last` ends the stream."""
    compressor = zlib.compressobj(_LEVEL, zlib.DEFLATED, _RAW)
    return compressor.compress(xml) + compressor.flush(zlib.Z_FINISH if last else zlib.Z_FULL_FLUSH)


class FragmentPacker:
    """Rows, in blocks of any size, to frames of whole rows."""

    def __init__(self) -> None:
        self._waiting = b""

    def compress(self, block: bytes | memoryview, /) -> bytes:
        """The frame of all rows that are whole by now; nothing where no row is."""
        data = self._waiting + block
        end = data.rfind(ROW_END) + len(ROW_END)
        if end < len(ROW_END):
            self._waiting = data
            return b""
        rows, self._waiting = data[:end], data[end:]
        packed = deflated(rows)
        return _HEADER.pack(rows.count(ROW_END), len(rows), len(packed), zlib.crc32(rows)) + packed

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
