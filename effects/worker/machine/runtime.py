"""Time, waits, threads and randomness: all that the worker package takes from the machine.

No module of `effects.worker` uses `time`, `threading`, `queue`, `random`, `uuid` or `asyncio` directly (tested), but
this one and `event_loop`, the loop that it makes. So a test or simulator with its own Runtime controls when each
thread continues, and the time.
"""

from __future__ import annotations

import random
import sys
import threading
import time
import uuid
from collections.abc import Callable, Sequence
from functools import partial
from queue import SimpleQueue
from types import FrameType
from typing import Any

from effects.worker.machine.event_loop import EventLoop, answer, runs_here
from effects.worker.machine.file_changes import FileChanges, Readiness


class Runtime:
    """The machine's own clock and threads.

    Callers bind frequent functions (`monotonic`, `random`) once, so that the indirection costs nothing.
    """

    monotonic: Callable[[], float] = staticmethod(time.monotonic)
    random: Callable[[], float] = staticmethod(random.random)
    current: Callable[[], threading.Thread] = staticmethod(threading.current_thread)
    on_event_loop: Callable[[], bool] = staticmethod(runs_here)
    answer = staticmethod(answer)

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
