"""The queues of one worker: their configuration, and operations on all of them."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping
from typing import Any

from effects.app.effects import Effects
from effects.kit.logs import RateLimitedLogger, own_logger
from effects.kit.text.wording import described
from effects.model.job import HOUSEKEEPING_QUEUE, QUARANTINE_QUEUE
from effects.model.job_type import JobType, safe_message
from effects.store.claim.lease import ClaimRequest
from effects.store.limits.capacity import LocalKeys
from effects.worker.attempts.attempt import RunningAttempt
from effects.worker.context import WorkerContext
from effects.worker.machine.runtime import Runtime
from effects.worker.queues.handler_loop import HandlerLoop
from effects.worker.queues.queue_threads import (
    AHEAD_MAX,
    LOADED_AHEAD_MAX,
    QueueInFlight,
    QueueThreads,
    SettlementWriter,
)
from effects.worker.supervisor import Supervisor

BUSY_SECONDS, SATURATED_SECONDS = 0.002, 0.04

_log = own_logger("effects.worker")


def default_slots(app: Effects, queue: str) -> int:
    """How many attempts of a queue run at a time: as EFFECTS_QUEUES has it, else by the kind of its job types."""
    settings = app.settings
    slots = settings.in_flight if queue in app.job_types.async_queues() else settings.threads
    return settings.queue_threads().get(queue, slots)


def planned(
    app: Effects, slots_by_queue: Mapping[str, int] | None, runtime: Runtime, *, housekeeping: bool = True
) -> list[ClaimRequest]:
    """The queues that the app's job types and settings name, or those given (queue → slots); quarantine; and, with
    `housekeeping`, the queue of our own jobs.
    """
    job_types, settings = list(app.job_types), app.settings
    margin = settings.lease_seconds / 2
    leases = {job_type.name: job_type.time_limit_seconds + margin for job_type in job_types}
    fair = {job_type.queue for job_type in job_types if job_type.fair}

    def reserved(queue: str, threads: int) -> int:
        share = max((job_type.reserved_share for job_type in job_types if job_type.queue == queue), default=0.0)
        return min(threads - 1, math.ceil(threads * share))

    def local_keys(queue: str) -> LocalKeys:
        own = [job_type for job_type in job_types if job_type.queue == queue]
        seconds = [job_type.failing_after_seconds for job_type in own if job_type.failing_after_seconds is not None]
        bounded = [job_type for job_type in own if type(job_type).max_in_flight is not JobType.max_in_flight]
        return LocalKeys(min(seconds, default=None), tuple(LocalBound(job_type, runtime) for job_type in bounded))

    if slots_by_queue is None:
        named = (queue for queue in app.queues if queue != HOUSEKEEPING_QUEUE)
        slots_by_queue = {queue: default_slots(app, queue) for queue in named}
    if housekeeping:
        slots_by_queue = {HOUSEKEEPING_QUEUE: default_slots(app, HOUSEKEEPING_QUEUE), **slots_by_queue}
    return [
        ClaimRequest(
            queue=queue,
            lease_seconds=leases,
            threads=slots,
            fair=queue in fair,
            reserved_threads=reserved(queue, slots),
            local=local_keys(queue),
        )
        for queue, slots in {**slots_by_queue, QUARANTINE_QUEUE: 1}.items()
    ]


class LocalBound:
    """`JobType.max_in_flight`, checked: a failure is logged (`limits.bound_failed`) and bounds nothing."""

    def __init__(self, job_type: JobType[Any], runtime: Runtime) -> None:
        self._job_type, self._is_interrupt = job_type, runtime.is_interrupt
        self._failures = RateLimitedLogger(_log, "limits.bound_failed")

    def __call__(self, limit_key: str) -> int | None:
        try:
            most: object = self._job_type.max_in_flight(limit_key)
        except BaseException as error:
            if self._is_interrupt(error):
                raise
            self._failures.error(f"{self._job_type.name}: max_in_flight: {safe_message(error)}")
            return None
        if most is None or (isinstance(most, int) and not isinstance(most, bool) and most >= 0):
            return most
        self._failures.error(f"{self._job_type.name}: max_in_flight returned {described(most)}; give a count, or None")
        return None


class WorkerQueues:
    """Their threads, and what they have in flight, from `start` to `close`.

    A queue whose types are all async is bounded by what it has in flight. In one with both kinds an async attempt takes
    up a thread as the others do, so that one number bounds both.

    Args:
        loop: carries out async attempts.
        settler: takes every settlement.
    """

    def __init__(
        self, context: WorkerContext, requests: Collection[ClaimRequest], loop: HandlerLoop, settler: SettlementWriter
    ) -> None:
        self._wake, self._now = context.wake, context.runtime.monotonic
        in_flight, loading = context.job_types.async_queues(), context.job_types.loading_queues()

        def queue_of(request: ClaimRequest) -> QueueThreads:
            if request.queue in in_flight:
                return QueueInFlight(context, request, loop, settler, threads=context.settings.threads)
            ahead = LOADED_AHEAD_MAX if request.queue in loading else AHEAD_MAX
            return QueueThreads(context, request, loop, settler, threads=request.threads, prefetch=ahead)

        self._queues = [queue_of(request) for request in requests]

    def __iter__(self) -> Iterator[QueueThreads]:
        return iter(self._queues)

    def start(self, supervisor: Supervisor) -> None:
        for queue in self._queues:
            queue.start(supervisor)

    def close(self) -> None:
        for queue in self._queues:
            queue.close()

    # -- for the dispatcher ----------------------------------------------------------------------------------

    def ask(self, queues: Collection[str]) -> None:
        """Have these queues claim again: there is a reason to."""
        for queue in self._queues:
            if queue.request.queue in queues:
                queue.asked = True
                queue.request.polled = False
                queue.look_at = None  # the next claim sets it again
        self._wake.set()

    def poll(self) -> None:
        """Have all look at the queue again, though nothing says that there is a job; what is known of one that is asked
        already remains.
        """
        for queue in self._queues:
            queue.request.polled |= not queue.asked
            queue.asked = True
            queue.look_at = None  # the next claim sets it again
        self._wake.set()

    def notified(self, queues: Collection[str] | None) -> None:
        """A commit may have made jobs claimable: in these queues, or in any, where most often nothing is."""
        if queues is None:
            self.poll()
        else:
            self.ask(queues)

    def look_first(self) -> None:
        """Look before the first claim: nothing says that there is a job."""
        for queue in self._queues:
            queue.request.polled = True

    def look_at_group(self, home_queue: str, group: str) -> None:
        """An attempt of a job of this group is recorded: look at it before others come up."""
        for queue in self._queues:
            if queue.request.queue == home_queue:
                queue.request.moved.append(group)

    def ask_due(self) -> None:
        """Make queues claim again whose time to do so has come."""
        now = self._now()
        self.ask([queue.request.queue for queue in self._queues if queue.look_at is not None and queue.look_at <= now])

    def max_linger(self) -> float:
        """Seconds that an outcome may wait for others, to be written with them.

        0 where nothing else runs. A moment where threads are free: what they could do may wait behind this outcome,
        for its limit's or its group's sake. Longer where every queue that works has more at hand than it has threads.
        """
        working = [queue for queue in self._queues if not queue.idle]
        if not working:
            return 0.0
        return SATURATED_SECONDS if all(queue.saturated for queue in working) else BUSY_SECONDS

    def busy(self) -> bool:
        return any(not queue.idle for queue in self._queues)

    @property
    def hanging(self) -> list[RunningAttempt]:
        """Attempts that were given up and whose handlers hang."""
        return [attempt for queue in self._queues for attempt in queue.hanging]

    @property
    def open(self) -> list[RunningAttempt]:
        """What was accepted, begun or not, and is not yet handed on to the settler."""
        return [attempt for queue in self._queues for attempt in queue.open]

    @property
    def names(self) -> list[str]:
        return [queue.request.queue for queue in self._queues]

    @property
    def running(self) -> list[RunningAttempt]:
        return [attempt for queue in self._queues for attempt in queue.running]

    @property
    def look_at(self) -> float:
        """Monotonic time at which some queue wants to look again: a key will have a token, groups remain to be seen."""
        return min((queue.look_at for queue in self._queues if queue.look_at is not None), default=float("inf"))

    def give_up_overdue(self) -> None:
        for queue in self._queues:
            queue.give_up_overdue()

    # -- what happens to all that they hold ------------------------------------------------------------------

    def give_back_unstarted(self) -> None:
        for queue in self._queues:
            queue.give_back_unstarted()

    def cut_short(self) -> None:
        """Settle what still runs. Released means unknown; else it was never begun."""
        for queue in self._queues:
            queue.cut_short()

    def fence_off(self) -> None:
        """Fence off: the leases are lost, so no waiting job may start and no running job may release."""
        for queue in self._queues:
            queue.drop_unstarted()
        for attempt in self.running:
            attempt.lost = True

    def pass_on_cancel(self, job_ids: set[int]) -> None:
        for attempt in self.running:
            if attempt.job.id in job_ids:
                attempt.cancel_requested = True
