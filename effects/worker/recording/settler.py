"""Outcomes from many threads, written in few statements, by one thread."""

from __future__ import annotations

import heapq
import logging
import threading
from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

from effects.logs import error_places
from effects.model.job import QUARANTINE_QUEUE
from effects.model.ledger import Ledger
from effects.model.registry import Registry
from effects.model.settlement import Settlement
from effects.store.claim.claim_request import CLAIM_MAX
from effects.store.db.store import Store
from effects.store.queue.settle import Settled
from effects.worker.machine.runtime import Runtime
from effects.worker.recording.verdicts import VerdictWriter
from effects.worker.supervision.outage import Outage, bounds
from effects.worker.supervision.supervisor import Service

BATCH_MAX = 2 * CLAIM_MAX
UNWRITTEN_MAX = 2 * BATCH_MAX  # outcomes that wait: with more, no more jobs are claimed
UNWRITTEN_SHARE = 1 / 8  # of a lease: so long they may wait, at the pace of the last batches
FIRST_PACE = 2.0, 100.0  # seconds and outcomes, before there was a batch: 20 ms each
FULL_BATCH = 100  # outcomes: written without waiting for more
SLICE_SECONDS = 0.005
TIMERS_MAX = 10_000
BLOCKED_SECONDS = 0.5  # between two tries of an outcome that another transaction keeps from being written
BLOCKED_PASS_SECONDS = 1.0  # so long they are tried before the others have their turn

_log = logging.getLogger("effects.worker")
_LEVELS = {"succeeded": logging.INFO, "dead": logging.ERROR, "cancelled": logging.INFO}


class Settler(Service):
    """Writes settlements in batches until it is closed, through database outages.

    If its thread ends or stalls, another one continues with all settlements not confirmed as written: the fence
    recognises what is.

    Args:
        bound_seconds: what it may take over one batch, while the database answers; a lease.
        max_linger: seconds that a small batch may wait for company.
        wake: called after every write with the queues in which it may have made jobs claimable.
        count: called with the accepted settlements of each batch (numbers over time).
        settled: called with every one of them (progress).
        refused: called with each outcome that the fence refused.
    """

    name = "settler"

    def __init__(
        self,
        store: Store,
        job_types: Registry,
        ledgers: Mapping[str, Ledger],
        outage: Outage,
        runtime: Runtime,
        *,
        bound_seconds: float,
        max_linger: Callable[[], float],
        wake: Callable[[Collection[str]], None],
        count: Callable[[Sequence[Settlement]], None],
        settled: Callable[[Settlement], None],
        refused: Callable[[Settlement], None] = lambda settlement: None,
    ) -> None:
        super().__init__(runtime)
        self._refused = refused
        self._now = runtime.monotonic
        self._outage = outage
        self._writer = VerdictWriter(
            store,
            job_types,
            ledgers,
            outage,
            give_up=lambda: self._abandon,
            put_aside=self._put_aside,
            leave=self._leave,
            bound_seconds=bounds(bound_seconds)[0].seconds,
            now=runtime.monotonic,
        )
        self.bound_seconds = bound_seconds
        self._max_linger, self._wake, self._count, self._settled = max_linger, wake, count, settled
        self._pending: deque[Settlement] = deque()
        self._batch: list[Settlement] = []  # being written
        self._blocked: deque[tuple[float, Settlement]] = deque()  # by other transactions; when to try again (monotonic)
        self.unwritable: set[int] = set()  # jobs whose outcomes could not be written; rescue takes them
        self._turn = 0  # of the thread that may take a batch
        self._taking = threading.Lock()
        self._arrived, self._idle = runtime.event(), runtime.event()
        self._idle.set()
        self._awaited: dict[int, threading.Event] = {}  # job id → set once its settlement is written, or given up
        self._abandon = False
        self.wrote_at: float | None = None  # monotonic
        self._pace = FIRST_PACE  # of the last batches, the older the less they count
        self._timers: list[float] = []

    def add(self, settlement: Settlement) -> None:
        """Write this soon."""
        self._pending.append(settlement)
        if self._idle.is_set():
            self._idle.clear()
        if not self._arrived.is_set():
            self._arrived.set()

    def wait_written(self, settlement: Settlement) -> None:
        """Return when what was added is written, or given up."""
        written = self._awaited[settlement.job.id] = self._runtime.event()
        if self._abandon or all(waiting is not settlement for waiting in self.unwritten):
            self._awaited.pop(settlement.job.id, None)  # written before this call
            return
        written.wait()

    @property
    def unwritten(self) -> list[Settlement]:
        """What was added and may not be written yet."""
        # In this order, and those put aside twice: each is known in its next place before it leaves the one before.
        blocked = self._blocked.copy()
        pending, batch = self._pending.copy(), self._batch
        return [*pending, *batch, *(settlement for _, settlement in (*blocked, *self._blocked.copy()))]

    def oldest_unwritten_seconds(self) -> float:
        ends = [settlement.ended_at_monotonic for settlement in self.unwritten if settlement.ended_at_monotonic]
        return max(0.0, self._now() - min(ends)) if ends else 0.0

    @property
    def pending(self) -> bool:
        return not self._idle.is_set()

    @property
    def room(self) -> int:
        """How many more outcomes may wait. If they come faster than they are written, rescue would one day take their
        jobs back, and have them carried out again. Those that are put aside take up room and no time. A full batch may
        always wait, since it is written at once. While some wait there is room for half of one, or none.
        """
        seconds, outcomes = self._pace
        in_time = int(self.bound_seconds * UNWRITTEN_SHARE * outcomes / max(seconds, 1e-6))
        unwritten = len(self._pending) + len(self._batch)
        left = UNWRITTEN_MAX - unwritten - len(self._blocked)
        room = min(left, max(FULL_BATCH, in_time) - unwritten)
        return max(0, room) if room >= FULL_BATCH // 2 or not unwritten else 0

    def next_retry(self) -> float | None:
        """Monotonic time of the next retry that this worker knows of; those that have passed are forgotten."""
        now = self._now()
        while self._timers and self._timers[0] <= now:
            heapq.heappop(self._timers)
        return self._timers[0] if self._timers else None

    def close(self) -> None:
        """Write what is waiting, and end."""
        self._ending.set()
        self._arrived.set()

    def abandon(self) -> None:
        """Write no more: what is left is left to rescue."""
        self._abandon = True
        for written in list(self._awaited.values()):
            written.set()

    def _hand_over(self) -> None:
        with self._taking:
            self._turn += 1
            self._pending.extendleft(reversed(self._batch))
        self._arrived.set()

    def run(self) -> None:
        turn = self._turn
        while True:
            self._arrived.wait(BLOCKED_SECONDS if self._blocked else self.bound_seconds / 4)
            self.came_round()
            self._linger()
            self._arrived.clear()
            while self._pending and not self._abandon:
                batch = self._take(turn)
                if batch is None:
                    return  # another thread has taken over
                began = self._now()
                self._write(batch, turn)
                self._learn(self._now() - began, len(batch))
            if not self._write_blocked(turn):
                return
            if not self._pending and not self._blocked:
                self._idle.set()
                if self._pending:  # one came between the two lines above
                    self._idle.clear()
            if self._ending.is_set() and (self._abandon or not (self._pending or self._blocked)):
                return

    def _take(self, turn: int) -> list[Settlement] | None:
        with self._taking:
            if turn != self._turn:
                return None
            count = min(len(self._pending), BATCH_MAX)
            self._batch = [self._pending[number] for number in range(count)]
            for _ in range(count):
                self._pending.popleft()
            return self._batch

    def _write(self, batch: Sequence[Settlement], turn: int, *, brisk: bool = False) -> None:
        for written in self._writer.write(batch, brisk=brisk):
            self._report(written)
            self.came_round()
        self._written(batch, turn)
        self.wrote_at = self._now()
        self.came_round()

    def _learn(self, seconds: float, outcomes: int) -> None:
        self._pace = self._pace[0] / 2 + seconds, self._pace[1] / 2 + outcomes

    def _put_aside(self, settlement: Settlement) -> None:
        """Another transaction keeps it from being written: the others need not wait for that."""
        self._blocked.append((self._now() + BLOCKED_SECONDS, settlement))

    def _leave(self, settlement: Settlement) -> None:
        """It cannot be written at all. The job was carried out: it must not go back as one that never began."""
        self.unwritable.add(settlement.job.id)

    def _write_blocked(self, turn: int) -> bool:
        """Retry set-aside settlements one by one, for a while; False if another thread has taken over."""
        now = self._now()
        until = now + BLOCKED_PASS_SECONDS
        while self._blocked and self._blocked[0][0] <= now and self._now() < until and not self._abandon:
            with self._taking:
                if turn != self._turn:
                    return False
                batch = self._batch = [self._blocked[0][1]]  # known there before it leaves here
                self._blocked.popleft()
            self._write(batch, turn, brisk=True)
        return True

    def _written(self, batch: Sequence[Settlement], turn: int) -> None:
        with self._taking:
            if turn == self._turn:
                self._batch = []
        if self._awaited:
            blocked = {id(settlement) for _, settlement in self._blocked}
            for settlement in batch:
                if id(settlement) not in blocked and (written := self._awaited.pop(settlement.job.id, None)):
                    written.set()

    def _linger(self) -> None:
        until = self._now() + self._max_linger()
        while len(self._pending) < FULL_BATCH and not self._ending.is_set() and (left := until - self._now()) > 0:
            self._runtime.sleep(min(left, SLICE_SECONDS))

    def _report(self, written: Settled) -> None:
        self._count(written.accepted)
        for settlement in written.accepted:
            try:
                self.unwritable.discard(settlement.job.id)
                self._settled(settlement)
                self._remember_retry(settlement)
                _log_outcome(settlement)
            except BaseException as error:  # it is written: a failing callback must not stop the next
                fields = {"job": settlement.job.id, "error": type(error).__name__, "at": error_places(error)}
                _log.error("settle.unreported", extra=fields)
        for settlement in written.stale:
            _log_stale(settlement)
            self._refused(settlement)
        self._wake({queue for settlement in written.accepted for queue in _opened_queues(settlement)})

    def _remember_retry(self, settlement: Settlement) -> None:
        if not settlement.ends and len(self._timers) < TIMERS_MAX:
            wait = max(settlement.delay_seconds, settlement.pause_seconds)
            heapq.heappush(self._timers, self._now() + wait + 0.001)


def _opened_queues(settlement: Settlement) -> Iterator[str]:
    """Where the end of this attempt lets others run: behind its limit or its group, or the job itself again."""
    job = settlement.job
    if job.limit_key is not None or job.group_key is not None:
        yield job.home_queue
    if not settlement.ends:
        yield from (job.home_queue, job.queue, QUARANTINE_QUEUE if settlement.lost else job.queue)
        if settlement.routing is not None:
            yield settlement.routing.queue


def _log_stale(settlement: Settlement) -> None:
    """Log a stale outcome, which changes nothing but is evidence that the effect may have happened twice."""
    if settlement.outcome:
        job = settlement.job
        fields = {
            "job": job.id,
            "type": job.job_type,
            "attempt": job.attempts,
            "late_outcome": settlement.outcome,
        }
        _log.warning("lease.lost", extra=fields)


def _log_outcome(settlement: Settlement) -> None:
    level = _LEVELS.get(settlement.status, logging.INFO if settlement.outcome == "snoozed" else logging.WARNING)
    if not settlement.outcome or not _log.isEnabledFor(level):
        return
    job = settlement.job
    fields: dict[str, object] = {"job": job.id, "type": job.job_type, "attempt": job.attempts}
    if settlement.error_code:
        fields["code"] = settlement.error_code
    if (
        settlement.outcome == "paused" and settlement.message
    ):  # words for the operator; those of other outcomes need not be
        fields["reason"] = settlement.message
    if settlement.status == "failed":
        fields["retry_in_seconds"] = round(settlement.delay_seconds, 3)
    if settlement.pause_seconds:
        fields["pause_seconds"] = round(settlement.pause_seconds, 3)
    if settlement.outcome == "timed_out" and settlement.stack:
        fields["at"] = " < ".join(settlement.stack.splitlines())
    fields["took_ms"] = round(settlement.duration_seconds * 1000, 1)
    event = f"job.{settlement.outcome if not settlement.ends else settlement.status}"
    _log.log(level, event, extra=fields, exc_info=settlement.logged_error)
