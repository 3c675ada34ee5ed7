"""A queue of async job types: as many attempts in flight as it may have, all on the event loop."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from effects.model.settlement import Settlement
from effects.store.claim.claim_request import ClaimRequest
from effects.worker.attempts.attempt import RunningAttempt
from effects.worker.machine.runtime import Runtime
from effects.worker.queues.handler_loop import HandlerLoop
from effects.worker.queues.queue_threads import QueueThreads

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
        options: as of `QueueThreads`; nothing is prefetched.
    """

    def __init__(
        self, request: ClaimRequest, threads: int, runtime: Runtime, loop: HandlerLoop, **options: Any
    ) -> None:
        super().__init__(request, threads, runtime, loop, **options)
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
