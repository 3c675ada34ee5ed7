"""Time, waits, threads, randomness and changes of files: all that the worker package takes from the machine.

No module of `effects.worker` uses `time`, `threading`, `queue`, `random`, `uuid` or `asyncio` directly (tested), but
this one and `event_loop`, the loop that it makes. So a test or simulator with its own Runtime controls when each
thread continues, and the time.
"""

from __future__ import annotations

import gc
import os
import random
import selectors
import socket
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from queue import SimpleQueue
from types import FrameType
from typing import Any

from effects.worker.machine.event_loop import EventLoop, answer, runs_here

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


PYTHONS_OWN = (700, 2000)  # first thresholds of Python's versions
OBJECTS = 10_000  # more than a claim makes of jobs, attempts and rows, which hold no garbage


@contextmanager
def rare_collections() -> Iterator[None]:
    """Meanwhile, what was there before is no garbage: modules, classes and the like, over 100,000 objects.

    The jobs that a worker holds make Python look through all objects again and again; without those that last, and
    after 10,000 new ones rather than 700, that costs next to nothing. A fifth of a short job's CPU was spent on it.
    What the app has set itself stays so: frozen objects, and a first threshold other than Python's own.
    """
    thresholds, freezes = gc.get_threshold(), not gc.get_freeze_count()
    raises = thresholds[0] in PYTHONS_OWN
    if freezes:
        gc.freeze()
    if raises:
        gc.set_threshold(OBJECTS, *thresholds[1:])
    try:
        yield
    finally:  # only what this one has changed: another worker of the process may go on
        if raises:
            gc.set_threshold(*thresholds)
        if freezes:
            gc.unfreeze()


class Runtime:
    """The machine's own clock and threads.

    Callers bind frequent functions (`monotonic`, `random`) once, so that the indirection costs nothing.
    """

    monotonic: Callable[[], float] = staticmethod(time.monotonic)
    random: Callable[[], float] = staticmethod(random.random)
    current: Callable[[], threading.Thread] = staticmethod(threading.current_thread)
    on_event_loop: Callable[[], bool] = staticmethod(runs_here)
    answer = staticmethod(answer)
    rare_collections: Callable[[], AbstractContextManager[None]] = staticmethod(rare_collections)

    # A clock that also runs while the machine is suspended, as leases do on the database's clock.
    # Without such a clock (macOS), the plain one, which stops meanwhile.
    lease_clock: Callable[[], float] = staticmethod(
        partial(time.clock_gettime, time.CLOCK_BOOTTIME) if hasattr(time, "CLOCK_BOOTTIME") else time.monotonic
    )

    def event(self) -> threading.Event:
        return threading.Event()

    def lock(self) -> threading.Lock:
        """A lock that is held over a transaction. Those held for a few lines are plain ones."""
        return threading.Lock()

    def queue(self) -> SimpleQueue[Any]:
        return SimpleQueue()

    def sleep(self, seconds: float) -> None:
        self.event().wait(seconds)

    def start(self, run: Callable[[], None], name: str) -> threading.Thread:
        """Start a daemon thread, which cannot keep the process alive by hanging."""
        thread = threading.Thread(target=run, name=name, daemon=True)
        thread.start()
        return thread

    def event_loop(self) -> EventLoop:
        """A loop for async handlers, for a thread of the caller's to run."""
        return EventLoop(self.start)

    def readiness(self, file: int) -> Readiness:
        """What waits until there is something to read."""
        return Readiness(file)

    def file_changes(self, paths: Sequence[str]) -> FileChanges:
        """What tells of writes to these files.

        Raises:
            OSError: nothing does, or a file is not there.
        """
        return FileChanges(paths)

    def is_interrupt(self, error: BaseException) -> bool:
        """Whether this is Ctrl-C, which Python raises anywhere in the main thread, and not a hook's own failure."""
        return isinstance(error, KeyboardInterrupt) and threading.current_thread() is threading.main_thread()

    def frame(self, thread: threading.Thread) -> FrameType | None:
        """Where a thread is now; None if it has ended."""
        return sys._current_frames().get(thread.ident or 0)

    def unique(self) -> str:
        """32 random hexadecimal digits."""
        return uuid.uuid4().hex
