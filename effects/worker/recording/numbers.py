"""What this worker's attempts came to, counted by minute, job type and queue, and written with its heartbeat.

A worker writes the totals of its own rows, again while their minute lasts: writing twice changes nothing, and no worker
touches another's. A crash loses what was counted since the last heartbeat.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator, Sequence

from effects import histogram
from effects.model.settlement import Settlement
from effects.store.db.store import Store
from effects.store.numbers.rows import WorkerRollup, write_rollups
from effects.store.numbers.samples import take_sample
from effects.store.schema.operator_tables import MINUTE, ROLLUP_COUNTS
from effects.worker.machine.runtime import Runtime

LATE_SECONDS = 600.0  # a row that was written once may be folded soon after, and is then written no more

_OUTCOMES = {**{name: name for name in ROLLUP_COUNTS if name != "dead"}, "succeeded": "done", "paused": "snoozed"}
_PLACES = {outcome: ROLLUP_COUNTS.index(column) for outcome, column in _OUTCOMES.items()}
_DEAD = ROLLUP_COUNTS.index("dead")
_bucket_of = histogram.bucket_of  # once for each attempt

_log = logging.getLogger("effects.worker")


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


class RollupRecorder:
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

    def count(self, settlements: Sequence[Settlement]) -> None:
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
