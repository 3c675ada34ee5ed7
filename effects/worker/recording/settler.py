"""Outcomes from many threads, written in few statements, by one thread."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress

from effects.kit.process import Newest
from effects.model.job import AttemptId
from effects.model.settlement import Settlement
from effects.store.claim.lease import CLAIM_MAX
from effects.store.db.deadlines import CodeAbandoned
from effects.store.queue.settle import Settled
from effects.worker.context import WorkerContext
from effects.worker.recording.failover_evidence import FailoverEvidence
from effects.worker.recording.observers import Observers
from effects.worker.recording.verdicts import VerdictWriter
from effects.worker.supervisor import Service

BATCH_MAX = 2 * CLAIM_MAX
UNWRITTEN_MAX = 2 * BATCH_MAX  # outcomes that wait: with more, no more jobs are claimed
UNWRITTEN_SHARE = 1 / 8  # of a lease: so long they may wait, at the pace of the last batches
FIRST_PACE = 2.0, 100.0  # seconds and outcomes, before there was a batch: 20 ms each
FULL_BATCH = 100  # outcomes: written without waiting for more
SLICE_SECONDS = 0.005
BLOCKED_SECONDS = 0.5  # between two tries of an outcome that another transaction keeps from being written
ABANDON_SECONDS = 2.0  # after it was cut, an `apply` that has not returned is left behind with its thread
LEFT_BEHIND_MAX = 3  # threads in which an `apply` does not return: with more, only a fresh process helps
BLOCKED_PASS_SECONDS = 1.0  # so long they are tried before the others have their turn


class Settler(Service):
    """Writes settlements in batches until it is closed, through database outages.

    If its thread ends or stalls, another one continues with all settlements not confirmed as written: the fence
    recognises what is. What it has written it tells the evidence first, which must not fail, and then the observers.

    Args:
        max_linger: seconds that a small batch may wait for company.
    """

    name = "settler"

    def __init__(
        self,
        context: WorkerContext,
        evidence: FailoverEvidence,
        observers: Observers,
        *,
        max_linger: Callable[[], float],
    ) -> None:
        super().__init__(context.runtime)
        self._context, self._evidence, self._observers = context, evidence, observers
        self._max_linger, self._now = max_linger, context.runtime.monotonic
        self._writer = VerdictWriter(context)
        self.bound_seconds = context.settings.lease_seconds
        self._pending: deque[Settlement] = deque()
        self._batch: list[Settlement] = []  # being written
        self._reported: set[AttemptId] = set()  # of the batch
        self._left_behind: list[threading.Thread | None] = []
        self._blocked: deque[tuple[float, Settlement]] = deque()  # by other transactions; when to try again (monotonic)
        self.unwritable = Newest[int, None](UNWRITTEN_MAX)  # jobs whose outcomes could not be; rescue takes them
        self._turn = 0  # of the thread that may take a batch
        self._taking = threading.Lock()
        self._arrived, self._idle = context.runtime.event(), context.runtime.event()
        self._idle.set()
        self._awaited: dict[AttemptId, threading.Event] = {}  # set once its settlement is written, or given up
        self.wrote_at: float | None = None  # monotonic
        self._pace = FIRST_PACE  # of the last batches, the older the less they count

    def add(self, settlement: Settlement) -> None:
        """Write this soon."""
        self._pending.append(settlement)
        if self._idle.is_set():
            self._idle.clear()
        if not self._arrived.is_set():
            self._arrived.set()

    def wait_written(self, settlement: Settlement) -> None:
        """Return when what was added is written, or given up."""
        written = self._awaited[settlement.job.attempt_id] = self._runtime.event()
        if self._writer.abandoned or all(waiting is not settlement for waiting in self.unwritten):
            self._awaited.pop(settlement.job.attempt_id, None)  # written before this call
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

    def close(self) -> None:
        """Write what is waiting, and end."""
        self._ending.set()
        self._arrived.set()

    def abandon(self) -> None:
        """Write no more: what is left is left to rescue."""
        self._writer.abandoned = True
        for written in list(self._awaited.values()):
            written.set()

    def _hand_over(self) -> None:
        with self._taking:
            self._turn += 1
            left = [
                settlement for settlement in reversed(self._batch) if settlement.job.attempt_id not in self._reported
            ]
            self._pending.extendleft(left)
        self._arrived.set()

    def leave_behind(self) -> None:
        """Leave a thread behind in which an `apply` does not return; another writes that it failed. Every second.

        With too many of them the first is taken for one that stalls, which ends the worker.
        """
        store, supervisor = self._context.store, self._context.supervisor
        for call in store.deadlines.abandon(ABANDON_SECONDS):
            store.free_writer()
            self._writer.blame(call.code)
            self._hand_over()
            watch = self._watch
            self.start(supervisor)
            self._left_behind = [thread for thread in self._left_behind if thread is not None and thread.is_alive()]
            if watch is not None and len(self._left_behind) < LEFT_BEHIND_MAX:
                self._left_behind.append(watch.thread)
                supervisor.forget(watch)

    def run(self) -> None:
        with suppress(CodeAbandoned):  # another thread has taken over
            self._run(self._turn)

    def _run(self, turn: int) -> None:
        while True:
            self._arrived.wait(BLOCKED_SECONDS if self._blocked else self.bound_seconds / 4)
            self.came_round()
            self._linger()
            self._arrived.clear()
            while self._pending and not self._writer.abandoned:
                batch = self._take(turn)
                if batch is None:
                    return  # another thread has taken over
                began = self._now()
                self._write(batch, turn)
                self._learn(self._now() - began, len(batch))
                del batch  # or it would live, with its errors' frames, until the next one
            if not self._write_blocked(turn):
                return
            if not self._pending and not self._blocked:
                self._idle.set()
                if self._pending:  # one came between the two lines above
                    self._idle.clear()
            if self._ending.is_set() and (self._writer.abandoned or not (self._pending or self._blocked)):
                return

    def _take(self, turn: int) -> list[Settlement] | None:
        with self._taking:
            if turn != self._turn:
                return None
            count = min(len(self._pending), BATCH_MAX)
            self._batch, self._reported = [self._pending[number] for number in range(count)], set()
            for _ in range(count):
                self._pending.popleft()
            return self._batch

    def _write(self, batch: Sequence[Settlement], turn: int, *, brisk: bool = False) -> None:
        for written in self._writer.write(batch, brisk=brisk):
            self._reported.update(settlement.job.attempt_id for settlement in written.accepted)
            self._report(written)
            self.came_round()
        self._put_aside()
        self._written(batch, turn)
        self.wrote_at = self._now()
        self.came_round()

    def _put_aside(self) -> None:
        """What another transaction keeps from being written waits, and the others need not wait for that.

        What cannot be written at all was carried out: its job must not go back as one that never began.
        """
        blocked, unwritable = self._writer.take_left()
        self._blocked.extend((self._now() + BLOCKED_SECONDS, settlement) for settlement in blocked)
        self.unwritable.update(dict.fromkeys(settlement.job.id for settlement in unwritable))

    def _learn(self, seconds: float, outcomes: int) -> None:
        self._pace = self._pace[0] / 2 + seconds, self._pace[1] / 2 + outcomes

    def _write_blocked(self, turn: int) -> bool:
        """Retry set-aside settlements one by one, for a while; False if another thread has taken over."""
        now = self._now()
        until = now + BLOCKED_PASS_SECONDS
        while self._blocked and self._blocked[0][0] <= now and self._now() < until and not self._writer.abandoned:
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
                if id(settlement) not in blocked and (written := self._awaited.pop(settlement.job.attempt_id, None)):
                    written.set()

    def _linger(self) -> None:
        until = self._now() + self._max_linger()
        while len(self._pending) < FULL_BATCH and not self._ending.is_set() and (left := until - self._now()) > 0:
            self._runtime.sleep(min(left, SLICE_SECONDS))

    def _report(self, written: Settled) -> None:
        try:
            self._evidence.settled(written.accepted)
            self._evidence.refused(written.stale)
        except Exception as error:
            self._context.supervisor.part_failed("evidence", error)
        if self.unwritable:
            for settlement in written.accepted:
                self.unwritable.pop(settlement.job.id, None)
        if written.accepted:
            self._observers.recorded(written.accepted)
        if written.stale:
            self._observers.refused(written.stale)
