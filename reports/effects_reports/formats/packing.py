"""Compression of parts, which one file joins without unpacking them: one gzip member, or one zstd frame.

A part is a piece of a deflate stream (RFC 1951) that ends with a byte, or blocks of a zstd frame (RFC 8878, section
3.1.1.2). It looks back at nothing before it. Many readers take a file of several members or frames to end with its
first. The same bytes always give the same packed bytes: no time is written (RFC 1952's MTIME is 0), and the input is
cut into blocks of one size, whatever pieces it came in.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from effects import ConfigurationError
from effects.extend.files import Writer
from effects_reports.formats.arrow import GROUP_BYTES, FrameOf, GroupPacker, record_batch
from effects_reports.formats.base import Packing, Part
from effects_reports.formats.fragments import FragmentPacker, joined_crc
from effects_reports.formats.parquet import row_group

BLOCK_BYTES = 256 * 1024
# Changing one changes the bytes of runs that are planned: a change is a new Packing.
_GZIP_LEVEL = 4  # twice as fast as 6, for a twentieth more bytes
_ISAL_LEVEL = 2  # nine times as fast as gzip's 6, for a thirtieth more bytes, of most rows
_ISAL_SIZE_MAX = 1.1  # of gzip's 6; what becomes larger, as short rows that repeat themselves do, is zlib's
_ZSTD_LEVEL = 3
_ZSTD_WINDOW = 21  # 2 MiB, that of the level
_ZSTD_JOB_BYTES = 1024 * 1024  # compressed without a look at what comes before
SUFFIXES: Mapping[Packing, str] = {"": "", "gz": ".gz", "isal": ".gz", "zst": ".zst"}
CONTENT_TYPES: Mapping[Packing, str] = {
    "gz": "application/gzip", "isal": "application/gzip", "zst": "application/zstd",
}  # fmt: skip
_RAW = -15  # deflate without a header
_SIZE_MASK = 2**32 - 1  # a gzip trailer has the length modulo 2^32
_ZSTD_FLUSH = 1  # to the end of a block, in both libraries


class Compressor(Protocol):
    """What gives packed bytes for plain ones, now or later; `flush` completes a part."""

    def compress(self, block: bytes | memoryview, /) -> bytes: ...
    def flush(self) -> bytes: ...


class Packer:
    """Writes plain bytes packed. `end` completes the part; the writer's `finish` is the caller's.

    Args:
        rows_before: of a sheet, how many rows come before the part.

    Attributes:
        bytes: how many were written so far.
        plain_bytes, plain_crc32: of what was packed, where it is gzip.
    """

    def __init__(self, out: Writer, packing: Packing, rows_before: int = 0) -> None:
        self.bytes = self.plain_bytes = self.plain_crc32 = 0
        self._out = out
        self._compressor = _compressor(packing, rows_before)
        self._is_gzip = packing in ("gz", "isal")
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
                    self._pack(self._compressor, block)
        del self._waiting[:whole]

    def end(self) -> None:
        """Complete the part."""
        if self._compressor is not None:
            self._pack(self._compressor, bytes(self._waiting))
            self._put(self._compressor.flush())

    def _pack(self, compressor: Compressor, block: bytes | memoryview) -> None:
        if self._is_gzip:
            self.plain_bytes += len(block)
            self.plain_crc32 = zlib.crc32(block, self.plain_crc32)
        self._put(compressor.compress(block))

    def _put(self, data: bytes | memoryview) -> None:
        if data:
            self._out.write(data)
            self.bytes += len(data)


class PackedFile:
    """A file of one member or frame, or a plain one, made of a header and parts; `end` completes it."""

    def __init__(self, out: Writer, packing: Packing) -> None:
        self._out, self._packing = out, packing
        self._bytes = self._crc32 = 0
        out.write(_OPENINGS.get(packing, b""))

    def write(self, data: bytes) -> None:
        """Append bytes that are packed here."""
        packer = Packer(self._out, self._packing)
        packer.write(data)
        packer.end()
        self._count(packer.plain_bytes, packer.plain_crc32)

    def append(self, part: Part) -> None:
        """Append a part, unread where its storage can."""
        part.append_to(self._out)
        self._count(part.plain_bytes, part.plain_crc32)

    def end(self) -> None:
        """End the member or frame, of gzip with the CRC-32 and the length of all that it holds."""
        if self._packing == "zst":
            self._out.write(_ZSTD_LAST)
        elif self._packing:
            self._out.write(_DEFLATE_LAST + struct.pack("<II", self._crc32, self._bytes & _SIZE_MASK))

    def _count(self, plain_bytes: int, crc32: int) -> None:
        self._crc32 = joined_crc(self._crc32, crc32, plain_bytes)
        self._bytes += plain_bytes


# The header of a gzip member (RFC 1952, section 2.3) without a time and of no system, and that of a zstd frame (RFC
# 8878, section 3.1.1.1) without a size or a checksum, its window 2 MiB. Then the last block of each, which is empty.
_GZIP_HEADER, _DEFLATE_LAST = b"\x1f\x8b\x08\0\0\0\0\0\0\xff", b"\x03\0"
_ZSTD_HEADER, _ZSTD_LAST = b"\x28\xb5\x2f\xfd\0" + bytes([(_ZSTD_WINDOW - 10) << 3]), b"\x01\0\0"
_OPENINGS: Mapping[str, bytes] = {"gz": _GZIP_HEADER, "isal": _GZIP_HEADER, "zst": _ZSTD_HEADER}


class _PieceCompressor:
    """A library's compressor whose `flush` ends a part and not the stream."""

    def __init__(self, compressor: Any, flush_mode: int) -> None:
        self.compress: Callable[[bytes | memoryview], bytes] = compressor.compress
        self._flush, self._mode = compressor.flush, flush_mode

    def flush(self) -> bytes:
        data: bytes = self._flush(self._mode)
        return data


class _IsalOrZlib:
    """Deflate by ISA-L, or by zlib where a part's first block shows that ISA-L makes too much of such rows.

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
            len(compressor.compress(block)) + len(compressor.flush()) for compressor in (self._isal(), _deflate(6))
        ]
        return sizes[0] <= _ISAL_SIZE_MAX * sizes[1]


def open_packer(out: Writer, packing: Packing, rows_before: int = 0) -> Packer | GroupPacker:
    """What takes all that the format's `encode` gives, and writes a part of it."""
    frame_of = _GROUPS.get(packing)
    return GroupPacker(out, frame_of, GROUP_BYTES[packing]) if frame_of else Packer(out, packing, rows_before)


def check_packing(packing: Packing) -> None:
    """Refuse what is not installed.

    Raises:
        ConfigurationError: names the extra.
    """
    _compressor(packing)


def quickest_gzip() -> Packing:
    """What to plan a gzip file with: ISA-L where it is installed, else zlib."""
    try:
        check_packing("isal")
    except ConfigurationError:
        return "gz"
    return "isal"


def _compressor(packing: Packing, rows_before: int = 0) -> Compressor | None:
    if packing == "sheet":
        return FragmentPacker(rows_before)
    return _COMPRESSORS[packing]() if packing else None


def _deflate(level: int) -> Compressor:
    return _PieceCompressor(zlib.compressobj(level, zlib.DEFLATED, _RAW), zlib.Z_SYNC_FLUSH)


def _gzip() -> Compressor:
    return _deflate(_GZIP_LEVEL)


def _isal() -> Compressor:
    try:
        from isal import isal_zlib  # noqa: PLC0415 - an extra
    except ImportError as error:
        raise ConfigurationError(
            "this report was planned by a worker with ISA-L: pip install 'effects-toolkit-reports[isal]'"
        ) from error
    compressor = isal_zlib.compressobj
    return _IsalOrZlib(
        lambda: _PieceCompressor(compressor(_ISAL_LEVEL, isal_zlib.DEFLATED, _RAW), isal_zlib.Z_SYNC_FLUSH)
    )


def _zstd() -> Compressor:
    """Blocks that stand behind any others of a frame.

    A frame's first blocks count on what a decoder begins with, its repeated offsets. Those of a further job of a
    compressor with workers count on nothing: jobs are compressed side by side, and overlap only where they are told to.
    So a first one, of a byte, goes with the frame's header.
    """
    compressor = _PieceCompressor(_zstd_maker()(), _ZSTD_FLUSH)
    compressor.compress(b"\0")
    compressor.flush()
    return compressor


def _zstd_maker() -> Callable[[], Any]:
    """Python's own from 3.14 on, if it has workers, else that of the extra."""
    try:
        from compression import zstd  # type: ignore[import-not-found, unused-ignore] # noqa: PLC0415
    except ImportError:
        pass
    else:
        names = zstd.CompressionParameter
        if names.nb_workers.bounds()[1]:
            options = {
                names.compression_level: _ZSTD_LEVEL, names.window_log: _ZSTD_WINDOW, names.nb_workers: 1,
                names.job_size: _ZSTD_JOB_BYTES, names.overlap_log: 1,
            }  # fmt: skip
            return lambda: zstd.ZstdCompressor(options=options)
    try:
        import zstandard  # noqa: PLC0415 - an extra
    except ImportError as error:
        text = "reports in zstd need a compressor: pip install 'effects-toolkit-reports[zstd]'"
        raise ConfigurationError(text) from error
    parameters = zstandard.ZstdCompressionParameters.from_level(
        _ZSTD_LEVEL, window_log=_ZSTD_WINDOW, threads=1, job_size=_ZSTD_JOB_BYTES, overlap_log=1
    )
    return lambda: zstandard.ZstdCompressor(compression_params=parameters).compressobj()


_COMPRESSORS: dict[str, Callable[[], Compressor]] = {"gz": _gzip, "isal": _isal, "zst": _zstd}
_GROUPS: dict[str, FrameOf] = {"parquet": row_group, "arrow": record_batch}
