"""The loops that a worker cannot do without, each on its own thread: one that ends, or stands still, is a fault.

The supervisor logs it and notifies the worker, which then ends with exit code 70.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass

from effects.kit.logs import error_places, frame_places, own_logger
from effects.worker.machine.runtime import Runtime

LOOK_SECONDS = 1.0
BOUND_SECONDS_MIN = 10.0  # below this a machine that is merely busy would count as a fault
DOUBT_SECONDS = 5.0  # a supervisor that does not look for so long is at fault itself
FRAMES_MAX = 30

_log = own_logger("effects.worker")


@dataclass(frozen=True, slots=True)
class PartFault:
    """The fault of a part of the worker: `ended` by an error, `stalled`, or `failed` in one call."""

    part: str
    what: str

    def __str__(self) -> str:
        return f"{self.part} {self.what}"


class Watch:
    """One watched loop and its thread. The loop reports each round."""

    __slots__ = ("_now", "ask", "bound_seconds", "came_round_at", "ended", "name", "stands_still", "thread")

    def __init__(self, name: str, bound_seconds: float, now: Callable[[], float]) -> None:
        self.name = name
        self.bound_seconds = max(bound_seconds, BOUND_SECONDS_MIN)
        self.thread: threading.Thread | None = None
        self.ended = False  # it returned, or its end is known as a fault
        self.stands_still = False
        self.ask: Callable[[], None] | None = (
            None  # at each look of the supervisor's; has a loop report that does not by itself
        )
        self._now = now
        self.came_round_at = now()

    def came_round(self) -> None:
        self.came_round_at = self._now()


class Supervisor:
    """Starts threads and looks at them every second.

    Args:
        failed: called with every fault, on the thread that finds it; must not raise.

    Attributes:
        caller: the thread that runs the dispatcher, once it is watched.
    """

    def __init__(self, runtime: Runtime, *, failed: Callable[[PartFault], None]) -> None:
        self._runtime, self._now, self._failed = runtime, runtime.monotonic, failed
        self._each_second: list[Callable[[], object]] = []
        self.caller: Watch | None = None
        self._watches: dict[threading.Thread, Watch] = {}
        self._ending = runtime.event()
        self._thread: threading.Thread | None = None
        self._looked_at = self._now()
        self._doubted_at: float | None = None

    # -- what is watched -------------------------------------------------------------------------------------

    def watch(self, name: str, bound_seconds: float = float("inf")) -> Watch:
        """For a loop that has yet to be started: `bound_seconds` is the longest that it may take to come round."""
        return Watch(name, bound_seconds, self._now)

    def watch_caller(self, name: str, bound_seconds: float) -> Watch:
        """Watch the calling thread, which reports its own end by `ended` or `forget`."""
        watch = self.watch(name, bound_seconds)
        watch.thread = self._runtime.current()
        self._watches[watch.thread] = self.caller = watch
        return watch

    def is_caller(self) -> bool:
        """Whether the calling thread is the one that runs the dispatcher."""
        return self.caller is not None and self.caller.thread is self._runtime.current()

    def each_second(self, act: Callable[[], object]) -> None:
        """Do this every second, after what was given before. It waits for nothing; where it raises, that is a fault."""
        self._each_second.append(act)

    def start(self, watch: Watch, run: Callable[[], None]) -> None:
        """Start the loop's thread: where `run` raises, that is a fault."""

        def guarded() -> None:
            try:
                run()
            except BaseException as error:
                self.ended(watch, error)
            finally:
                watch.ended = True

        watch.thread = self._runtime.start(guarded, f"effects-{watch.name}")
        self._watches[watch.thread] = watch

    def forget(self, watch: Watch) -> None:
        """It has ended in order."""
        watch.ended = True

    def came_round(self) -> None:
        """The calling thread waits for something that is out of our hands, and is alive."""
        watch = self._watches.get(self._runtime.current())
        if watch is not None:
            watch.came_round()

    # -- faults ----------------------------------------------------------------------------------------------

    def ended(self, watch: Watch, error: BaseException | None) -> None:
        """A loop ended that should not have."""
        watch.ended = True
        at = error_places(error, FRAMES_MAX) if error is not None else None
        self._say(PartFault(watch.name, "ended"), error=type(error).__name__ if error is not None else None, at=at)

    def part_failed(self, part: str, error: BaseException) -> None:
        """What the calling thread was to do for this part failed, which ends the worker; the thread goes on."""
        self._say(PartFault(part, "failed"), error=type(error).__name__, at=error_places(error, FRAMES_MAX))

    def _stands_still(self, watch: Watch, seconds: float) -> None:
        watch.stands_still = True  # logged once
        self._say(PartFault(watch.name, "stalled"), seconds=round(seconds, 1), at=self._where(watch.thread))

    def _where(self, thread: threading.Thread | None) -> str | None:
        frame = self._runtime.frame(thread) if thread is not None else None
        return frame_places(frame, FRAMES_MAX) if frame is not None else None

    def _say(self, fault: PartFault, **facts: object) -> None:
        self._failed(fault)  # first: a line in the log may wait for a full pipe
        _log.error("worker.part_failed", extra={"part": fault.part, "what": fault.what, **facts})

    # -- the supervisor's own thread -------------------------------------------------------------------------

    def begin(self) -> None:
        self._looked_at = self._now()
        self._thread = self._runtime.start(self._run, "effects-supervisor")

    def stop(self) -> None:
        self._ending.set()

    def _run(self) -> None:
        try:
            while not self._ending.wait(LOOK_SECONDS):
                for act in self._each_second:
                    act()
                self.look()
        except BaseException as error:
            self._ending.set()
            self._say(PartFault("supervisor", "ended"), error=type(error).__name__, at=error_places(error, FRAMES_MAX))

    def look(self) -> None:
        """Find parts that have ended or stalled."""
        now = self._now()
        asleep = (
            now - self._looked_at - 2 * LOOK_SECONDS
        )  # then it was the whole process that stalled, as after SIGSTOP
        self._looked_at = now
        for thread, watch in list(self._watches.items()):
            alive = thread.is_alive()  # read before `ended`, which is set before the thread ends
            if asleep > 0:
                watch.came_round_at += asleep
            if watch.ended:
                self._watches.pop(thread, None)
            elif not alive:
                self.ended(watch, None)
            elif (silent := now - watch.came_round_at) > watch.bound_seconds and not watch.stands_still:
                self._stands_still(watch, silent)
            elif watch.ask is not None:
                watch.ask()

    def check(self) -> None:
        """Whether the supervisor itself still checks; called by the dispatcher in each round."""
        if self._thread is None or self._ending.is_set():
            return
        now = self._now()
        if not self._thread.is_alive():
            self._lost("ended")
        elif now - self._looked_at < DOUBT_SECONDS:
            self._doubted_at = None
        elif self._doubted_at is None:  # we may both just have been woken; it looks soon, if it can
            self._doubted_at = now
        elif now - self._doubted_at > DOUBT_SECONDS:
            self._lost("stalled")

    @property
    def is_looking(self) -> bool:
        """Whether it has looked lately; before its start too."""
        return self._thread is None or self._now() - self._looked_at < 2 * DOUBT_SECONDS

    def _lost(self, what: str) -> None:
        self._ending.set()
        self._say(PartFault("supervisor", what), at=self._where(self._thread))


class Service:
    """What heartbeat, rescuer, scheduler, settler and wake-up have in common.

    Attributes:
        bound_seconds: the loop comes round within this, or the worker ends. Default: its end alone is a fault.
    """

    name = "service"
    bound_seconds = float("inf")

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._ending = runtime.event()
        self._watch: Watch | None = None
        self._substituted = False

    def start(self, supervisor: Supervisor) -> None:
        watch = supervisor.watch(self.name, self.bound_seconds)
        supervisor.start(watch, lambda: self._live(watch))
        self._watch = watch  # only now: until here callers see the previous thread

    def substitute(self, supervisor: Supervisor) -> None:
        """Start one replacement thread after the first has ended or stalled."""
        if not self._substituted:
            self._substituted = True
            self._hand_over()
            self.start(supervisor)

    def _hand_over(self) -> None:
        """What the first thread had in its hands becomes the second's."""

    def _live(self, watch: Watch) -> None:
        self.run()
        if not self._ending.is_set() and self._watch is watch:
            raise RuntimeError(f"the loop of the {self.name} returned")

    def run(self) -> None:
        """Run the loop until it is stopped."""
        raise NotImplementedError

    def came_round_seconds_ago(self, now: float) -> float | None:
        return None if self._watch is None else now - self._watch.came_round_at

    def came_round(self) -> None:
        if self._watch is not None:
            self._watch.came_round()

    def stop(self) -> None:
        self._ending.set()

    def is_alive(self) -> bool:
        return self._watch is not None and self._watch.thread is not None and self._watch.thread.is_alive()

    def join(self, seconds: float) -> None:
        """Wait at most so long until it has ended; not at all if it was never started or has stalled."""
        watch = self._watch
        if watch is not None and watch.thread is not None and not watch.stands_still:
            watch.thread.join(seconds)
