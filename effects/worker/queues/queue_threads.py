"""What carries out the jobs of one queue: threads, a short buffer of claimed jobs, and the time limits of what runs.

A queue of async job types (`QueueInFlight`) has as many attempts in flight as it may, all on the event loop.
"""

from __future__ import annotations

import itertools
import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import partial
from queue import Empty, SimpleQueue
from typing import Protocol

from msgspec.structs import replace

from effects.model.job import QUARANTINE_QUEUE, Job
from effects.model.settlement import Returned, Settlement, TimedOut
from effects.store.claim.lease import CLAIM_MAX, ClaimRequest
from effects.worker.attempts.answer import with_frames
from effects.worker.attempts.attempt import RunningAttempt
from effects.worker.context import WorkerContext
from effects.worker.queues.handler_loop import HandlerLoop
from effects.worker.supervisor import Supervisor

PREFETCH_SECONDS = 1.0  # a claim counts as started, so no more is claimed than threads start within this
RATE_LIMITED_SECONDS = 0.2  # or within this, where a key waits for tokens: they come to no more than a burst
AHEAD_MAX = 2 * CLAIM_MAX  # one claim is under way while the threads are at the one before
AHEAD_CHARS_MAX = 8_000_000  # of payloads
LOADED_AHEAD_MAX = 512  # where a job type loads what it needs of each, of a size that is not known here
SIZE_FALLS = 0.7  # from claim to claim
LOW_SECONDS = 0.1  # what is at hand lasts no longer: claim again
REST_SECONDS = 10.0  # a thread that has had no job for so long ends
SLOW_SCAN_SECONDS = 0.05  # a claim that reads many entries of jobs that are gone, which a held snapshot keeps
SCAN_SHARE = 0.05  # of the time, for those
SCAN_GAIN = 2.0  # a claim that starts further on takes at most half the time, or what is slow is something else


class FullScans:
    """When a queue's claims read all of its jobs, and when they start where the last one ended. Times are monotonic."""

    def __init__(self) -> None:
        self.next_at = float("-inf")
        self._slow_seconds = SLOW_SCAN_SECONDS
        self._seconds = 0.0  # the last one took

    def is_due(self, now: float) -> bool:
        return now >= self.next_at

    def note(self, began: float, ended: float) -> None:
        """A scan of all jobs took so long: a slow one is not repeated at once."""
        self._seconds = ended - began
        if self._seconds > self._slow_seconds:
            self.next_at = ended + self._seconds / SCAN_SHARE
        elif self._seconds <= SLOW_SCAN_SECONDS:
            self._slow_seconds = SLOW_SCAN_SECONDS

    def note_shorter(self, began: float, ended: float) -> None:
        """A claim from where the last one ended took so long. No gain: the database is far away, or busy."""
        if (ended - began) * SCAN_GAIN > self._seconds:
            self._slow_seconds = self._seconds * SCAN_GAIN
            self.next_at = ended


class SettlementWriter(Protocol):
    """Who writes what an attempt has come to."""

    def add(self, settlement: Settlement) -> None:
        """Write this soon."""

    def wait_written(self, settlement: Settlement) -> None:
        """Return when what was added is written, or given up."""


class QueueThreads:
    """The threads of one queue: started when there is a job for them, ended after ten seconds without one.

    In quarantine nothing is prefetched, and each settlement is written before the next attempt: a job that kills its
    worker would take the innocent ones behind it along, and the outcome of the one before.

    Args:
        threads: the most there are at a time.
        loop: carries out async attempts; a thread waits for each, so that they take up a thread as all others do.
        settler: takes every settlement.
        prefetch: how many jobs more than free threads can start now may be claimed.
    """

    def __init__(
        self,
        context: WorkerContext,
        request: ClaimRequest,
        loop: HandlerLoop,
        settler: SettlementWriter,
        *,
        threads: int,
        prefetch: int,
    ) -> None:
        self.request = request
        self.threads = threads
        self._loop = loop
        self._given_up: set[RunningAttempt] = set()  # their threads, or those that they called, have not come back
        self.asked = True  # there may be jobs to claim; False after an empty claim
        self.look_at: float | None = None  # monotonic: when to claim again without a request
        self.full_scans = FullScans()
        self.rate_limited = False  # the last claim left such a key behind
        self._is_quarantine = request.queue == QUARANTINE_QUEUE
        self._prefetch = 0 if self._is_quarantine else prefetch
        self._may_start, self._settler, self._wake = context.may_start, settler, context.wake.set
        self._runtime = context.runtime
        self._now, self._lease_clock = context.runtime.monotonic, context.runtime.lease_clock
        self._supervisor: Supervisor | None = None
        self._alive = 0  # threads, without those that were given up
        self._counting = threading.Lock()
        self._buffer: SimpleQueue[RunningAttempt | None] = context.runtime.queue()
        self._running: dict[RunningAttempt, bool] = {}  # started and not settled
        self._open: set[RunningAttempt] = set()  # accepted, and not yet handed on to the settler
        self._numbers = itertools.count(1)
        self._average_seconds: float | None = None
        self._payload_chars = 1.0  # on average, in the last claim
        self._low_water = 0

    def start(self, supervisor: Supervisor) -> None:
        """Accepted attempts are carried out from now on."""
        self._supervisor = supervisor

    def _start_missing(self) -> None:
        """Start threads until there is one for each of their attempts, or as many as there may be."""
        if (supervisor := self._supervisor) is None:
            return
        with self._counting:
            missing = min(self.threads, self._threads_wanted()) - self._alive
            self._alive += max(missing, 0)
        for _ in range(missing):
            supervisor.start(supervisor.watch(f"{self.request.queue}-{next(self._numbers)}"), self._work)

    def _threads_wanted(self) -> int:
        return len(self._open)

    # -- for the dispatcher ----------------------------------------------------------------------------------

    @property
    def running(self) -> list[RunningAttempt]:
        return list(self._running)

    @property
    def hanging(self) -> list[RunningAttempt]:
        """Attempts that were given up and whose handlers have not come back."""
        return [attempt for attempt in self._given_up.copy() if attempt.hangs]

    @property
    def open(self) -> list[RunningAttempt]:
        """What was accepted, begun or not, and is not yet handed on to the settler."""
        return list(self._open)

    @property
    def idle(self) -> bool:
        return not self._open

    @property
    def saturated(self) -> bool:
        """Every thread is at work, and more is at hand."""
        return self._buffer.qsize() > 0

    def free_slots(self) -> int:
        """How many more jobs to claim: what free threads can start now, plus at most a second's work."""
        each_second = 0.0
        if self._average_seconds is not None:
            each_second = self.threads / max(self._average_seconds, 1e-5)
        seconds = RATE_LIMITED_SECONDS if self.rate_limited else PREFETCH_SECONDS
        prefetch = min(int(each_second * seconds), self._prefetch, int(AHEAD_CHARS_MAX / self._payload_chars))
        self._low_water = min(int(each_second * LOW_SECONDS), prefetch // 2)
        waiting = self._buffer.qsize()
        if waiting > self._low_water:
            return 0
        return max(0, self.threads - len(self._running) + prefetch - waiting)

    def silent(self) -> list[RunningAttempt]:
        """The attempts that have run for so long that their limit keys count as failing, the oldest first."""
        seconds = self.request.local.failing_after_seconds
        if seconds is None:
            return []
        since = self._now() - seconds
        return list(itertools.takewhile(lambda attempt: attempt.started <= since, self.running))

    def update_keys(self) -> None:
        """Tell the next claim what this worker has in flight of each limit key, and which of them are silent."""
        local = self.request.local
        if local.bounds or local.failing_after_seconds is not None:
            in_flight = Counter(key for attempt in self.open if (key := attempt.job.limit_key) is not None)
            silent = {key for attempt in self.silent() if (key := attempt.job.limit_key) is not None}
            local.update(in_flight, silent)

    def look_in(self, seconds: float) -> None:
        """Look again after so many seconds, or earlier where that was known."""
        look_at = self._now() + seconds
        self.look_at = look_at if self.look_at is None else min(look_at, self.look_at)

    def learn_size(self, jobs: Sequence[Job]) -> None:
        """How large payloads are: so many are claimed ahead that memory does not grow with them.

        A claim of larger ones counts at once, one of smaller ones little by little: they may be mixed.
        """
        if jobs:
            chars = sum(len(job.payload) for job in jobs) / len(jobs)
            self._payload_chars = max(1.0, chars, self._payload_chars * SIZE_FALLS)

    def accept(self, attempt: RunningAttempt, *, claimed_at: float, leased_at: float) -> None:
        """Hold an attempt until a thread is free, or until its lease is too short to run it.

        Args:
            claimed_at, leased_at: when it was claimed, by the monotonic clock and by the lease clock.
        """
        job_type = attempt.job_type
        attempt.claimed = claimed_at
        attempt.start_by = leased_at + self.request.lease_seconds[job_type.name] - job_type.time_limit_seconds
        self._open.add(attempt)
        self._hold(attempt)

    def _hold(self, attempt: RunningAttempt) -> None:
        self._buffer.put(attempt)
        if self._alive < self.threads:
            self._start_missing()

    def _unstarted(self) -> Iterator[RunningAttempt]:
        while True:
            try:
                attempt = self._buffer.get_nowait()
            except Empty:
                return
            if attempt is not None:
                yield attempt

    def drop_unstarted(self) -> None:
        """Forget everything that no thread has begun."""
        for attempt in self._unstarted():
            self._open.discard(attempt)

    def give_back_unstarted(self) -> None:
        for attempt in self._unstarted():
            self._hand_on(attempt, attempt.settle(Returned()))

    def give_up_overdue(self) -> None:
        """Give up attempts past their time limit: their threads are abandoned and replaced."""
        now = self._now()
        for attempt in self.running:
            if now > attempt.deadline and self._give_up(attempt):
                self._hand_on(attempt, self._timed_out(attempt))
                attempt.cancel_task()  # only now: what a cancelled task answers is no answer
                self._abandon(attempt)

    def _timed_out(self, attempt: RunningAttempt) -> Settlement:
        """With the frames of its handler, which show where it hangs."""
        settlement = attempt.settle(TimedOut(attempt.job_type.time_limit_seconds))
        return with_frames(settlement, attempt.frames())

    def _give_up(self, attempt: RunningAttempt) -> bool:
        self._given_up.add(attempt)  # first: its thread, which may come back at this moment, takes it out
        if self._take_over(attempt):
            return True
        self._given_up.discard(attempt)  # it was quicker
        return False

    def _abandon(self, attempt: RunningAttempt) -> None:
        """Its thread may never come back: another takes its place."""
        with self._counting:
            self._alive -= 1
        self._start_missing()

    def cut_short(self) -> None:
        """Settle what still runs, as far as it is known."""
        for attempt in self.running:
            if self._take_over(attempt):
                self._hand_on(attempt, attempt.cut_short())
                attempt.cancel_task()

    def _take_over(self, attempt: RunningAttempt) -> bool:
        """Become the one who settles it. Its handler's own answer, if it ever comes, is a late one."""
        attempt.lost = True
        return self._running.pop(attempt, False)

    def _hand_on(self, attempt: RunningAttempt, settlement: Settlement) -> None:
        """In this order: a held job is listed by us, by the settler, or by both."""
        self._settler.add(settlement)
        self._open.discard(attempt)

    def close(self) -> None:
        """End the threads once they are free."""
        for _ in range(self.threads):
            self._buffer.put(None)

    # -- the threads -----------------------------------------------------------------------------------------

    def _work(self) -> None:
        frame = partial(self._runtime.frame, self._runtime.current())
        while (attempt := self._next()) is not None:
            try:
                attempt.frame_of_thread = frame
                if not self._carry_out(attempt):
                    return  # given up while it ran: another thread has this one's place
            except BaseException:
                self._keep_answer(attempt)
                raise
            del attempt  # or it would live until the thread's next one

    def _keep_answer(self, attempt: RunningAttempt) -> None:
        """After a fault of ours, as a handler's own error is an outcome: what was answered is not lost."""
        if attempt in self._open and (self._running.pop(attempt, False) or not attempt.lost):
            self._hand_on(attempt, attempt.cut_short())

    def _next(self) -> RunningAttempt | None:
        """Wait for an attempt; None when the thread is to end."""
        while True:
            try:
                return self._buffer.get(timeout=REST_SECONDS)
            except Empty:
                with self._counting:
                    self._alive -= 1  # first: whoever puts one in now sees that we are gone, or we see the one
                    if not self._buffer.qsize():
                        return None
                    self._alive += 1

    def _carry_out(self, attempt: RunningAttempt) -> bool:
        if not self._begin(attempt):
            return True
        # No variable holds the settlement: its error's frames refer to this one, a cycle that only a collection ends.
        return self._end(attempt, self._loop.wait_for(attempt) if attempt.is_async else attempt.run())

    def _begin(self, attempt: RunningAttempt) -> bool:
        """Whether it begins now; else it goes back."""
        if not self._may_start() or self._lease_clock() > attempt.start_by:
            self._hand_on(attempt, attempt.settle(Returned()))
            return False
        attempt.start()
        self._running[attempt] = True
        return True

    def _end(self, attempt: RunningAttempt, settlement: Settlement) -> bool:
        """False if it was given up meanwhile, and its answer comes too late."""
        if not self._running.pop(attempt, False):
            self._came_back(attempt)
            if settlement.verdict in ("done", "not_done"):  # the fence refuses it, and it is kept with the attempt
                self._settler.add(replace(settlement, execution=replace(attempt.execution, span=None)))
            return False
        self._hand_on(attempt, settlement)
        if attempt.is_async:
            self._watch_calls(attempt)
        if self._is_quarantine:
            self._settler.wait_written(settlement)
        self._learn(self._now() - attempt.started)
        if self.asked and self._takes_more():
            self._wake()
        return True

    def _watch_calls(self, attempt: RunningAttempt) -> None:
        """A thread that its handler waits for no longer, as after its own timeout, hangs past its time limit."""
        attempt.released_until = attempt.deadline
        self._given_up.add(attempt)
        self._came_back(attempt)

    def _came_back(self, attempt: RunningAttempt) -> None:
        """One that was given up hangs no more; an async one once no thread is left in what it called."""
        if attempt.is_async:
            self._loop.after_calls(attempt, partial(self._given_up.discard, attempt))
        else:
            self._given_up.discard(attempt)

    def _takes_more(self) -> bool:
        return self._buffer.qsize() <= self._low_water

    def _learn(self, seconds: float) -> None:
        """A moving average of how long a handler takes; races between threads only blur it."""
        average = self._average_seconds
        self._average_seconds = seconds if average is None else average + (seconds - average) * 0.1


BATCH = 64  # a claim waits until so many are free, where that takes no longer than this:
BATCH_SECONDS = 0.02


class QueueInFlight(QueueThreads):
    """Claims no more than is free in flight; what is claimed is begun at once.

    Silent attempts beyond those that failing keys may have give up their slots: others are claimed in their place, up
    to as many as are reserved for keys that do not fail.

    A job of a blocking type that was put into this queue by name runs in a thread, as in any other queue.

    Args:
        request: of at most so many attempts in flight as its `threads`.
        threads: for jobs of blocking types.
    """

    def __init__(
        self,
        context: WorkerContext,
        request: ClaimRequest,
        loop: HandlerLoop,
        settler: SettlementWriter,
        *,
        threads: int,
    ) -> None:
        super().__init__(context, request, loop, settler, threads=threads, prefetch=0)
        self._slots = request.threads
        self._accepted: dict[RunningAttempt, bool] = {}  # the loop has not begun them yet
        self._waits_until: float | None = None  # monotonic; for more to be free
        self._batch = 1
        self._given_up_slots = 0  # by silent attempts

    @property
    def _free(self) -> int:
        return self._slots + self._given_up_slots - len(self._open)

    @property
    def saturated(self) -> bool:
        """Whether all are in flight that may be."""
        return self._free <= 0

    def free_slots(self) -> int:
        """How many more jobs to claim: all that is free, once that is worth a claim or has waited for long enough."""
        self._free_slots_of_silent()
        free, now = self._free, self._now()
        if free <= 0:
            return 0
        self._batch = self._worth_a_claim()
        if free >= self._batch or (self._waits_until is not None and now >= self._waits_until):
            self._waits_until = None
            return free
        if self._waits_until is None:
            self._waits_until = now + BATCH_SECONDS
        self.look_in(self._waits_until - now)
        return 0

    def _free_slots_of_silent(self) -> None:
        """Look again when the next attempt turns silent, where all are in flight that may be."""
        reserved, after = self.request.reserved_threads, self.request.local.failing_after_seconds
        if not reserved or after is None:
            return
        silent = len(self.silent())
        self._given_up_slots = min(max(0, silent - (self._slots - reserved)), reserved)
        if self._free <= 0 and (turning := self.running[silent : silent + 1]):
            self.look_in(max(BATCH_SECONDS, turning[0].started + after - self._now()))

    def _worth_a_claim(self) -> int:
        """As many as come free within a moment, at most 64."""
        if not self._average_seconds:
            return 1
        return max(1, min(BATCH, self._slots, int(self._slots / self._average_seconds * BATCH_SECONDS)))

    def _takes_more(self) -> bool:
        free = self._free
        return free >= self._batch or free == 1  # the first to end has a claim wait for more

    def _hold(self, attempt: RunningAttempt) -> None:
        if attempt.is_async:
            self._accepted[attempt] = True
            self._loop.carry_out(attempt, self)
        else:
            super()._hold(attempt)

    def _threads_wanted(self) -> int:
        return sum(not attempt.is_async for attempt in self.open)

    def _unstarted(self) -> Iterator[RunningAttempt]:
        for attempt in list(self._accepted):
            if self._accepted.pop(attempt, False):
                yield attempt
        yield from super()._unstarted()

    def _abandon(self, attempt: RunningAttempt) -> None:
        if not attempt.is_async:
            super()._abandon(attempt)

    # -- on the loop's thread --------------------------------------------------------------------------------

    def begin(self, attempt: RunningAttempt) -> bool:
        """Whether it is begun: it may have gone back before the loop came to it."""
        try:
            return self._accepted.pop(attempt, False) and self._begin(attempt)
        except BaseException:
            self._keep_answer(attempt)
            raise

    def end(self, attempt: RunningAttempt, settlement: Settlement) -> None:
        """Its task has ended, now or long after it was given up."""
        try:
            self._end(attempt, settlement)
        except BaseException:
            self._keep_answer(attempt)
            raise
