"""Outcomes from many threads, written in few statements, by one thread."""

from __future__ import annotations

import heapq
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

from msgspec.structs import replace

from effects.job import QUARANTINE_QUEUE
from effects.outcome import Retry, Unknown
from effects.registry import Registry
from effects.settlement import Settlement, decide
from effects.store.ledger import Ledger
from effects.store.settle import Settled, settle
from effects.store.store import Store
from effects.worker.outage import Outage

BATCH_MAX = 500
ENOUGH = 100  # outcomes that wait for no more company
SLICE_SECONDS = 0.005
TIMERS_MAX = 10_000

_log = logging.getLogger("effects.worker")
_LEVELS = {"succeeded": logging.INFO, "dead": logging.ERROR, "cancelled": logging.INFO}


class Settler(threading.Thread):
    """Writes settlements until it is closed, in batches, whatever becomes of the database meanwhile.

    Args:
        patience: seconds that a small batch may wait for company.
        wake: called after every write with the lanes in which it may have made jobs claimable.
        settled: told of every accepted settlement (progress, counts).
    """

    def __init__(
        self,
        store: Store,
        job_types: Registry,
        ledgers: Mapping[str, Ledger],
        outage: Outage,
        *,
        patience: Callable[[], float],
        wake: Callable[[Collection[str]], None],
        settled: Callable[[Settlement], None],
    ) -> None:
        super().__init__(name="effects-settler", daemon=True)
        self._store, self._job_types, self._ledgers, self._outage = store, job_types, ledgers, outage
        self._patience, self._wake, self._settled = patience, wake, settled
        self._pending: deque[Settlement] = deque()
        self._batch: list[Settlement] = []  # being written
        self._arrived = threading.Event()
        self._idle = threading.Event()
        self._idle.set()
        self._awaited: dict[int, threading.Event] = {}  # job id → set once its settlement is written, or given up
        self._closing = False
        self._abandon = False
        self._timers: list[float] = []

    def add(self, settlement: Settlement) -> None:
        """Write this soon."""
        self._pending.append(settlement)
        if self._idle.is_set():
            self._idle.clear()
        if not self._arrived.is_set():
            self._arrived.set()

    def add_and_wait(self, settlement: Settlement) -> None:
        """Write this soon, and return when it is written or given up."""
        written = self._awaited[settlement.job.id] = threading.Event()
        self.add(settlement)
        written.wait()

    @property
    def unwritten(self) -> list[Settlement]:
        """What was added and may not be written yet."""
        return [*self._pending, *self._batch]  # in this order: a batch is known before it leaves the queue

    @property
    def pending(self) -> bool:
        return not self._idle.is_set()

    def next_retry(self) -> float | None:
        """Monotonic time of the next retry that this worker knows of; those that have passed are forgotten."""
        now = time.monotonic()
        while self._timers and self._timers[0] <= now:
            heapq.heappop(self._timers)
        return self._timers[0] if self._timers else None

    def close(self, timeout_seconds: float, *, abort: Callable[[], bool]) -> None:
        """Write what is waiting and end. After the time, or once `abort()`, what is left is left to rescue."""
        self._closing = True
        self._arrived.set()
        until = time.monotonic() + timeout_seconds
        while self.is_alive() and time.monotonic() < until:
            self.join(0.05)
            if abort() and self._outage.under_way:
                break
        self._abandon = True
        for written in list(self._awaited.values()):
            written.set()

    def run(self) -> None:
        while True:
            self._arrived.wait()
            self._linger()
            self._arrived.clear()
            while self._pending and not self._abandon:
                batch = self._take()
                self._write(batch)
                self._batch = []
                self._tell(batch)
            if not self._pending:
                self._idle.set()
                if self._pending:  # one came between the two lines above
                    self._idle.clear()
            if self._closing and (self._abandon or not self._pending):
                return

    def _tell(self, batch: Sequence[Settlement]) -> None:
        if self._awaited:
            for settlement in batch:
                if (written := self._awaited.pop(settlement.job.id, None)) is not None:
                    written.set()

    def _linger(self) -> None:
        until = time.monotonic() + self._patience()
        while len(self._pending) < ENOUGH and not self._closing and (left := until - time.monotonic()) > 0:
            threading.Event().wait(min(left, SLICE_SECONDS))

    def _take(self) -> list[Settlement]:
        count = min(len(self._pending), BATCH_MAX)
        self._batch = [self._pending[number] for number in range(count)]
        for _ in range(count):
            self._pending.popleft()
        return self._batch

    def _write(self, batch: Sequence[Settlement], *, plain: bool = False) -> None:
        """Write a batch; one that fails is cut in two, so that a bad row harms itself alone.

        Where not even a `plain` one can be written, the lease runs out and rescue takes the job.
        """
        try:
            written = self._outage.ride_out(
                lambda: settle(self._store, batch, self._ledgers), give_up=lambda: self._abandon
            )
        except Exception as error:
            if len(batch) > 1:
                middle = len(batch) // 2
                self._write(batch[:middle])
                self._write(batch[middle:])
            elif not plain:
                self._after_failure(batch[0], error)
        else:
            if written is not None:
                self._report(written)

    def _after_failure(self, settlement: Settlement, error: Exception) -> None:
        """One outcome that cannot be written as it is: record that, as plainly as possible, once."""
        job, code = settlement.job, "settle_failed" if settlement.apply is None else "apply_failed"
        _log.error("settle.failed", extra={"job": job.id, "type": job.job_type, "error": type(error).__name__})
        text = f"recording the outcome failed: {type(error).__name__}"
        # What the handler did is not undone by our failure to write it down: the type's policy for it decides.
        happened = settlement.verdict in ("done", "unknown")
        failure = Unknown(text, code=code) if happened else Retry(text, code=code)
        plain = decide(job, self._job_types.get(job.job_type), failure, released=True)
        verdict = "unknown" if happened else settlement.verdict
        self._write([replace(plain, outcome="failed", verdict=verdict)], plain=True)

    def _report(self, written: Settled) -> None:
        for settlement in written.accepted:
            self._settled(settlement)
            self._remember_retry(settlement)
            _log_outcome(settlement)
        for settlement in written.stale:
            _log_stale(settlement)
        self._wake({lane for one in written.accepted for lane in _opened_lanes(one)})

    def _remember_retry(self, settlement: Settlement) -> None:
        if not settlement.ends and len(self._timers) < TIMERS_MAX:
            wait = max(settlement.delay_seconds, settlement.pause_seconds)
            heapq.heappush(self._timers, time.monotonic() + wait + 0.001)


def _opened_lanes(settlement: Settlement) -> Iterator[str]:
    """Where the end of this attempt lets others run: behind its limit or its group, or the job itself again."""
    job = settlement.job
    if job.limit_key is not None or job.group_key is not None:
        yield job.home_queue
    if not settlement.ends:
        yield from (job.home_queue, job.queue, QUARANTINE_QUEUE if settlement.lost else job.queue)
        if settlement.placement is not None:
            yield settlement.placement.queue


def _log_stale(settlement: Settlement) -> None:
    """A late outcome changes nothing. It is evidence all the same: the effect may have happened twice."""
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
    level = _LEVELS.get(settlement.status, logging.WARNING if settlement.outcome == "failed" else logging.INFO)
    if not settlement.outcome or not _log.isEnabledFor(level):
        return
    job = settlement.job
    fields: dict[str, object] = {"job": job.id, "type": job.job_type, "attempt": job.attempts}
    if settlement.error_code:
        fields["code"] = settlement.error_code
    if settlement.status == "failed":
        fields["retry_in_seconds"] = round(settlement.delay_seconds, 3)
    if settlement.pause_seconds:
        fields["pause_seconds"] = round(settlement.pause_seconds, 3)
    fields["took_ms"] = round(settlement.duration_seconds * 1000, 1)
    _log.log(level, f"job.{settlement.outcome if not settlement.ends else settlement.status}", extra=fields)
