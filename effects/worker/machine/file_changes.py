"""Waiting for a notification, and for a write to a file where the system tells of it (Linux: inotify)."""

from __future__ import annotations

import os
import selectors
import socket
import sys
from collections.abc import Sequence
from typing import Any

MODIFIED, GONE = 0x2, 0x400 | 0x800 | 0x2000  # IN_MODIFY; IN_DELETE_SELF, IN_MOVE_SELF, IN_UNMOUNT
_HEADER_BYTES = 16
_READ_BYTES = 64 * 1024


class FileGone(OSError):
    """A file that was watched was deleted or moved: whoever opens its name has another one."""


class Readiness:
    """Waits until there is something to read, for a thread that another one may wake. Close it.

    Args:
        file: a descriptor, which stays open; of a socket where the system waits for nothing else.
    """

    def __init__(self, file: int) -> None:
        self._file = file
        self._own, self._others = socket.socketpair()
        self._selector = selectors.DefaultSelector()
        for each in (file, self._own):
            self._selector.register(each, selectors.EVENT_READ)

    def wait(self, seconds: float) -> bool:
        """Return when there is something, or after so many seconds; whether there is. `interrupt` ends it, for good."""
        return any(key.fd == self._file for key, _ in self._selector.select(seconds))

    def interrupt(self) -> None:
        """End each wait, from any thread."""
        self._others.send(b"!")

    def close(self) -> None:
        for each in (self._selector, self._own, self._others):
            each.close()


class FileChanges:
    """Tells when one of some files was written to. Close it.

    Args:
        paths: of files that exist.

    Raises:
        OSError: this system tells of no changes, or a file is not there.
    """

    def __init__(self, paths: Sequence[str]) -> None:
        if not sys.platform.startswith("linux"):
            raise OSError("no inotify")
        self._file = _watch(paths)
        self._readiness = Readiness(self._file)
        self.interrupt = self._readiness.interrupt

    def wait(self, seconds: float) -> bool:
        """Return at the next write, or after so many seconds; whether there was one. `interrupt` ends it, for good.

        Raises:
            FileGone: a file was deleted or moved.
        """
        if not self._readiness.wait(seconds):
            return False
        masks = _masks(os.read(self._file, _READ_BYTES))
        if any(mask & GONE for mask in masks):
            raise FileGone("deleted or moved")
        return any(mask & MODIFIED for mask in masks)

    def close(self) -> None:
        self._readiness.close()
        os.close(self._file)


def _watch(paths: Sequence[str]) -> int:
    import ctypes  # noqa: PLC0415 - only a worker on SQLite needs it

    libc: Any = ctypes.CDLL(None, use_errno=True)
    file: int = libc.inotify_init1(os.O_CLOEXEC | os.O_NONBLOCK)
    if file < 0:
        raise OSError(ctypes.get_errno(), "inotify_init1")
    for path in paths:
        if libc.inotify_add_watch(file, os.fsencode(path), MODIFIED | GONE) < 0:
            error = OSError(ctypes.get_errno(), "inotify_add_watch")
            os.close(file)
            raise error
    return file


def _masks(events: bytes) -> list[int]:
    """What has happened, from records of watch, mask, cookie, length of a name, and the name."""
    masks, start = [], 0
    while start < len(events):
        masks.append(int.from_bytes(events[start + 4 : start + 8], sys.byteorder))
        start += _HEADER_BYTES + int.from_bytes(events[start + 12 : start + 16], sys.byteorder)
    return masks
