"""A ZIP archive written in one go, with entries that are deflated already.

The sizes of an entry follow its bytes, and stand in the directory at the end. An entry holds less than 4 GiB; the
archive may be larger (Zip64, section 4.3.14 of APPNOTE).
"""

from __future__ import annotations

import struct
import zlib

from effects.extend import Writer
from effects_reports.formats.fragments import deflated, joined_crc

ENTRY_BYTES_MAX = 2**32 - 1
_FAR, _ENTRIES_MAX = 2**32 - 1, 2**16 - 1  # where a field of the first ZIP says: look into that of Zip64
_DESCRIPTOR_FOLLOWS, _DEFLATED = 0x0808, 8  # and names are UTF-8
_VERSION, _VERSION_ZIP64 = 20, 45
_TIME, _DAY = 0, (2000 - 1980) << 9 | 1 << 5 | 1  # the same bytes whenever it is written
_LOCAL = struct.Struct("<IHHHHHIIIHH")
_DESCRIPTOR = struct.Struct("<IIII")
_CENTRAL = struct.Struct("<IHHHHHHIIIHHHHHII")
_OFFSET = struct.Struct("<HHQ")
_END64 = struct.Struct("<IQHHIIQQQQ")
_LOCATOR = struct.Struct("<IIQI")
_END = struct.Struct("<IHHHHIIH")


class Archive:
    """Entries one after the other; `end` completes the archive, the writer's `finish` is the caller's."""

    def __init__(self, out: Writer) -> None:
        self._out, self._written = out, 0
        self._directory: list[bytes] = []

    def add(self, name: str, data: bytes) -> None:
        """A small entry."""
        self.begin(name)
        self.fragment(data)
        self.close()

    def begin(self, name: str) -> None:
        self._name, self._offset = name.encode(), self._written
        self._crc = self.plain = self._packed = 0
        self._put(
            _LOCAL.pack(0x04034B50, _VERSION, _DESCRIPTOR_FOLLOWS, _DEFLATED, _TIME, _DAY, 0, 0, 0, len(self._name), 0)
            + self._name
        )

    def fragment(self, data: bytes) -> None:
        """Bytes of the entry, deflated here."""
        self.deflated(deflated(data))
        self.count(len(data), zlib.crc32(data))

    def deflated(self, packed: bytes) -> None:
        """A piece of the entry's deflate stream; `count` says of what."""
        self._put(packed)
        self._packed += len(packed)

    def count(self, plain: int, crc: int) -> None:
        """So many bytes with this CRC-32 are what the pieces since the last count hold."""
        self._crc = joined_crc(self._crc, crc, plain)
        self.plain += plain

    def close(self) -> None:
        """End the entry."""
        self.deflated(deflated(b"", last=True))
        sizes = self._crc, self._packed, self.plain
        self._put(_DESCRIPTOR.pack(0x08074B50, *sizes))
        far = self._offset > ENTRY_BYTES_MAX
        extra = _OFFSET.pack(1, 8, self._offset) if far else b""
        version = _VERSION_ZIP64 if far else _VERSION
        self._directory.append(
            _CENTRAL.pack(
                0x02014B50, version, version, _DESCRIPTOR_FOLLOWS, _DEFLATED, _TIME, _DAY, *sizes, len(self._name),
                len(extra), 0, 0, 0, 0, _FAR if far else self._offset,
            )
            + self._name
            + extra
        )  # fmt: skip

    def end(self) -> None:
        start, directory, count = self._written, b"".join(self._directory), len(self._directory)
        self._put(directory)
        size, end = len(directory), self._written
        if start > ENTRY_BYTES_MAX or count > _ENTRIES_MAX:
            self._put(
                _END64.pack(0x06064B50, 44, _VERSION_ZIP64, _VERSION_ZIP64, 0, 0, count, count, size, start)
                + _LOCATOR.pack(0x07064B50, 0, end, 1)
            )
        counted = min(count, _ENTRIES_MAX)
        self._put(_END.pack(0x06054B50, 0, 0, counted, counted, size, min(start, _FAR), 0))

    def _put(self, data: bytes) -> None:
        self._out.write(data)
        self._written += len(data)
