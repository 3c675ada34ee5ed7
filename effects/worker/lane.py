"""A lane: a queue with threads of its own, a short buffer of claimed jobs, and an eye on the clock."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable
from queue import Empty, SimpleQueue

from effects.settlement import Settlement, TimedOut
from effects.store.claim import CLAIM_MAX, Lane
from effects.worker.attempt import RunningAttempt

PREFETCH_SECONDS = 1.0  # a claim counts as started, so no more is claimed than threads start within this
PACED_SECONDS = 0.2  # or within this, where a key waits for tokens: they come to no more than a burst
LOW_SECONDS = 0.1  # what is at hand lasts no longer: claim again


class LaneThreads:
    """The threads of one lane.

    Args:
        prefetch: whether to claim more than free threads can start now. Not in quarantine: a job that kills
            its worker would take the innocent ones behind it along.
        may_start: asked before every attempt; False sends the job back unstarted.
        finish: takes every settlement; give_back: takes every attempt that was not started.
        wake: called when the lane can take more.
    """

    def __init__(
        self,
        lane: Lane,
        threads: int,
        *,
        prefetch: bool,
        may_start: Callable[[], bool],
        finish: Callable[[Settlement], None],
        give_back: Callable[[RunningAttempt], None],
        wake: Callable[[], None],
    ) -> None:
        self.lane = lane
        self.threads = threads
        self.stuck = 0  # threads that were given up and have not come back
        self.asked = True  # there may be something to claim; False after a claim that found nothing
        self.opens_at: float | None = None  # monotonic: a key that has jobs will have a token for them
        self.paced = False  # the last claim left such a key behind
        self._prefetch = prefetch
        self._may_start, self._finish, self._give_back, self._wake = may_start, finish, give_back, wake
        self._buffer: SimpleQueue[RunningAttempt | None] = SimpleQueue()
        self._running: dict[RunningAttempt, bool] = {}  # begun, and nobody has settled it
        self._open: set[RunningAttempt] = set()  # accepted, and not yet handed on to the settler
        self._numbers = itertools.count(1)
        self._average_seconds: float | None = None
        self._low_water = 0

    def start(self) -> None:
        for _ in range(self.threads):
            self._start_thread()

    def _start_thread(self) -> None:
        name = f"effects-{self.lane.queue}-{next(self._numbers)}"
        threading.Thread(target=self._work, name=name, daemon=True).start()

    # -- what the dispatcher asks ----------------------------------------------------------------------------

    @property
    def running(self) -> list[RunningAttempt]:
        return list(self._running)

    @property
    def open(self) -> list[RunningAttempt]:
        """What was accepted, begun or not, and is not yet handed on to the settler."""
        return list(self._open)

    @property
    def idle(self) -> bool:
        return not self._open

    @property
    def behind(self) -> bool:
        """Every thread is at work, and more is at hand."""
        return self._buffer.qsize() > 0

    def room(self) -> int:
        """How many more jobs to claim: what free threads can start now, plus at most a second's work."""
        each_second = 0.0
        if self._prefetch and self._average_seconds is not None:
            each_second = self.threads / max(self._average_seconds, 1e-5)
        seconds = PACED_SECONDS if self.paced else PREFETCH_SECONDS
        prefetch = min(int(each_second * seconds), CLAIM_MAX)
        self._low_water = min(int(each_second * LOW_SECONDS), prefetch // 2)
        waiting = self._buffer.qsize()
        if waiting > self._low_water:
            return 0
        return max(0, self.threads - len(self._running) + prefetch - waiting)

    def accept(self, attempt: RunningAttempt) -> None:
        self._open.add(attempt)
        self._buffer.put(attempt)

    def unstarted(self) -> list[RunningAttempt]:
        """Take back everything that no thread has begun."""
        taken: list[RunningAttempt] = []
        while True:
            try:
                attempt = self._buffer.get_nowait()
            except Empty:
                return taken
            if attempt is not None:
                self._open.discard(attempt)
                taken.append(attempt)

    def overdue(self) -> list[Settlement]:
        """Give up attempts past their time limit: their threads are abandoned and replaced."""
        settlements = []
        now = time.monotonic()
        for attempt in self.running:
            if now > attempt.deadline and self.take_over(attempt):
                settlements.append(attempt.settle(TimedOut(attempt.job_type.time_limit_seconds)))
                self.stuck += 1
                self._start_thread()
        return settlements

    def take_over(self, attempt: RunningAttempt) -> bool:
        """Become the one who settles it. Its handler's own answer, if it ever comes, is dropped."""
        attempt.lost = True
        self._open.discard(attempt)
        return self._running.pop(attempt, False)

    def close(self) -> None:
        """End the threads once they are free."""
        for _ in range(self.threads):
            self._buffer.put(None)

    # -- the threads -----------------------------------------------------------------------------------------

    def _work(self) -> None:
        get, finish, running, threads_wake = self._buffer.get, self._finish, self._running, self._wake
        while (attempt := get()) is not None:
            if not self._may_start():
                self._give_back(attempt)
                self._open.discard(attempt)
                continue
            attempt.start()
            running[attempt] = True
            settlement = attempt.run()
            if not running.pop(attempt, False):
                self.stuck -= 1
                return  # given up while it ran: another thread has this one's place
            finish(settlement)
            self._open.discard(attempt)
            self._learn(time.monotonic() - attempt.started)
            if self.asked and self._buffer.qsize() <= self._low_water:
                threads_wake()

    def _learn(self, seconds: float) -> None:
        """A moving average of how long a handler takes; races between threads only blur it."""
        known = self._average_seconds
        self._average_seconds = seconds if known is None else known + (seconds - known) * 0.1
