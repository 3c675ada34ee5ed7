"""A ZIP archive of one file that a password opens: AE-2 with AES-256, as WinZip, 7-Zip and others read it.

The file is deflated, encrypted and signed as it is written, in constant memory. Sizes follow the bytes, in 64 bits
(Zip64, section 4.3.9 of APPNOTE). The format demands PBKDF2 with 1,000 rounds of HMAC-SHA-1: against whoever has the
archive it is the password that must be long.
"""

from __future__ import annotations

import hashlib
import hmac
import struct
import sys
import zlib
from array import array
from collections.abc import Callable, Iterable
from typing import Any

from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import AES
from cryptography.hazmat.primitives.ciphers.modes import ECB

from effects.extend.files import Writer

LEVEL = 4  # as of gzip: twice as fast as 6, for a twentieth more bytes; a change changes the bytes of runs
_ROUNDS, _KEY_BYTES, _CHECK_BYTES, _CODE_BYTES = 1000, 32, 2, 10
_AES_BLOCK, _PIECE_BYTES = 16, 64 * 1024
_VERSION, _ENCRYPTED, _AES = 51, 0x0809, 99  # encrypted, sizes after the bytes, names are UTF-8
_TIME, _DAY = 0, (2000 - 1980) << 9 | 1 << 5 | 1  # the same bytes whenever it is written
_FAR = 2**32 - 1
_AES_EXTRA = struct.pack("<HHH2sBH", 0x9901, 7, 2, b"AE", 3, 8)  # AE-2: without a CRC; 256 bits; deflated
_LOCAL = struct.Struct("<IHHHHHIIIHH")
_DESCRIPTOR = struct.Struct("<IIQQ")
_CENTRAL = struct.Struct("<IHHHHHHIIIHHHHHII")
_SIZES = struct.Struct("<HHQQ")
_END64 = struct.Struct("<IQHHIIQQQQ")
_LOCATOR = struct.Struct("<IIQI")
_END = struct.Struct("<IHHHHIIH")


class AesZip:
    """A writer whose bytes become the one file in an archive that goes to another writer.

    Args:
        out: what the archive goes to; `finish` finishes it too.
        read: gives the bytes of an object of its storage, in pieces.
        name: of the file in it. Whoever has the archive reads it, with or without the password.
        password: UTF-8, as all readers take it that are given ASCII.
        salt: of 16 bytes. One salt and password must never encrypt two different files.
    """

    def __init__(
        self, out: Writer, read: Callable[[str], Iterable[bytes]], name: str, password: str, salt: bytes
    ) -> None:
        self._out, self._read, self._name = out, read, name.encode()
        self._written = self.plain = 0
        self._deflate = zlib.compressobj(LEVEL, zlib.DEFLATED, -15)
        secret = hashlib.pbkdf2_hmac("sha1", password.encode(), salt, _ROUNDS, 2 * _KEY_BYTES + _CHECK_BYTES)
        self._stream = _KeyStream(secret[:_KEY_BYTES])
        self._code = hmac.new(secret[_KEY_BYTES : 2 * _KEY_BYTES], digestmod="sha1")
        extra = _SIZES.pack(1, 16, 0, 0) + _AES_EXTRA
        head = _LOCAL.pack(
            0x04034B50, _VERSION, _ENCRYPTED, _AES, _TIME, _DAY, 0, _FAR, _FAR, len(self._name), len(extra)
        )
        self._put(head + self._name + extra)
        self._begin = self._written
        self._put(salt + secret[2 * _KEY_BYTES :])

    def write(self, data: bytes | memoryview) -> None:
        """Append to the file in the archive."""
        self.plain += len(data)
        self._encrypt(self._deflate.compress(data))

    def append(self, name: str) -> int:
        """Append another object, read and encrypted."""
        before = self.plain
        for piece in self._read(name):
            self.write(piece)
        return self.plain - before

    def finish(self) -> Any:
        """End the archive, and make it visible."""
        self._encrypt(self._deflate.flush())
        self._put(self._code.digest()[:_CODE_BYTES])
        packed = self._written - self._begin
        self._put(_DESCRIPTOR.pack(0x08074B50, 0, packed, self.plain))
        start = self._written
        extra = _SIZES.pack(1, 16, self.plain, packed) + _AES_EXTRA
        head = _CENTRAL.pack(
            0x02014B50, _VERSION, _VERSION, _ENCRYPTED, _AES, _TIME, _DAY, 0, _FAR, _FAR, len(self._name), len(extra),
            0, 0, 0, 0, 0,
        )  # fmt: skip
        self._put(head + self._name + extra)
        size, end = self._written - start, self._written
        self._put(_END64.pack(0x06064B50, 44, _VERSION, _VERSION, 0, 0, 1, 1, size, start))
        self._put(_LOCATOR.pack(0x07064B50, 0, end, 1))
        self._put(_END.pack(0x06054B50, 0, 0, 1, 1, size, min(start, _FAR), 0))
        return self._out.finish()

    def _encrypt(self, packed: bytes) -> None:
        for start in range(0, len(packed), _PIECE_BYTES):
            piece = self._stream.applied(packed[start : start + _PIECE_BYTES])
            self._code.update(piece)
            self._put(piece)

    def _put(self, data: bytes) -> None:
        self._out.write(data)
        self._written += len(data)


class _KeyStream:
    """AES in counter mode with a counter of little-endian bytes from 1 on, which no mode of a library counts so."""

    def __init__(self, key: bytes) -> None:
        self._encrypt = Cipher(AES(key), ECB()).encryptor().update  # noqa: S305 - of counters, each once
        self._counter, self._ready = 1, b""

    def applied(self, data: bytes) -> bytes:
        size = len(data)
        while len(self._ready) < size:
            self._ready += self._next(_PIECE_BYTES // _AES_BLOCK)
        key, self._ready = self._ready[:size], self._ready[size:]
        return (int.from_bytes(data, "little") ^ int.from_bytes(key, "little")).to_bytes(size, "little")

    def _next(self, blocks: int) -> bytes:
        counters = array("Q", bytes(_AES_BLOCK * blocks))
        counters[::2] = array("Q", range(self._counter, self._counter + blocks))
        if sys.byteorder == "big":
            counters.byteswap()
        self._counter += blocks
        return self._encrypt(counters.tobytes())
