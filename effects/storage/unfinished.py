"""A file in the making: written under a name of its own, then renamed."""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable
from contextlib import suppress
from io import FileIO
from pathlib import Path

from effects.process.private_files import create_private
from effects.storage.base import Stored
from effects.storage.boot import boot_id
from effects.storage.joining import RunningDigest, append_file, write_whole
from effects.storage.names import UNFINISHED
from effects.storage.os_errors import fate

WRITEBACK_BYTES = 8 * 1024 * 1024


class UnfinishedFile:
    """The writer of one local object; `path` is its final place.

    Args:
        mode: permissions of the file.
        durable: whether `finish` waits for the disk.
        open_object: opens another object of the storage.
    """

    def __init__(
        self, name: str, path: Path, *, mode: int, durable: bool, open_object: Callable[[str], FileIO]
    ) -> None:
        self._name, self._path, self._durable = name, path, durable
        self._open_object = open_object
        self._unfinished = path.with_name(f"{path.name}.{secrets.token_hex(8)}{UNFINISHED}")
        self._digest = RunningDigest()
        self._size = self._flushed = 0
        self._finished = False
        self._file = create_private(self._unfinished)
        os.fchmod(self._file.fileno(), mode)

    def write(self, data: bytes | memoryview) -> None:
        """Append. Unbuffered: pieces of 64 KiB and more are quick."""
        try:
            self._digest.update(data)
            self._add(write_whole(self._file, data))
        except OSError as error:
            raise fate(error, self._name) from error

    def append(self, name: str) -> int:
        """As `Writer.append`: the kernel copies where it can, and another thread reads the bytes for the digest."""
        before = self._size
        file = self._open_object(name)
        try:
            self._digest.add_file(file)
            for count in append_file(file, self._file):
                self._add(count)
        except OSError as error:
            raise fate(error, self._name) from error
        return self._size - before

    def _add(self, count: int) -> None:
        self._size += count
        if self._durable and self._size - self._flushed >= WRITEBACK_BYTES:
            self._begin_writeback()

    def _begin_writeback(self) -> None:
        """Let the disk begin now: what is dirty is written and not waited for, and `finish` finds little left."""
        if hasattr(os, "posix_fadvise"):
            os.posix_fadvise(self._file.fileno(), self._flushed, self._size - self._flushed, os.POSIX_FADV_DONTNEED)
        self._flushed = self._size

    def finish(self) -> Stored:
        """Sync, rename, sync the folder; or rename alone."""
        try:
            if self._durable:
                os.fsync(self._file.fileno())
            digest = self._digest.hexdigest()
            self._file.close()
            self._unfinished.replace(self._path)
            self._finished = True
            if self._durable:
                sync_folder(self._path.parent)
        except OSError as error:
            raise fate(error, self._name) from error
        return Stored(self._name, self._size, digest, None if self._durable else boot_id())

    def close(self) -> None:
        """Discard an unfinished file completely."""
        self._digest.close()
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
