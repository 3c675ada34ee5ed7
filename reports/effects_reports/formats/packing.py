"""Compression of parts: each is a gzip member or a zstd frame of its own, and their concatenation is a whole file.

The same bytes always give the same packed bytes: no time is written (RFC 1952's MTIME is 0), and the input is cut
into blocks of one size, whatever pieces it came in.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from typing import Any, Protocol

from effects import ConfigurationError
from effects.extend import Writer
from effects_reports.formats.base import Packing
from effects_reports.formats.columnar.arrow import RecordBatchPacker
from effects_reports.formats.columnar.parquet import RowGroupPacker
from effects_reports.formats.fragments import FragmentPacker

BLOCK_BYTES = 256 * 1024
GZIP_LEVEL = 4  # twice as fast as 6, for a twentieth more bytes
ZSTD_LEVEL = 3
_GZIP_WINDOW = 31  # 2^15 bytes, and 16 for a gzip header


class Compressor(Protocol):
    """What gives packed bytes for plain ones, now or later."""

    def compress(self, block: bytes, /) -> bytes: ...
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

    def write(self, data: bytes) -> None:
        """Append."""
        if self._compressor is None:
            self._put(data)
            return
        self._waiting += data
        whole = len(self._waiting) // BLOCK_BYTES * BLOCK_BYTES
        for start in range(0, whole, BLOCK_BYTES):
            self._put(self._compressor.compress(bytes(self._waiting[start : start + BLOCK_BYTES])))
        del self._waiting[:whole]

    def end(self) -> None:
        """Complete the member or frame."""
        if self._compressor is not None:
            self._put(self._compressor.compress(bytes(self._waiting)) + self._compressor.flush())

    def _put(self, data: bytes) -> None:
        if data:
            self._out.write(data)
            self.bytes += len(data)


def check_packing(packing: Packing) -> None:
    """Refuse what is not installed.

    Raises:
        ConfigurationError: names the extra.
    """
    if packing:
        _COMPRESSORS[packing]()


def _gzip() -> Compressor:
    return zlib.compressobj(GZIP_LEVEL, zlib.DEFLATED, _GZIP_WINDOW)


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
        raise ConfigurationError("reports in zstd need a compressor: pip install 'effects-toolkit[zstd]'") from error
    return lambda: zstandard.ZstdCompressor(ZSTD_LEVEL).compressobj()


_COMPRESSORS: dict[str, Callable[[], Compressor]] = {
    "gz": _gzip, "zst": _zstd, "sheet": FragmentPacker, "parquet": RowGroupPacker, "arrow": RecordBatchPacker,
}  # fmt: skip
