"""What this worker released and what came of it, in the last minute: evidence where a failover loses commits.

Every write that was acknowledged is remembered for a while. After an outage, or a sign that the database goes by
another history, the worker reads back what it remembers before it claims anything, and writes what is missing again.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Protocol

from msgspec.structs import replace

from effects.errors import ConfigurationError
from effects.kit.logs import own_logger
from effects.kit.process import Newest
from effects.model.job import AttemptId, Job
from effects.model.settlement import Execution, Settlement
from effects.store.queue.liveness import release
from effects.store.recovery.comparison import (
    Comparison,
    Remembered,
    awaited_workers,
    find_missing,
    report,
    report_for,
    restore_leases,
)
from effects.store.recovery.evidence_file import EvidenceFile, LeftBehind, read_left_behind
from effects.store.recovery.write_back import WriteBack
from effects.store.schema.tables import FIRST, ORPHAN, UNKNOWN
from effects.store.workers import Failover, note_failover
from effects.worker.attempts.attempt import RunningAttempt
from effects.worker.context import WorkerContext
from effects.worker.machine.runtime import Runtime

GATE_LOOK_SECONDS = 0.25
KEPT_SECONDS = 60.0
KEPT_MAX, KEPT_CHARS_MAX = 20_000, 32_000_000  # attempts, and characters of their payloads

_log = own_logger("effects.worker")


class _AttemptMemory:
    """The attempts of the last minute, in the order in which they were recorded. Adding to it waits for no one."""

    def __init__(self, runtime: Runtime) -> None:
        self._now = runtime.monotonic
        self._lock = threading.Lock()
        self._batches: deque[tuple[list[Remembered], int]] = deque()  # each with its characters
        self._count = self._chars = 0
        self.dropped_at = float("-inf")  # monotonic; what was dropped before its time

    def add(self, batch: list[Remembered], *, all_stay: bool) -> None:
        """
        Args:
            all_stay: a comparison is due, and nothing leaves for its age: an outage may last longer than a minute.
        """
        chars = sum([len(remembered.job.payload) for remembered in batch])
        with self._lock:
            self._batches.append((batch, chars))
            self._count += len(batch)
            self._chars += chars
            self._trim(self._now(), all_stay=all_stay)

    def _trim(self, now: float, *, all_stay: bool) -> None:
        while self._batches:
            oldest, chars = self._batches[0]
            if all_stay or now - oldest[0].at <= KEPT_SECONDS:
                if self._count <= KEPT_MAX and self._chars <= KEPT_CHARS_MAX:
                    return
                self.dropped_at = now
            self._batches.popleft()
            self._count -= len(oldest)
            self._chars -= chars

    @property
    def is_complete(self) -> bool:
        return self._now() - self.dropped_at > KEPT_SECONDS

    def newest(self) -> list[Remembered]:
        """What is known last of each attempt."""
        latest: dict[AttemptId, Remembered] = {}
        with self._lock:
            batches = list(self._batches)
        for batch, _ in batches:
            for remembered in batch:
                latest[remembered.attempt] = remembered
        return list(latest.values())

    def forget(self) -> None:
        with self._lock:
            self._batches.clear()
            self._count = self._chars = 0


class HeldAttempts(Protocol):
    """What a worker has in its hands: its open attempts, begun or not, and the settlements still to be written."""

    @property
    def attempts(self) -> Sequence[RunningAttempt]: ...

    @property
    def unwritten(self) -> Collection[Settlement]: ...


class FailoverEvidence:
    """Remembers, compares, and says what may be claimed meanwhile.

    It is told of each batch before anyone else. What it raises there ends the worker: after a failover its memory could
    not be relied upon.
    """

    def __init__(self, context: WorkerContext) -> None:
        self._context, self._outage, self._now = context, context.outage, context.runtime.monotonic
        self._store, self._job_types, self._ledgers = context.store, context.job_types, context.ledgers
        self._memory = _AttemptMemory(context.runtime)
        self._worker = ""  # its id
        self._file: EvidenceFile | None = None
        self._left: LeftBehind | None = None  # by dead workers, and not compared yet
        self._refused = Newest[AttemptId, None](KEPT_MAX)  # outcomes that the fence refused
        self._needless: set[AttemptId] = set()  # what was missing, and needed no writing
        self._failover: Failover | None = None  # with which it has compared
        self._comparison = Comparison()  # not reported yet
        self._unreported = False  # with the newest failover
        self._ids: set[str] = set()  # which it has had since its last report
        self._compared_outages = 0
        self._refusals = self._compared_refusals = 0
        self._in_doubt: set[AttemptId] = set()  # at the failover on their way to the database, or back from it
        self._suspected = False
        self.gate_closed, self._gate_looked_at = False, float("-inf")  # some job types may not be claimed

    # -- remembering -----------------------------------------------------------------------------------------

    def released(self, executions: Iterable[Execution]) -> None:
        """These attempts are marked as released."""
        at = self._now()
        if batch := [Remembered(execution.job, at) for execution in executions]:
            self._keep(batch)

    def settled(self, settlements: Iterable[Settlement]) -> None:
        """These outcomes are recorded."""
        at = self._now()
        if batch := [_remembered(settlement, at) for settlement in settlements if settlement.outcome]:
            self._keep(batch)

    def claimed(self, jobs: Iterable[Job]) -> None:
        """These jobs are leased to this worker. A type that repeats needs no release: a file must have its claim."""
        if self._file is not None:
            at, types = self._now(), self._job_types
            batch = [Remembered(job, at, claimed=True) for job in jobs if types.get(job.job_type).is_released_by_claim]
            self._file.add(batch, self._worker)

    def _keep(self, batch: list[Remembered]) -> None:
        self._memory.add(batch, all_stay=self.is_due)
        if self._in_doubt and not self._in_doubt.isdisjoint(remembered.attempt for remembered in batch):
            self._suspected = True  # the server that is gone may have acknowledged it
        if self._file is not None:
            self._file.add(batch, self._worker)

    def close(self) -> None:
        """The worker ended in order: what it remembers was acknowledged by a database that it can still reach. Where
        that is in doubt the file stays, for the next worker.
        """
        if self._file is not None and not self.is_due:
            self._file.close()
            self._file = None

    def refused(self, settlements: Iterable[Settlement]) -> None:
        """The fence refused these outcomes: the lease was lost, or the claim was, in a failover."""
        at = self._now()
        if batch := [_remembered(settlement, at) for settlement in settlements if settlement.outcome]:
            self._refused.update(dict.fromkeys(remembered.attempt for remembered in batch))
            self._keep(batch)
            self._refusals += 1

    # -- comparing -------------------------------------------------------------------------------------------

    @property
    def _has_failed_over(self) -> bool:
        return self._failover is not None and self._failover.sign != FIRST

    def remembered(self, attempts: Iterable[AttemptId]) -> set[AttemptId]:
        """Those of which this worker was told that their release or their outcome is recorded, in the last minute."""
        return {remembered.attempt for remembered in self._memory.newest()}.intersection(attempts)

    def suspect(self) -> None:
        """The database goes by another history, or this worker's heartbeats went back."""
        self._suspected = True

    @property
    def is_due(self) -> bool:
        """Whether to compare before anything is claimed. What is refused during a comparison is for the next one."""
        refused_since = self._has_failed_over and self._refusals != self._compared_refusals
        return self._suspected or refused_since or self._outage.began_count != self._compared_outages

    def begin(self, worker: str, failover: Failover) -> None:
        """The worker's row is written. Before its first claim nothing is remembered, but what dead workers of this host
        have left; later, all of it is compared.
        """
        self._worker = worker
        self._ids.add(worker)
        if self._failover is None:
            self._open_folder(failover)
            self._failover, self._compared_outages = failover, self._outage.began_count
            self.gate_closed = failover.sign != FIRST and failover.seconds < self._context.settings.lease_seconds
            self._unreported = self.gate_closed
        self._suspected = self._suspected or self._unreported

    def _open_folder(self, failover: Failover) -> None:
        name = self._context.settings.evidence_folder
        if name:
            folder, cluster = Path(name), _cluster(failover)
            self._left = read_left_behind(folder, self._now(), cluster)
            self._suspected = bool(self._left.paths)
            try:
                self._file = EvidenceFile(folder, self._worker.replace(":", "-"), cluster)
            except OSError as error:
                raise ConfigurationError(
                    f"EFFECTS_EVIDENCE_FOLDER: no file can be made in {name}: {error.strerror or error}; name a local "
                    "folder in which the worker's user may write"
                ) from error

    def compare(self, worker: str, held: HeldAttempts) -> bool:
        """Read back what is remembered, and write what is missing. False where the worker's own row was lost.

        Raises:
            StoreUnavailable: the database is unavailable. Repeating it is harmless.
        """
        outages, refusals, self._suspected = self._outage.began_count, self._refusals, False
        try:
            reported = self._compare(worker, held)
        except BaseException:
            self._suspected = True
            raise
        if not reported:
            self._suspected = True
        self._outage.over(self._now())  # it answered: if it is away again, that may lose what was written here
        self._compared_outages, self._compared_refusals = outages, refusals
        return reported

    def _compare(self, worker: str, held: HeldAttempts) -> bool:
        store, before = self._store, self._failover
        failover = note_failover(store, worker)
        assert before is not None
        if _cluster(failover) != _cluster(before):  # a copy that was restored elsewhere: nothing of it is ours
            _log.warning("evidence.dropped", extra={"failover": failover.id})
            self._memory.forget()
        held_ids = self._restore(worker, held)
        missing = self._missing(held_ids)
        if failover.id == before.id and any(map(self._is_unexpected, missing)):
            failover = note_failover(store, worker, rewound=before.id)
        self._write(missing, failover, worker)
        if failover.id == before.id:
            self._in_doubt = set()
        else:
            self._unreported = self.gate_closed = True
            self._comparison.incomplete = not self._memory.is_complete
        self._failover = failover
        if self._left is not None:
            report_for(store, self._left.workers, failover)
            self._left.delete()
            self._left = None
        if not (self._unreported or self._comparison.differences):
            return True
        who = {"actor": f"worker:{worker}", "reason": "comparison after a failover"}
        if not report(store, worker, failover, self._comparison, ids=self._ids, **who):
            return False
        self._say(failover, self._comparison)
        self._unreported, self._ids = False, {worker}
        self._comparison = Comparison()
        return True

    def _is_unexpected(self, remembered: Remembered) -> bool:
        """Whether it shows that commits were lost: also of what was written back."""
        return remembered.attempt not in self._refused and remembered.attempt not in self._needless

    def _missing(self, held_ids: Collection[AttemptId]) -> list[Remembered]:
        """What this worker and dead ones remember, and the database does not know."""
        newest = self._memory.newest()
        self._needless &= {remembered.attempt for remembered in newest}
        attempts = [remembered for remembered in newest if remembered.is_settled or remembered.attempt not in held_ids]
        if self._left is not None:
            attempts += self._left.attempts
            self._refused.update(dict.fromkeys(remembered.attempt for remembered in self._left.attempts))
        return find_missing(self._store, attempts)

    def _restore(self, worker: str, held: HeldAttempts) -> set[AttemptId]:
        """Lease again what this worker holds and the database has forgotten; the attempts that it holds."""
        attempts, unwritten = held.attempts, held.unwritten  # in this order: what leaves one is in the other before
        running = [attempt for attempt in attempts if attempt.released or not attempt.lost]
        leases = [(attempt.job, attempt.job_type.time_limit_seconds) for attempt in running]
        leases += [(settlement.job, self._context.settings.lease_seconds) for settlement in unwritten]
        self._in_doubt = {settlement.job.attempt_id for settlement in unwritten}
        self._in_doubt |= {attempt.job.attempt_id for attempt in running if attempt.is_being_released}
        if restored := restore_leases(self._store, leases, worker):
            _log.warning("evidence.leases_restored", extra={"jobs": restored})
        marked = [
            attempt.execution for attempt in running if attempt.released and not attempt.job_type.is_released_by_claim
        ]
        if marked:
            release(self._store, marked, self._ledgers)
        return {job.attempt_id for job, _ in leases}

    def _write(self, missing: Sequence[Remembered], failover: Failover, worker: str) -> None:
        comparison = self._comparison
        writer = WriteBack(self._store, self._job_types, self._ledgers, worker=worker, now=self._now())
        for remembered in missing:
            fate = writer.write(remembered, failover.id)
            if fate == ORPHAN:
                comparison.orphans += 1
            elif fate == UNKNOWN:
                comparison.unknowns += 1
            elif fate is not None:
                comparison.recorded += 1
            else:
                self._needless.add(remembered.attempt)

    def _say(self, failover: Failover, comparison: Comparison) -> None:
        level = logging.WARNING if comparison.differences or comparison.incomplete else logging.INFO
        facts = {name: getattr(comparison, name) for name in ("recorded", "unknowns", "orphans", "incomplete")}
        _log.log(level, "evidence.compared", extra={"failover": failover.id, **facts})

    # -- what may be claimed ---------------------------------------------------------------------------------

    def permitted(self, lease_seconds: Mapping[str, float]) -> Mapping[str, float]:
        """The job types that may be claimed: after a failover only those that repeat what is unknown, until every other
        worker has compared too, or a lease has passed.

        Raises:
            StoreUnavailable: the database is unavailable.
        """
        if not self._is_closed():
            return lease_seconds
        types = self._job_types
        return {name: seconds for name, seconds in lease_seconds.items() if types.get(name).on_unknown == "repeat"}

    def _is_closed(self) -> bool:
        if not self.gate_closed or self._now() - self._gate_looked_at < GATE_LOOK_SECONDS:
            return self.gate_closed
        with self._store.read() as connection:
            self.gate_closed = awaited_workers(self._store, connection) > 0
        self._gate_looked_at = self._now()
        return self.gate_closed


def _remembered(settlement: Settlement, at: float) -> Remembered:
    """Without what was decoded and loaded for the attempt, and without its error, whose frames have the handler's
    variables. The garbage collector sees nothing of a plain success.
    """
    job, execution = settlement.job, settlement.execution
    if (
        settlement.outcome == "succeeded" == settlement.status
        and settlement.apply is None
        and settlement.detail is None
        and settlement.message is None
        and settlement.private is None
    ):
        return Remembered(job, at, None, True)
    outcome = None if execution is None else execution.outcome
    kept = Execution(job, private=settlement.private, outcome=outcome)
    return Remembered(job, at, replace(settlement, execution=kept, logged_error=None))


def _cluster(failover: Failover) -> str | None:
    return None if failover.history is None else failover.history.partition("/")[0]
