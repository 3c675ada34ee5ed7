"""Virtual time and threads that take turns: one runs until it waits, and the seed decides who is next."""

from __future__ import annotations

import heapq
import itertools
import random
from collections import deque
from collections.abc import Callable
from typing import Any

from greenlet import greenlet

PATIENCE_STEPS = 200_000  # of one world; more is a loop that waits for nothing
LEAST_SECONDS = 1e-6  # that a wait takes: two readings of a clock are never the same


class CrashedError(BaseException):
    """The process of this thread is gone: nothing that it does from here on reaches anybody."""


class SimProcess:
    """Threads that crash and freeze together."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.crashed = False
        self.immune = False  # no fault meets its commits
        self.frozen_until = 0.0
        self.threads: list[SimThread] = []

    def freeze(self, until: float) -> None:
        self.frozen_until = max(self.frozen_until, until)


class SimThread:
    """As much of `threading.Thread` as the worker uses."""

    ident = 0

    def __init__(self, scheduler: Scheduler, process: SimProcess, run: Callable[[], None], name: str) -> None:
        self.name, self.process, self._scheduler = name, process, scheduler
        self.ended = Signal(scheduler)
        self.timer: object = None  # of its wait; an older one in the heap means nothing
        self.waits_for: Signal | None = None
        self.greenlet = greenlet(lambda: self._live(run), scheduler.hub)

    def _live(self, run: Callable[[], None]) -> None:
        try:
            if not self.process.crashed:
                run()
        except CrashedError:
            pass
        finally:
            self.process.threads.remove(self)
            self.ended.set()

    def is_alive(self) -> bool:
        return not self.ended.is_set()

    def join(self, timeout: float | None = None) -> None:
        self.ended.wait(timeout)


class Scheduler:
    """Runs the threads of one world, in one thread of the machine's.

    A thread gives way only at its waits and at the edges of transactions (`step`). Time stands still while any
    thread can go on, and then moves to the end of the earliest wait.
    """

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.now = 0.0
        self.steps = 0
        self.hub = greenlet.getcurrent()
        self.running: SimThread | None = None
        self.preempted: Callable[[SimThread], float] | None = None  # how long a thread that may go on does not
        self._processes: set[SimProcess] = set()
        self._ready: list[SimThread] = []
        self._timers: list[tuple[float, int, SimThread, object]] = []
        self._numbers = itertools.count()

    # -- what threads call -----------------------------------------------------------------------------------

    def start(self, process: SimProcess, run: Callable[[], None], name: str) -> SimThread:
        thread = SimThread(self, process, run, name)
        process.threads.append(thread)
        self._processes.add(process)
        self._ready.append(thread)
        return thread

    def check(self) -> None:
        """End the calling thread here if its process has crashed."""
        if self.running is not None and self.running.process.crashed:
            raise CrashedError

    def sleep(self, seconds: float) -> None:
        self.wait(None, seconds)

    def wait(self, signal: Signal | None, seconds: float | None) -> None:
        """Give way until the signal wakes this thread, or so many seconds have passed."""
        thread = self._caller()
        thread.waits_for = signal
        if signal is not None:
            signal.waiters.append(thread)
        if seconds is not None:
            thread.timer = timer = object()
            heapq.heappush(self._timers, (self.now + max(seconds, LEAST_SECONDS), next(self._numbers), thread, timer))
        self._switch(thread)
        if signal is not None and thread in signal.waiters:
            signal.waiters.remove(thread)

    def wake(self, thread: SimThread) -> None:
        """Have a thread that waits go on."""
        thread.timer = thread.waits_for = None
        self._ready.append(thread)

    @property
    def running_process(self) -> str:
        """Its name."""
        return self.running.process.name if self.running is not None else ""

    def _caller(self) -> SimThread:
        thread = self.running
        assert thread is not None, "only a thread of the world waits"
        self.check()
        return thread

    def _switch(self, thread: SimThread) -> None:
        self.hub.switch()
        if thread.process.crashed:
            raise CrashedError

    # -- what the world calls --------------------------------------------------------------------------------

    def crash(self, process: SimProcess) -> None:
        """End its threads where they stand. The caller's own, if it is one of them, ends at its next check."""
        process.crashed = True
        for thread in list(process.threads):
            if thread is not self.running:
                if thread.waits_for is not None and thread in thread.waits_for.waiters:
                    thread.waits_for.waiters.remove(thread)
                if thread not in self._ready:
                    self.wake(thread)

    def run(self, until: float) -> None:
        """Let threads run until this time."""
        while True:
            while self._ready:
                self._step()
            while self._timers and self._timers[0][2].timer is not self._timers[0][3]:
                heapq.heappop(self._timers)  # of a wait that has ended
            if not self._timers or self._timers[0][0] > until:
                self.now = until
                return
            self.now, _, thread, _ = heapq.heappop(self._timers)
            if thread.waits_for is not None:
                thread.waits_for.waiters.remove(thread)
            self.wake(thread)

    def end(self) -> None:
        """End every thread: one that waits for good would never be collected."""
        for process in self._processes:
            self.crash(process)
        while self._ready:
            self._step()

    def _step(self) -> None:
        self.steps += 1
        assert self.steps < PATIENCE_STEPS, "the threads of this world wait for nothing"
        ready = self._ready
        index = self.random.randrange(len(ready)) if len(ready) > 1 else 0
        ready[index], ready[-1] = ready[-1], ready[index]
        thread = ready.pop()
        if not thread.process.crashed and (until := self._held_up_until(thread)) > self.now:
            thread.timer = timer = object()
            heapq.heappush(self._timers, (until, next(self._numbers), thread, timer))
            return
        self.running = thread
        thread.greenlet.switch()
        self.running = None

    def _held_up_until(self, thread: SimThread) -> float:
        seconds = self.preempted(thread) if self.preempted is not None else 0.0
        return max(self.now + seconds, thread.process.frozen_until)


class Signal:
    """`threading.Event` in virtual time."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler, self._set = scheduler, False
        self.waiters: list[SimThread] = []
        self.times = 0  # that those who wait were woken

    def is_set(self) -> bool:
        self._scheduler.check()
        return self._set

    def set(self) -> None:
        self._set = True
        self.notify()

    def notify(self) -> None:
        """Wake those that wait."""
        self.times += 1
        waiters, self.waiters = self.waiters, []
        for thread in waiters:
            self._scheduler.wake(thread)

    def clear(self) -> None:
        self._set = False

    def wait(self, timeout: float | None = None) -> bool:
        if not self._set:
            self._scheduler.wait(self, timeout)
        return self._set


class SimLock:
    """`threading.Lock`, for those that are held over a transaction."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler, self._held, self._free = scheduler, False, Signal(scheduler)

    def acquire(self, blocking: bool = True) -> bool:
        while self._held:
            if not blocking:
                return False
            self._scheduler.wait(self._free, None)
        self._held = True
        return True

    def release(self) -> None:
        self._held = False
        self._free.notify()

    def locked(self) -> bool:
        return self._held

    def __enter__(self) -> None:
        self.acquire()

    def __exit__(self, *error: object) -> None:
        self.release()


class SimQueue:
    """`queue.SimpleQueue`."""

    def __init__(self, scheduler: Scheduler, empty: type[Exception]) -> None:
        self._scheduler, self._empty, self._arrived = scheduler, empty, Signal(scheduler)
        self._items: deque[Any] = deque()

    def put(self, item: Any) -> None:
        self._items.append(item)
        if self._arrived.waiters:
            waiters = self._arrived.waiters
            self._scheduler.wake(waiters.pop(self._scheduler.random.randrange(len(waiters))))

    def get(self, timeout: float | None = None) -> Any:
        until = None if timeout is None else self._scheduler.now + timeout
        while not self._items:
            seconds = None if until is None else until - self._scheduler.now
            if seconds is not None and seconds <= 0:
                raise self._empty
            self._scheduler.wait(self._arrived, seconds)
        return self._items.popleft()

    def get_nowait(self) -> Any:
        if not self._items:
            raise self._empty
        return self._items.popleft()

    def qsize(self) -> int:
        return len(self._items)
