"""Compression of parts: each is a gzip member or a zstd frame of its own, and their concatenation is a whole file.

The same bytes always give the same packed bytes: no time is written (RFC 1952's MTIME is 0), and the input is cut
into blocks of one size, whatever pieces it came in.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from effects import ConfigurationError
from effects.extend import Writer
from effects_reports.formats.base import Packing
from effects_reports.formats.columnar.arrow import record_batch
from effects_reports.formats.columnar.gathering import GROUP_BYTES, FrameOf, GroupPacker
from effects_reports.formats.columnar.parquet import row_group
from effects_reports.formats.fragments import FragmentPacker

BLOCK_BYTES = 256 * 1024
# Changing one changes the bytes of runs that are planned: a change is a new Packing.
GZIP_LEVEL = 4  # twice as fast as 6, for a twentieth more bytes
ISAL_LEVEL = 2  # nine times as fast as gzip's 6, for a thirtieth more bytes, of most rows
ISAL_SIZE_MAX = 1.1  # of gzip's 6; what becomes larger, as short rows that repeat themselves do, is zlib's
ZSTD_LEVEL = 3
SUFFIXES: Mapping[Packing, str] = {"": "", "gz": ".gz", "isal": ".gz", "zst": ".zst"}
CONTENT_TYPES: Mapping[Packing, str] = {
    "gz": "application/gzip", "isal": "application/gzip", "zst": "application/zstd",
}  # fmt: skip
_GZIP_WINDOW = 31  # 2^15 bytes, and 16 for a gzip header


class Compressor(Protocol):
    """What gives packed bytes for plain ones, now or later."""

    def compress(self, block: bytes | memoryview, /) -> bytes: ...
    def flush(self) -> bytes: ...


class Packer:
    """Writes plain bytes packed. `end` completes the part; the writer's `finish` is the caller's.

    Attributes:
        bytes: how many were written so far.
    """

    def __init__(self, out: Writer, packing: Packing) -> None:
        self.bytes = 0
        self._out = out
        self._compressor = _COMPRESSORS[packing]() if packing else None
        self._waiting = bytearray()

    def write(self, data: bytes | memoryview) -> None:
        """Append."""
        if self._compressor is None:
            self._put(data)
            return
        self._waiting += data
        whole = len(self._waiting) // BLOCK_BYTES * BLOCK_BYTES
        with memoryview(self._waiting) as waiting:
            for start in range(0, whole, BLOCK_BYTES):
                with waiting[start : start + BLOCK_BYTES] as block:
                    self._put(self._compressor.compress(block))
        del self._waiting[:whole]

    def end(self) -> None:
        """Complete the member or frame."""
        if self._compressor is not None:
            self._put(self._compressor.compress(bytes(self._waiting)) + self._compressor.flush())

    def _put(self, data: bytes | memoryview) -> None:
        if data:
            self._out.write(data)
            self.bytes += len(data)


class IsalOrZlib:
    """A gzip member by ISA-L, or by zlib where a part's first block shows that ISA-L makes too much of such rows.

    The block alone decides: the same rows give the same bytes.
    """

    def __init__(self, isal: Callable[[], Compressor]) -> None:
        self._isal = isal
        self._chosen: Compressor | None = None

    def compress(self, block: bytes | memoryview, /) -> bytes:
        if self._chosen is None:
            self._chosen = self._isal() if self._is_small(block) else _gzip()
        return self._chosen.compress(block)

    def flush(self) -> bytes:
        assert self._chosen is not None, "a part has rows"
        return self._chosen.flush()

    def _is_small(self, block: bytes | memoryview) -> bool:
        sizes = [
            len(compressor.compress(block)) + len(compressor.flush())
            for compressor in (self._isal(), zlib.compressobj(6, zlib.DEFLATED, _GZIP_WINDOW))
        ]
        return sizes[0] <= ISAL_SIZE_MAX * sizes[1]


def open_packer(out: Writer, packing: Packing) -> Packer | GroupPacker:
    """What takes all that the format's `encode` gives, and writes a part of it."""
    frame_of = _GROUPS.get(packing)
    return GroupPacker(out, frame_of, GROUP_BYTES[packing]) if frame_of else Packer(out, packing)


def check_packing(packing: Packing) -> None:
    """Refuse what is not installed.

    Raises:
        ConfigurationError: names the extra.
    """
    if packing:
        _COMPRESSORS[packing]()


def quickest_gzip() -> Packing:
    """What to plan a gzip file with: ISA-L where it is installed, else zlib."""
    try:
        check_packing("isal")
    except ConfigurationError:
        return "gz"
    return "isal"


def _gzip() -> Compressor:
    return zlib.compressobj(GZIP_LEVEL, zlib.DEFLATED, _GZIP_WINDOW)


def _isal() -> Compressor:
    try:
        from isal import isal_zlib  # noqa: PLC0415 - an extra
    except ImportError as error:
        raise ConfigurationError(
            "this report was planned by a worker with ISA-L: pip install 'effects-toolkit-reports[isal]'"
        ) from error
    return IsalOrZlib(lambda: isal_zlib.compressobj(ISAL_LEVEL, isal_zlib.DEFLATED, _GZIP_WINDOW))


def _zstd() -> Compressor:
    compressor: Compressor = _zstd_maker()()
    return compressor


def _zstd_maker() -> Callable[[], Any]:
    """Python's own from 3.14 on, else that of the extra."""
    try:
        from compression import zstd  # type: ignore[import-not-found, unused-ignore] # noqa: PLC0415
    except ImportError:
        pass
    else:
        return lambda: zstd.ZstdCompressor(ZSTD_LEVEL)
    try:
        import zstandard  # noqa: PLC0415 - an extra
    except ImportError as error:
        text = "reports in zstd need a compressor: pip install 'effects-toolkit-reports[zstd]'"
        raise ConfigurationError(text) from error
    return lambda: zstandard.ZstdCompressor(ZSTD_LEVEL).compressobj()


_COMPRESSORS: dict[str, Callable[[], Compressor]] = {"gz": _gzip, "isal": _isal, "zst": _zstd, "sheet": FragmentPacker}
_GROUPS: dict[str, FrameOf] = {"parquet": row_group, "arrow": record_batch}
