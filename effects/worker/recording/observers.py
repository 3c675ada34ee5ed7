"""Who is told what a worker has committed: numbers, log, spans, hooks, those who wait for a job, and the queues.

Numbers are counted by minute, job type and queue, and written with the heartbeat. A worker writes the totals of its own
rows, again while their minute lasts: writing twice changes nothing, and no worker touches another's. A crash loses what
was counted since the last heartbeat.
"""

from __future__ import annotations

import heapq
import logging
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Protocol

from effects.app.hooks import Hooks
from effects.kit import histogram
from effects.kit.logs import RateLimitedLogger, error_places, own_logger
from effects.kit.text.wording import shown_status
from effects.model.job import QUARANTINE_QUEUE
from effects.model.settlement import Execution, Settlement
from effects.store.db.store import Store
from effects.store.notifier import Notifier
from effects.store.numbers.rollups import WorkerRollup, write_rollups
from effects.store.numbers.samples import take_sample
from effects.store.schema.tables import MINUTE, ROLLUP_COUNTS
from effects.worker.machine.runtime import Runtime
from effects.worker.queues.worker_queues import WorkerQueues

TIMERS_MAX = 10_000

_log = own_logger("effects.worker")
_LEVELS = {"succeeded": logging.INFO, "dead": logging.ERROR, "cancelled": logging.INFO}


class Observer(Protocol):
    """Told of each batch after its commit, by the thread that committed it, which waits meanwhile.

    An observer writes nothing in that transaction. What it raises is logged and counted, changes nothing, and it is
    told of the next batch as before.
    """

    def released(self, executions: Sequence[Execution]) -> None:
        """These attempts are recorded as released: their effects may begin."""
        return

    def recorded(self, settlements: Sequence[Settlement]) -> None:
        """These outcomes are recorded. Jobs taken back from lost workers are among them (`Settlement.lost`)."""
        return

    def refused(self, settlements: Sequence[Settlement]) -> None:
        """The fence refused these outcomes: their jobs were no longer this worker's. Nothing of them is recorded."""
        return


class Observers:
    """The observers of one worker, told in the order in which they were added.

    Attributes:
        errors: class of an observer → how often it has raised.
    """

    def __init__(self, runtime: Runtime) -> None:
        self._is_interrupt = runtime.is_interrupt
        self._observers: list[Observer] = []
        self._log: dict[str, RateLimitedLogger] = {}
        self._lock = threading.Lock()  # settler, rescuer and handlers that release tell
        self.errors: Counter[str] = Counter()

    def add(self, *observers: Observer) -> None:
        """Tell these too, after those that are there."""
        self._observers += observers

    def released(self, executions: Sequence[Execution]) -> None:
        self._tell(lambda observer: observer.released(executions))

    def recorded(self, settlements: Sequence[Settlement]) -> None:
        self._tell(lambda observer: observer.recorded(settlements))

    def refused(self, settlements: Sequence[Settlement]) -> None:
        self._tell(lambda observer: observer.refused(settlements))

    def _tell(self, call: Callable[[Observer], object]) -> None:
        for observer in self._observers:
            try:
                call(observer)
            except BaseException as error:
                self._failed(observer, error)

    def _failed(self, observer: Observer, error: BaseException) -> None:
        """Count it, and log its class and place: its text may quote a payload."""
        if self._is_interrupt(error):
            raise error
        name = type(observer).__name__
        with self._lock:
            self.errors[name] += 1
            log = self._log.setdefault(name, RateLimitedLogger(_log, "observer.failed"))
        log.error(f"{name}: {type(error).__name__} at {error_places(error)}")


class RetryTimes(Observer):
    """When jobs of this worker are to be tried again, so that its dispatcher looks then."""

    def __init__(self, runtime: Runtime) -> None:
        self._now = runtime.monotonic
        self._times: list[float] = []

    def recorded(self, settlements: Sequence[Settlement]) -> None:
        for settlement in settlements:
            if not settlement.ends and len(self._times) < TIMERS_MAX:
                wait = max(settlement.delay_seconds, settlement.pause_seconds)
                heapq.heappush(self._times, self._now() + wait + 0.001)

    def next_at(self) -> float | None:
        """Monotonic time of the next retry that this worker knows of; those that have passed are forgotten."""
        now = self._now()
        while self._times and self._times[0] <= now:
            heapq.heappop(self._times)
        return self._times[0] if self._times else None


class EndAnnouncer(Observer):
    """Announces the end of jobs that someone waits for."""

    def __init__(self, notifier: Notifier) -> None:
        self._notifier = notifier

    def recorded(self, settlements: Sequence[Settlement]) -> None:
        for settlement in settlements:
            if settlement.ends:
                self._notifier.ended(settlement.job.id)


class HookCaller(Observer):
    """Has the app's hooks called, by their own thread behind a bounded queue."""

    def __init__(self, hooks: Hooks) -> None:
        self._hooks = hooks

    def recorded(self, settlements: Sequence[Settlement]) -> None:
        for settlement in settlements:
            self._hooks.recorded(settlement)


class SpanEnder(Observer):
    """Ends the span of each attempt with the outcome that was recorded for it."""

    def released(self, executions: Sequence[Execution]) -> None:
        for execution in executions:
            if execution.span is not None:
                execution.span.released()

    def recorded(self, settlements: Sequence[Settlement]) -> None:
        for settlement in settlements:
            if (execution := settlement.execution) is not None and execution.span is not None:
                execution.span.end(settlement, recorded=True)

    def refused(self, settlements: Sequence[Settlement]) -> None:
        for settlement in settlements:
            if (execution := settlement.execution) is not None and execution.span is not None:
                execution.span.end(settlement, recorded=False)


class OutcomeLog(Observer):
    """Logs one line for each recorded outcome, and for each that the fence refused."""

    def recorded(self, settlements: Sequence[Settlement]) -> None:
        for settlement in settlements:
            if settlement.lost:
                _log_rescued(settlement)
            else:
                _log_outcome(settlement)

    def refused(self, settlements: Sequence[Settlement]) -> None:
        """A late outcome changes nothing, but is evidence that the effect may have happened twice."""
        for settlement in settlements:
            if settlement.outcome:
                _log.warning("lease.lost", extra={**_facts(settlement), "late_outcome": settlement.outcome})


class QueueLooks(Observer):
    """Has queues look again where the end of an attempt lets other jobs run. Told last: the dispatcher acts on it."""

    def __init__(self, queues: WorkerQueues) -> None:
        self._queues = queues

    def recorded(self, settlements: Sequence[Settlement]) -> None:
        for settlement in settlements:
            if (group_key := settlement.job.group_key) is not None:
                self._queues.look_at_group(settlement.job.home_queue, group_key)
        self._queues.ask({queue for settlement in settlements for queue in _opened_queues(settlement)})


def _opened_queues(settlement: Settlement) -> Iterator[str]:
    """Where the end of this attempt lets others run: behind its limit or its group, or the job itself again."""
    job = settlement.job
    if job.limit_key is not None or job.group_key is not None:
        yield job.home_queue
    if not settlement.ends:
        yield from (job.home_queue, job.queue, QUARANTINE_QUEUE if settlement.lost else job.queue)
        if settlement.routing is not None:
            yield settlement.routing.queue


def _facts(settlement: Settlement) -> dict[str, object]:
    job = settlement.job
    return {"job": job.id, "type": job.job_type, "attempt": job.attempts}


def _log_rescued(settlement: Settlement) -> None:
    job = settlement.job
    facts = {"job": job.id, "type": job.job_type, "lost": job.lost_count + 1}
    _log.warning("job.rescued", extra={**facts, "status": shown_status(settlement.status)})


def _log_outcome(settlement: Settlement) -> None:
    level = _LEVELS.get(settlement.status, logging.INFO if settlement.outcome == "snoozed" else logging.WARNING)
    if not settlement.outcome or not _log.isEnabledFor(level):
        return
    facts = _facts(settlement)
    if settlement.error_code:
        facts["code"] = settlement.error_code
    if settlement.outcome == "paused" and settlement.message:  # words for the operator; of others they need not be
        facts["reason"] = settlement.message
    if settlement.status == "failed":
        facts["retry_in_seconds"] = round(settlement.delay_seconds, 3)
    if settlement.pause_seconds:
        facts["pause_seconds"] = round(settlement.pause_seconds, 3)
    if settlement.outcome == "timed_out" and settlement.stack:
        facts["at"] = " < ".join(settlement.stack.splitlines())
    facts["took_ms"] = round(settlement.duration_seconds * 1000, 1)
    event = f"job.{settlement.outcome if not settlement.ends else settlement.status}"
    _log.log(level, event, extra=facts, exc_info=settlement.logged_error)


LATE_SECONDS = 600.0  # a row that was written once may be folded soon after, and is then written no more

_OUTCOMES = {**{name: name for name in ROLLUP_COUNTS if name != "dead"}, "succeeded": "done", "paused": "snoozed"}
_PLACES = {outcome: ROLLUP_COUNTS.index(column) for outcome, column in _OUTCOMES.items()}
_DEAD = ROLLUP_COUNTS.index("dead")
_bucket_of = histogram.bucket_of  # once for each attempt


class _Totals:
    """One row while it is counted. `changes`: attempts counted; `written`: how many had been when it was written."""

    __slots__ = ("changes", "counts", "run_counts", "run_seconds", "sent", "wait_counts", "wait_seconds", "written")

    def __init__(self) -> None:
        self.counts = [0] * len(ROLLUP_COUNTS)
        self.wait_counts, self.run_counts = histogram.empty(), histogram.empty()
        self.wait_seconds = self.run_seconds = 0.0
        self.changes = self.written = 0
        self.sent = False

    def add(self, settlement: Settlement, place: int) -> None:
        self.changes += 1
        self.counts[place] += 1
        if settlement.status == "dead":
            self.counts[_DEAD] += 1
        if settlement.execution is not None:  # it ran here
            wait, run = settlement.wait_seconds, settlement.duration_seconds
            if wait > 0:
                self.wait_seconds += wait
            self.run_seconds += run
            self.wait_counts[_bucket_of(wait)] += 1
            self.run_counts[_bucket_of(run)] += 1


class _Minute:
    """The rows of one minute, under one name."""

    def __init__(self, begins_at: float, worker: str) -> None:
        self.begins_at, self.worker = begins_at, worker
        self.rows: dict[tuple[str, str], _Totals] = {}

    def changed(self) -> Iterator[tuple[tuple[str, str], _Totals]]:
        return ((key, totals) for key, totals in self.rows.items() if totals.changes > totals.written)


class RollupRecorder(Observer):
    """The rollups of one worker, and its share in the fleet's samples.

    Args:
        lease_seconds: after which a silent worker is not counted as alive.
    """

    def __init__(self, store: Store, runtime: Runtime, *, lease_seconds: float) -> None:
        self._store, self._now, self._lease_seconds = store, runtime.monotonic, lease_seconds
        self._unique, self._name = runtime.unique, runtime.unique()
        self._ahead = 0.0  # of the monotonic clock: the database's
        self._minute = _Minute(0.0, self._name)
        self._ends_at = float("-inf")  # of the minute, monotonic
        self._minutes = [self._minute]
        self._sampled: float | None = None
        self._lock = threading.Lock()

    def set_clock(self, now: float) -> None:
        """Take over the database's time, in seconds since 1970."""
        here = self._now()
        with self._lock:
            self._ahead = now - here
            self._ends_at = min(self._ends_at, here)  # look at the clock again

    def recorded(self, settlements: Sequence[Settlement]) -> None:
        """Count ends of attempts, and of jobs that ended without one. Callable from any thread.

        A batch at once: beside a job that does nothing, a lock and a look at the clock for each would be felt.
        """
        now = self._now()
        with self._lock:
            if now >= self._ends_at:
                self._begin_minute(now)
            rows = self._minute.rows
            for settlement in settlements:
                place = _PLACES.get(settlement.outcome or settlement.status)
                if place is None:  # it merely went back
                    continue
                job = settlement.job
                key = (job.job_type, job.quarantined_from or job.queue)
                totals = rows.get(key)
                if totals is None:
                    totals = rows[key] = _Totals()
                totals.add(settlement, place)

    def _begin_minute(self, here: float) -> None:
        now = here + self._ahead
        begins_at = now // MINUTE * MINUTE
        self._ends_at = here + begins_at + MINUTE - now
        if begins_at == self._minute.begins_at:
            return
        if begins_at < self._minute.begins_at:  # a clock was set back: what was written of that minute must stay
            self._name = self._unique()
        self._minute = _Minute(begins_at, self._name)
        self._minutes.append(self._minute)

    def write(self) -> None:
        """Write what has changed, and the fleet's sample of this minute unless it is there.

        Raises:
            StoreUnavailable, StoreConflict, StoreRejected: what was not written is, next time.
        """
        self._write_rollups()
        minute = (self._now() + self._ahead) // MINUTE
        if minute != self._sampled:
            take_sample(self._store, self._lease_seconds)
            self._sampled = minute

    def _write_rollups(self) -> None:
        now = self._now() + self._ahead
        with self._lock:
            self._forget_late(now)
            changed = [(totals, totals.changes, _row(minute, key, totals))
                       for minute in self._minutes for key, totals in minute.changed()]  # fmt: skip
            for totals, _, _ in changed:
                totals.sent = True
        if changed:
            write_rollups(self._store, [row for _, _, row in changed])
        with self._lock:
            for totals, changes, _ in changed:
                totals.written = changes
            self._minutes = [minute for minute in self._minutes if minute is self._minute or any(minute.changed())]

    def _forget_late(self, now: float) -> None:
        for minute in self._minutes:
            if minute.begins_at < now - LATE_SECONDS:
                lost = [key for key, totals in minute.changed() if totals.sent]
                for key in lost:
                    del minute.rows[key]
                if lost:
                    _log.warning("numbers.lost", extra={"rows": len(lost)})


def _row(minute: _Minute, key: tuple[str, str], totals: _Totals) -> WorkerRollup:
    job_type, queue = key
    rollup = WorkerRollup(
        minute.begins_at, MINUTE, job_type, queue,
        wait_seconds=totals.wait_seconds, run_seconds=totals.run_seconds,
        wait_counts=totals.wait_counts.copy(), run_counts=totals.run_counts.copy(), worker=minute.worker,
    )  # fmt: skip
    for name, count in zip(ROLLUP_COUNTS, totals.counts, strict=True):
        setattr(rollup, name, count)
    return rollup
