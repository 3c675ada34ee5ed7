"""A Runtime whose time the test moves, and whose threads it ends or holds where they next ask for something."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from queue import Empty
from typing import Any

from effects.worker.machine.runtime import FileChanges, Readiness, Runtime
from tests.support.waiting import PATIENCE_SECONDS

STEP_SECONDS = 0.9  # less than the supervisor takes for a process that stood still
REST_SECONDS = 0.3  # of the machine's: threads that are busy elsewhere are not waited for any longer


class ClockRuntime(Runtime):
    """Real threads, and a clock that the test moves."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.monotonic = self.lease_clock = lambda: self.now


class KilledError(BaseException):
    """What ends a thread; no handler of ordinary errors stops it."""


class _BriefReadiness(Readiness):
    """Comes back soon, for `kill` and `freeze`."""

    def wait(self, seconds: float) -> bool:
        return super().wait(min(seconds, REST_SECONDS))


class StagedRuntime(Runtime):
    """Threads wait in time that goes on by `advance` alone. `kill` and `freeze` take a thread's name."""

    def __init__(self) -> None:
        lock = threading.RLock()
        self.turn = threading.Condition(lock)
        self._quiet = threading.Condition(lock)  # a thread waits again
        self.now = 1000.0
        self.threads: list[threading.Thread] = []
        self.monotonic = self.lease_clock = self._clock
        self.random = lambda: 0.5
        self._waiting: dict[threading.Thread, float] = {}
        self._killed: set[threading.Thread] = set()
        self._frozen: set[threading.Thread] = set()
        self._thawed = threading.Event()

    # -- what the worker calls -------------------------------------------------------------------------------

    def _clock(self) -> float:
        self.check()
        return self.now

    def event(self) -> Any:
        return _StagedEvent(self)

    def lock(self) -> Any:
        return _StagedLock(self)

    def queue(self) -> Any:
        return _StagedQueue(self)

    def readiness(self, file: int) -> Readiness:
        return _BriefReadiness(file)

    def file_changes(self, paths: Sequence[str]) -> FileChanges:
        """None: whoever waited for them would wait in the machine's time."""
        raise OSError("staged")

    def start(self, run: Callable[[], None], name: str) -> threading.Thread:
        thread = super().start(run, name)
        self.threads.append(thread)
        return thread

    def check(self) -> None:
        """Where the calling thread ends, or stands, if the test has said so."""
        thread = threading.current_thread()
        if thread in self._killed:
            self._killed.discard(thread)
            raise KilledError
        if thread in self._frozen:
            assert self._thawed.wait(PATIENCE_SECONDS), "the test thawed nothing"

    def wait_for(self, condition: Callable[[], bool], seconds: float | None) -> bool:
        thread = threading.current_thread()
        deadline = float("inf") if seconds is None else self.now + seconds
        while True:
            self.check()
            with self.turn:
                if condition() or self.now >= deadline:
                    return condition()
                self._waiting[thread] = deadline
                self._quiet.notify_all()
                if not {thread} & (self._killed | self._frozen):
                    assert self.turn.wait(PATIENCE_SECONDS), f"nothing happens any more, in {thread.name}"
                self._waiting.pop(thread, None)

    # -- what the test calls ---------------------------------------------------------------------------------

    def kill(self, name: str) -> None:
        with self.turn:
            self._killed.update(self._named(name))
            self.turn.notify_all()

    def freeze(self, name: str) -> None:
        with self.turn:
            self._frozen.update(self._named(name))
            self.turn.notify_all()

    def _named(self, name: str) -> list[threading.Thread]:
        """Those that run now: one that takes its place later is another."""
        return [thread for thread in self.threads if thread.name == name and thread.is_alive()]

    def thaw(self) -> None:
        self._frozen.clear()
        self._thawed.set()

    def jump(self, seconds: float) -> None:
        """The whole process stood still meanwhile."""
        with self.turn:
            self.now += seconds
            self.turn.notify_all()
        self._settle()

    def advance(self, seconds: float, *, until: Callable[[], object] = lambda: False) -> None:
        """Move time in small steps; after each one every thread that can goes on until it waits again."""
        left = seconds
        while left > 0 and not until():
            self.jump(min(STEP_SECONDS, left))
            left -= STEP_SECONDS

    def _settle(self) -> None:
        with self.turn:
            self._quiet.wait_for(self._all_wait, REST_SECONDS)

    def _all_wait(self) -> bool:
        alive = [thread for thread in self.threads if thread.is_alive() and thread not in self._frozen]
        return all(self._waiting.get(thread, 0.0) > self.now for thread in alive)


class _StagedEvent:
    def __init__(self, runtime: StagedRuntime) -> None:
        self._runtime, self._flag = runtime, False

    def is_set(self) -> bool:
        self._runtime.check()
        return self._flag

    def set(self) -> None:
        with self._runtime.turn:
            self._flag = True
            self._runtime.turn.notify_all()

    def clear(self) -> None:
        self._flag = False

    def wait(self, timeout: float | None = None) -> bool:
        return self._runtime.wait_for(lambda: self._flag, timeout)


class _StagedLock:
    def __init__(self, runtime: StagedRuntime) -> None:
        self._runtime, self._held = runtime, False

    def __enter__(self) -> None:
        with self._runtime.turn:  # of which the wait lets go
            self._runtime.wait_for(lambda: not self._held, None)
            self._held = True

    def __exit__(self, *error: object) -> None:
        with self._runtime.turn:
            self._held = False
            self._runtime.turn.notify_all()


class _StagedQueue:
    def __init__(self, runtime: StagedRuntime) -> None:
        self._runtime = runtime
        self._items: deque[Any] = deque()

    def put(self, item: Any) -> None:
        with self._runtime.turn:
            self._items.append(item)
            self._runtime.turn.notify_all()

    def get(self, timeout: float | None = None) -> Any:
        while self._runtime.wait_for(lambda: bool(self._items), timeout):
            try:
                return self._items.popleft()
            except IndexError:  # another thread was quicker
                continue
        raise Empty

    def get_nowait(self) -> Any:
        try:
            return self._items.popleft()
        except IndexError:
            raise Empty from None

    def qsize(self) -> int:
        return len(self._items)
