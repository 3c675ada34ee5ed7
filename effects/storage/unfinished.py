"""A file in the making: written under a name of its own, then renamed."""

from __future__ import annotations

import hashlib
import os
import secrets
from contextlib import suppress
from pathlib import Path

from effects.private_files import create_private
from effects.storage.base import Stored
from effects.storage.names import UNFINISHED
from effects.storage.os_errors import fate

WRITEBACK_BYTES = 8 * 1024 * 1024


class UnfinishedFile:
    """The writer of one local object; `path` is its final place.

    Args:
        mode: permissions of the file.
        durable: whether `finish` waits for the disk.
    """

    def __init__(self, name: str, path: Path, *, mode: int, durable: bool) -> None:
        self._name, self._path, self._durable = name, path, durable
        self._unfinished = path.with_name(f"{path.name}.{secrets.token_hex(8)}{UNFINISHED}")
        self._digest = hashlib.sha256()
        self._size = self._asked = 0
        self._finished = False
        self._file = create_private(self._unfinished)
        os.fchmod(self._file.fileno(), mode)

    def write(self, data: bytes) -> None:
        """Append. Unbuffered: pieces of 64 KiB and more are quick."""
        self._digest.update(data)
        left = memoryview(data)
        try:
            while left:
                left = left[self._file.write(left) :]
        except OSError as error:
            raise fate(error, self._name) from error
        self._size += len(data)
        if self._durable and self._size - self._asked >= WRITEBACK_BYTES:
            self._begin_writeback()

    def _begin_writeback(self) -> None:
        """Let the disk begin now: what is dirty is written and not waited for, and `finish` finds little left."""
        if hasattr(os, "posix_fadvise"):
            os.posix_fadvise(self._file.fileno(), self._asked, self._size - self._asked, os.POSIX_FADV_DONTNEED)
        self._asked = self._size

    def finish(self) -> Stored:
        """Sync, rename, sync the folder; or rename alone."""
        try:
            if self._durable:
                os.fsync(self._file.fileno())
            self._file.close()
            self._unfinished.replace(self._path)
            self._finished = True
            if self._durable:
                sync_folder(self._path.parent)
        except OSError as error:
            raise fate(error, self._name) from error
        return Stored(self._name, self._size, self._digest.hexdigest())

    def close(self) -> None:
        """Discard an unfinished file completely."""
        self._file.close()
        if not self._finished:
            with suppress(OSError):  # what is left then shows in `list`
                self._unfinished.unlink()


def sync_folder(folder: Path) -> None:
    """Make the names in it durable."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
