"""The worker's `Runtime` in virtual time, with a clock of each machine that may be wrong."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from queue import Empty
from types import FrameType
from typing import Any

from effects.worker.machine.runtime import Readiness, Runtime
from tests.simulator.scheduler import Scheduler, Signal, SimLock, SimProcess, SimQueue, SimThread


class SimRuntime(Runtime):
    """What one process of the world takes from its machine.

    Args:
        drift: how much faster than true time its clock goes, as a share.
        committed: woken by every commit, as a file's changes are.
        heard_seconds: at most, until it looks for a commit; those that follow meanwhile are seen with it.
    """

    rare_collections = staticmethod(nullcontext)

    def __init__(
        self, scheduler: Scheduler, process: SimProcess, committed: Signal, *, drift: float, heard_seconds: float
    ) -> None:
        self.scheduler, self.process = scheduler, process
        self._committed, self._heard_seconds = committed, heard_seconds
        self._rate, self._number = 1.0 + drift, 0
        self.monotonic = self.lease_clock = self._clock
        self.random = scheduler.random.random
        self.current = lambda: scheduler.running  # type: ignore[assignment,return-value]

    def _clock(self) -> float:
        self.scheduler.check()
        return 1000.0 + self.scheduler.now * self._rate

    def event(self) -> Any:
        return Signal(self.scheduler)

    def lock(self) -> Any:
        return SimLock(self.scheduler)

    def queue(self) -> Any:
        return SimQueue(self.scheduler, Empty)

    def sleep(self, seconds: float) -> None:
        self.scheduler.sleep(seconds)

    def start(self, run: Callable[[], None], name: str) -> Any:
        return self.scheduler.start(self.process, run, name)

    def readiness(self, file: int) -> Readiness:
        raise OSError("no files in this world")

    def file_changes(self, paths: Sequence[str]) -> Any:
        return SimChanges(self.scheduler, self._committed, self._heard_seconds)

    def is_interrupt(self, error: BaseException) -> bool:
        return False

    def frame(self, thread: Any) -> FrameType | None:
        return thread.greenlet.gr_frame if isinstance(thread, SimThread) else None

    def unique(self) -> str:
        self._number += 1
        return f"{self.process.name}{self._number:030d}"


class SimChanges:
    """`FileChanges` of the world's database."""

    def __init__(self, scheduler: Scheduler, committed: Signal, heard_seconds: float) -> None:
        self._scheduler, self._committed, self._heard_seconds = scheduler, committed, heard_seconds

    def wait(self, seconds: float) -> bool:
        before = self._committed.times
        self._committed.wait(seconds)
        heard = self._committed.times > before
        if heard:
            self._scheduler.sleep(self._heard_seconds * self._scheduler.random.random())
        return heard

    def interrupt(self) -> None:
        self._committed.notify()

    def close(self) -> None:
        """Nothing to close."""
