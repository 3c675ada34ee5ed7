"""The lanes of one worker together: which there are, and what is asked of all of them."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Collection, Iterator, Mapping

from effects.app import Effects
from effects.job import DEFAULT_QUEUE, QUARANTINE_QUEUE
from effects.outcome import Unknown
from effects.settlement import GivenBack, Settlement
from effects.store.claim import Lane
from effects.worker.attempt import RunningAttempt
from effects.worker.lane import LaneThreads

BUSY_SECONDS, SATURATED_SECONDS = 0.002, 0.04


def planned(app: Effects, given: Mapping[str, int] | None) -> list[Lane]:
    """The lanes that the app's job types and settings name, or those given (queue → threads), and quarantine."""
    job_types, settings = list(app.job_types), app.settings
    margin = settings.lease_seconds / 2
    leases = {job_type.name: job_type.time_limit_seconds + margin for job_type in job_types}
    fair = {job_type.queue for job_type in job_types if job_type.fair}

    def kept(queue: str, threads: int) -> int:
        share = max((one.kept_share for one in job_types if one.queue == queue), default=0.0)
        return min(threads - 1, math.ceil(threads * share))

    if given is None:
        named = {DEFAULT_QUEUE: settings.threads, **{one.queue: settings.threads for one in job_types}}
        given = {**named, **settings.lane_threads()}
    return [
        Lane(queue=queue, lease_seconds=leases, threads=threads, fair=queue in fair, kept=kept(queue, threads))
        for queue, threads in {**given, QUARANTINE_QUEUE: 1}.items()
    ]


class Lanes:
    """Their threads, from `start` to `close`.

    Args:
        wake: set when the dispatcher has something to look at.
        may_start, give_back: as in `LaneThreads`.
        finish: takes every settlement. finish_alone: those of the quarantine, where the next job may be the one that
            kills us, and must not take this one's outcome along; it returns when that is written.
    """

    def __init__(
        self,
        lanes: Collection[Lane],
        wake: threading.Event,
        *,
        may_start: Callable[[], bool],
        give_back: Callable[[RunningAttempt], None],
        finish: Callable[[Settlement], None],
        finish_alone: Callable[[Settlement], None],
    ) -> None:
        self._wake = wake
        self._lanes = [
            LaneThreads(
                lane, lane.threads,
                prefetch=lane.queue != QUARANTINE_QUEUE,
                may_start=may_start, give_back=give_back, wake=wake.set,
                finish=finish_alone if lane.queue == QUARANTINE_QUEUE else finish,
            )
            for lane in lanes
        ]  # fmt: skip

    def __iter__(self) -> Iterator[LaneThreads]:
        return iter(self._lanes)

    def start(self) -> None:
        for lane in self._lanes:
            lane.start()

    def close(self) -> None:
        for lane in self._lanes:
            lane.close()

    # -- what the dispatcher asks ----------------------------------------------------------------------------

    def ask(self, queues: Collection[str] | None = None) -> None:
        """Have these lanes, or all, look at the queue again."""
        for lane in self._lanes:
            if queues is None or lane.lane.queue in queues:
                lane.asked = True
                lane.opens_at = None  # the claim will tell anew
        self._wake.set()

    def patience(self) -> float:
        """Seconds that an outcome may wait for others, to be written with them.

        0 where nothing else runs. A moment where threads are free: what they could do may wait behind this outcome,
        for its limit's or its group's sake. Longer where every lane that works has more at hand than it has threads.
        """
        working = [lane for lane in self._lanes if not lane.idle]
        if not working:
            return 0.0
        return SATURATED_SECONDS if all(lane.behind for lane in working) else BUSY_SECONDS

    def busy(self) -> bool:
        return any(not lane.idle for lane in self._lanes)

    @property
    def stuck(self) -> int:
        """Threads that hang in a handler that was given up."""
        return sum(lane.stuck for lane in self._lanes)

    @property
    def running(self) -> list[RunningAttempt]:
        return [attempt for lane in self._lanes for attempt in lane.running]

    @property
    def opens_at(self) -> float:
        """Monotonic time at which some key that has jobs will have a token for them."""
        return min((lane.opens_at for lane in self._lanes if lane.opens_at is not None), default=float("inf"))

    def overdue(self) -> list[Settlement]:
        return [settlement for lane in self._lanes for settlement in lane.overdue()]

    # -- what happens to all that they hold ------------------------------------------------------------------

    def open_ids(self) -> set[int]:
        """The jobs that were accepted and not yet handed on to the settler."""
        return {attempt.job.id for lane in self._lanes for attempt in lane.open}

    def unstarted(self) -> list[RunningAttempt]:
        """Take back everything that no thread has begun."""
        return [attempt for lane in self._lanes for attempt in lane.unstarted()]

    def cut_short(self) -> list[Settlement]:
        """Take over what still runs. Released means unknown; else it was never begun."""
        return [
            _cut_short(attempt) for lane in self._lanes for attempt in lane.running if lane.take_over(attempt)
        ]  # fmt: skip

    def disown(self) -> None:
        """Our leases are gone: nothing that waits here may start, nothing that runs may release."""
        self.unstarted()
        for attempt in self.running:
            attempt.lost = True

    def pass_on_cancel(self, job_ids: set[int]) -> None:
        for attempt in self.running:
            if attempt.job.id in job_ids:
                attempt.cancel_requested = True


def _cut_short(attempt: RunningAttempt) -> Settlement:
    if attempt.released:
        return attempt.settle(Unknown("the worker stopped before a verdict came", code="shutdown"))
    return attempt.settle(GivenBack())
