"""One file appended to another, by the kernel where it can, and hashed meanwhile."""

from __future__ import annotations

import errno
import hashlib
import os
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from io import FileIO

from effects.storage.base import PIECE_BYTES

STEP_BYTES = 8 * 1024 * 1024
FILES_MAX = 4  # whose hashing may be behind
# What it answers where it cannot: other file systems, no such call (or forbidden to a container), not for such files.
_NOT_BY_KERNEL = {errno.EXDEV, errno.ENOSYS, errno.EPERM, errno.EINVAL, errno.EOPNOTSUPP, errno.EBADF, errno.ETXTBSY}


def append_file(source: FileIO, target: FileIO) -> Iterator[int]:
    """Append the whole of `source` to `target`: the bytes of each step. The position in `source` stays.

    A copy by the kernel moves no byte through this process, and shares blocks where the file system can. Where it
    refuses, or stops early, the rest is read and written.

    Raises:
        OSError: of either file.
    """
    offset, by_kernel = 0, hasattr(os, "copy_file_range")
    while True:
        count = _copied(source, target, offset) if by_kernel else 0
        if not count:
            by_kernel = False  # the end, or it cannot: reading shows which
            count = write_whole(target, os.pread(source.fileno(), PIECE_BYTES, offset))
            if not count:
                return
        offset += count
        yield count


def _copied(source: FileIO, target: FileIO, offset: int) -> int:
    """How many bytes the kernel has copied; 0 where it did not."""
    try:
        return os.copy_file_range(source.fileno(), target.fileno(), STEP_BYTES, offset_src=offset)
    except OSError as error:
        if error.errno in _NOT_BY_KERNEL:
            return 0
        raise


def write_whole(target: FileIO, data: bytes | memoryview) -> int:
    """Write all of it, in as many calls as it takes; how many bytes that were."""
    left = memoryview(data)
    while left:
        left = left[target.write(left) :]
    return len(data)


class RunningDigest:
    """SHA-256 of bytes and files in the order in which they come; files are read by a thread of its own.

    So a file is hashed while it is copied, and while the disk takes what was copied.
    """

    def __init__(self) -> None:
        self._digest = hashlib.sha256()
        self._thread: ThreadPoolExecutor | None = None
        self._behind: deque[tuple[FileIO, Future[None]]] = deque()

    def update(self, data: bytes | memoryview) -> None:
        self._wait(0)
        self._digest.update(data)

    def add_file(self, file: FileIO) -> None:
        """Take all of a file, from its position on; it is closed by `hexdigest` or `close` at the latest."""
        self._wait(FILES_MAX - 1)
        if self._thread is None:
            self._thread = ThreadPoolExecutor(1, "effects-digest")
        self._behind.append((file, self._thread.submit(self._read, file)))

    def hexdigest(self) -> str:
        """The digest of all.

        Raises:
            OSError: a file could not be read.
        """
        self._wait(0)
        return self._digest.hexdigest()

    def close(self) -> None:
        """End the thread, and close the files."""
        if self._thread is not None:
            self._thread.shutdown(cancel_futures=True)
        while self._behind:
            self._behind.popleft()[0].close()

    def _wait(self, files: int) -> None:
        """Until no more than so many files are behind."""
        while len(self._behind) > files:
            file, reading = self._behind.popleft()
            with file:
                reading.result()

    def _read(self, file: FileIO) -> None:
        buffer = memoryview(bytearray(PIECE_BYTES))
        while count := file.readinto(buffer):
            self._digest.update(buffer[:count])
