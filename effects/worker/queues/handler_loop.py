"""The event loop of async handlers, on its own thread: what runs on it, and who keeps it from coming round."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from types import FrameType
from typing import Any, Protocol

from effects.kit.logs import error_places, frame_places, own_logger
from effects.model.settlement import Settlement
from effects.worker.attempts.attempt import RunningAttempt
from effects.worker.context import WorkerContext
from effects.worker.machine.event_loop import EventLoop
from effects.worker.machine.runtime import Runtime
from effects.worker.supervisor import FRAMES_MAX, Service, Supervisor, Watch

BLOCKED_SECONDS = 1.0  # a handler that lets no other one go on for longer is named
NAMED_EVERY_SECONDS = 60.0

_log = own_logger("effects.worker")


class Carrier(Protocol):
    """Who has an attempt carried out. Both are called on the loop's thread.

    `begin`: whether to begin it now. `end`: takes its settlement.
    """

    def begin(self, attempt: RunningAttempt) -> bool: ...

    def end(self, attempt: RunningAttempt, settlement: Settlement) -> object: ...


class HandlerLoop(Service):
    """Carries out the attempts of async job types, all on one thread, which is started with the first of them.

    While it has something to do the loop comes round within a lease, or the worker ends.
    """

    name = "loop"

    def __init__(self, context: WorkerContext) -> None:
        super().__init__(context.runtime)
        self.bound_seconds = context.settings.lease_seconds
        self._supervisor, self._now = context.supervisor, context.runtime.monotonic
        self._loop: EventLoop | None = None
        self._frame: Callable[[], FrameType | None] | None = None  # of the loop's thread
        self._starting = threading.Lock()
        self._arrived: deque[tuple[RunningAttempt, Carrier]] = deque()
        self._called = False  # the loop is going to look at what arrived
        self._in_flight: dict[RunningAttempt, Carrier] = {}
        self._over = False
        self._asked_at: float | None = None  # monotonic; when the loop was asked to come round, and has not yet
        self._named_at: dict[str, float] = {}  # job type → when the log last named it

    def carry_out(self, attempt: RunningAttempt, carrier: Carrier) -> None:
        """Have the loop carry this out soon."""
        self._arrived.append((attempt, carrier))
        if not self._called:
            self._called = True
            self._running_loop().call(self._begin_arrived)
        if self._over:
            self._cut_arrived()

    def wait_for(self, attempt: RunningAttempt) -> Settlement:
        """Carry this out, and wait for its end."""
        waiter = _WaitingThread(self._runtime)
        self.carry_out(attempt, waiter)
        settlement: Settlement = waiter.ended.get()
        return settlement

    def after_calls(self, attempt: RunningAttempt, then: Callable[[], object]) -> None:
        """Call `then` once no thread is left in what this attempt called by `asyncio.to_thread`: at once where none is.

        Such a call goes on when its task is cancelled.
        """
        if self._loop is None:
            then()
        else:
            self._loop.after_calls(attempt, then)

    def _running_loop(self) -> EventLoop:
        with self._starting:
            if self._loop is None:
                self._loop = self._runtime.event_loop()
                self.start(self._supervisor)
            return self._loop

    def start(self, supervisor: Supervisor) -> None:
        watch = supervisor.watch(self.name, self.bound_seconds)
        watch.ask = partial(self._ask, watch)
        supervisor.start(watch, lambda: self._live(watch))
        self._watch = watch

    def run(self) -> None:
        assert self._loop is not None
        self._frame = partial(self._runtime.frame, self._loop.thread or self._runtime.current())
        try:
            self._loop.run(_log_unhandled)
        finally:
            self._cut_short()
            self._loop.close()

    def stop(self) -> None:
        super().stop()
        with self._starting:
            if self._loop is not None:
                self._loop.stop()

    # -- on the loop's thread --------------------------------------------------------------------------------

    def _begin_arrived(self) -> None:
        self._called = False
        while self._arrived:
            attempt, carrier = self._arrived.popleft()
            if carrier.begin(attempt):
                self._begin(attempt, carrier)

    def _begin(self, attempt: RunningAttempt, carrier: Carrier) -> None:
        assert self._loop is not None

        def ended(task: Any) -> None:
            self._in_flight.pop(attempt, None)
            attempt.left_loop()
            carrier.end(attempt, attempt.cut_short() if task.cancelled() else task.result())

        self._in_flight[attempt] = carrier
        attempt.frame_of_thread = self._frame
        coroutine = attempt.run_async()
        cancel = self._loop.task(coroutine, attempt, ended)
        attempt.on_loop(coroutine, partial(self._loop.call, cancel))

    def _cut_short(self) -> None:
        """Answer for those that can no longer: the loop has ended, by a fault or because the worker does."""
        self._over = True
        for attempt, carrier in list(self._in_flight.items()):
            attempt.lost = True
            carrier.end(attempt, attempt.cut_short())
        self._cut_arrived()

    def _cut_arrived(self) -> None:
        with suppress(IndexError):
            while True:
                attempt, carrier = self._arrived.popleft()
                carrier.end(attempt, attempt.cut_short())

    # -- for the supervisor ----------------------------------------------------------------------------------

    def _ask(self, watch: Watch) -> None:
        """Ask the loop to come round, and who is in the way where it does not."""
        now = self._now()
        if self._asked_at is not None:
            if now - self._asked_at > BLOCKED_SECONDS:
                self._name_who_blocks(now)
        elif self._loop is None or not (self._in_flight or self._arrived):
            watch.came_round()
        else:
            self._asked_at = now
            self._loop.call(partial(self._answer, watch))

    def _answer(self, watch: Watch) -> None:
        self._asked_at = None
        watch.came_round()

    def _name_who_blocks(self, now: float) -> None:
        attempt = self._loop.owner() if self._loop is not None else None
        frame = self._frame() if self._frame is not None else None
        if not isinstance(attempt, RunningAttempt) or frame is None:
            return
        name = attempt.job.job_type
        if now - self._named_at.get(name, float("-inf")) < NAMED_EVERY_SECONDS:
            return
        self._named_at[name] = now
        facts = {"job": attempt.job.id, "type": name, "seconds": round(now - (self._asked_at or now), 1)}
        _log.warning("job.blocks_loop", extra={**facts, "at": frame_places(frame, FRAMES_MAX)})


class _WaitingThread:
    """A thread that waits for an attempt on the loop, in a queue that has blocking ones too."""

    def __init__(self, runtime: Runtime) -> None:
        self.ended = runtime.queue()

    def begin(self, attempt: RunningAttempt) -> bool:
        return True

    def end(self, attempt: RunningAttempt, settlement: Settlement) -> None:
        self.ended.put(settlement)


def _log_unhandled(reason: str, error: BaseException | None, owner: object) -> None:
    facts: dict[str, object] = {"reason": reason}
    if error is not None:
        facts |= {"error": type(error).__name__, "at": error_places(error)}
    if isinstance(owner, RunningAttempt):
        facts |= {"job": owner.job.id, "type": owner.job.job_type}
    _log.error("loop.unhandled", extra=facts)
