"""What this worker released and what came of it, in the last minute: evidence where a failover loses commits.

Every write that was acknowledged is remembered for a while. After an outage, or a sign that the database goes by
another history, the worker reads back what it remembers before it claims anything, and writes what is missing again.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path

from msgspec.structs import replace

from effects.app import Effects
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
from effects.store.schema.failover_tables import FIRST, ORPHAN, UNKNOWN
from effects.store.workers.failovers import Failover, note_failover
from effects.worker.attempts.attempt import RunningAttempt
from effects.worker.attempts.attempt_memory import AttemptMemory
from effects.worker.machine.runtime import Runtime
from effects.worker.supervision.outage import Outage

GATE_LOOK_SECONDS = 0.25

_log = logging.getLogger("effects.worker")


class FailoverEvidence:
    """Remembers, compares, and says what may be claimed meanwhile.

    Args:
        running: the attempts that this worker holds, begun or not.
        unwritten: the settlements that are still to be written.
        opened: called when job types may be claimed again that were not.
    """

    def __init__(
        self,
        app: Effects,
        outage: Outage,
        runtime: Runtime,
        *,
        running: Callable[[], Sequence[RunningAttempt]],
        unwritten: Callable[[], Collection[Settlement]],
        opened: Callable[[], object],
    ) -> None:
        self._app, self._outage, self._now = app, outage, runtime.monotonic
        self._running, self._unwritten, self._opened = running, unwritten, opened
        self._memory = AttemptMemory(runtime.monotonic)
        self._worker = ""  # its id
        self._file: EvidenceFile | None = None
        self._left: LeftBehind | None = None  # by dead workers, and not compared yet
        self._refused: set[AttemptId] = set()  # outcomes that the fence refused
        self._handled: set[AttemptId] = set()  # what was missing, and was written back or needed no writing
        self._failover: Failover | None = None  # with which it has compared
        self._comparison = Comparison()  # not reported yet
        self._unreported = False  # with the newest failover
        self._was_there = False  # at that failover, so that its comparison is waited for
        self._compared_outages = 0
        self._refusals = self._compared_refusals = 0
        self._in_doubt: set[AttemptId] = set()  # at the failover on their way to the database, or back from it
        self._suspected = False
        self._gate_closed, self._gate_looked_at = False, float("-inf")

    # -- remembering -----------------------------------------------------------------------------------------

    def released(self, executions: Iterable[Execution], marked: Collection[AttemptId]) -> None:
        """These attempts are marked as released."""
        at = self._now()
        if batch := [Remembered(execution.job, at) for execution in executions if execution.job.attempt_id in marked]:
            self._keep(batch)

    def settled(self, settlements: Iterable[Settlement]) -> None:
        """These outcomes are recorded."""
        at = self._now()
        if batch := [_remembered(settlement, at) for settlement in settlements if settlement.outcome]:
            self._keep(batch)

    def claimed(self, jobs: Iterable[Job]) -> None:
        """These jobs are leased to this worker. A type that repeats needs no release: a file must have its claim."""
        if self._file is not None:
            at, types = self._now(), self._app.job_types
            batch = [Remembered(job, at, claimed=True) for job in jobs if types.get(job.job_type).is_released_by_claim]
            self._file.add(batch, self._worker)

    def _keep(self, batch: list[Remembered]) -> None:
        self._memory.add(batch)
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

    def refused(self, settlement: Settlement) -> None:
        """The fence refused this outcome: the lease was lost, or the claim was, in a failover."""
        if settlement.outcome:
            remembered = _remembered(settlement, self._now())
            self._refused.add(remembered.attempt)
            self._keep([remembered])
            self._refusals += 1

    # -- comparing -------------------------------------------------------------------------------------------

    @property
    def _has_failed_over(self) -> bool:
        return self._failover is not None and self._failover.sign != FIRST

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
        if self._failover is None:
            self._open_folder(failover)
            self._failover, self._compared_outages = failover, self._outage.began_count
            self._gate_closed = failover.sign != FIRST and failover.seconds < self._app.settings.lease_seconds
            self._unreported = self._gate_closed
        self._suspected = self._suspected or self._unreported

    def _open_folder(self, failover: Failover) -> None:
        name = self._app.settings.evidence_folder
        if name:
            folder, cluster = Path(name), _cluster(failover)
            self._left = read_left_behind(folder, self._now(), cluster)
            self._suspected = bool(self._left.paths)
            self._file = EvidenceFile(folder, self._worker.replace(":", "-"), cluster)

    def compare(self, worker: str) -> bool:
        """Read back what is remembered, and write what is missing. False where the worker's own row was lost.

        Raises:
            StoreUnavailable: the database is unavailable. Repeating it is harmless.
        """
        outages, refusals, self._suspected = self._outage.began_count, self._refusals, False
        try:
            reported = self._compare(worker)
        except BaseException:
            self._suspected = True
            raise
        if not reported:
            self._suspected = True
        self._compared_outages, self._compared_refusals = outages, refusals
        return reported

    def _compare(self, worker: str) -> bool:
        store, before = self._app.store, self._failover
        failover = note_failover(store, worker)
        assert before is not None
        if _cluster(failover) != _cluster(before):  # a copy that was restored elsewhere: nothing of it is ours
            _log.warning("evidence.dropped", extra={"failover": failover.id})
            self._memory.forget()
        held = self._restore(worker)
        newest = self._memory.newest()
        self._handled &= {remembered.attempt for remembered in newest}
        self._refused &= {remembered.attempt for remembered in newest}
        attempts = [
            remembered
            for remembered in newest
            if remembered.attempt not in self._handled and (remembered.is_settled or remembered.attempt not in held)
        ]
        if self._left is not None:
            attempts += self._left.attempts
            self._refused.update(remembered.attempt for remembered in self._left.attempts)
        missing = find_missing(store, attempts)
        if failover.id == before.id and any(remembered.attempt not in self._refused for remembered in missing):
            failover = note_failover(store, worker, rewound=before.id)
        self._write(missing, failover, worker)
        if failover.id == before.id:
            self._in_doubt = set()
        else:
            self._unreported = self._gate_closed = self._was_there = True
            self._comparison.incomplete = not self._memory.is_complete
        self._failover = failover
        if self._left is not None:
            report_for(store, self._left.workers, failover)
            self._left.delete()
            self._left = None
        if not (self._unreported or self._comparison.differences):
            return True
        who = {"actor": f"worker:{worker}", "reason": "comparison after a failover"}
        if not report(store, worker, failover, self._comparison, first=self._was_there, **who):
            return False
        self._say(failover, self._comparison)
        self._unreported = self._was_there = False
        self._comparison = Comparison()
        return True

    def _restore(self, worker: str) -> set[AttemptId]:
        """Lease again what this worker holds and the database has forgotten; the attempts that it holds."""
        running, unwritten = self._running(), self._unwritten()
        running = [attempt for attempt in running if attempt.released or not attempt.lost]
        leases = [(attempt.job, attempt.job_type.time_limit_seconds) for attempt in running]
        leases += [(settlement.job, self._app.settings.lease_seconds) for settlement in unwritten]
        self._in_doubt = {settlement.job.attempt_id for settlement in unwritten}
        self._in_doubt |= {attempt.job.attempt_id for attempt in running if attempt.is_being_released}
        if restored := restore_leases(self._app.store, leases, worker):
            _log.warning("evidence.leases_restored", extra={"jobs": restored})
        marked = [
            attempt.execution for attempt in running if attempt.released and not attempt.job_type.is_released_by_claim
        ]
        if marked:
            release(self._app.store, marked, self._app.ledgers)
        return {job.attempt_id for job, _ in leases}

    def _write(self, missing: Sequence[Remembered], failover: Failover, worker: str) -> None:
        app, comparison = self._app, self._comparison
        writer = WriteBack(app.store, app.job_types, app.ledgers, worker=worker, now=self._now())
        for remembered in missing:
            fate = writer.write(remembered, failover.id)
            if fate == ORPHAN:
                comparison.orphans += 1
            elif fate == UNKNOWN:
                comparison.unknowns += 1
            elif fate is not None:
                comparison.recorded += 1
            self._handled.add(remembered.attempt)

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
        types = self._app.job_types
        return {name: seconds for name, seconds in lease_seconds.items() if types.get(name).on_unknown == "repeat"}

    def _is_closed(self) -> bool:
        if not self._gate_closed or self._now() - self._gate_looked_at < GATE_LOOK_SECONDS:
            return self._gate_closed
        with self._app.store.read() as connection:
            self._gate_closed = awaited_workers(self._app.store, connection) > 0
        self._gate_looked_at = self._now()
        if not self._gate_closed:
            self._opened()
        return self._gate_closed


def _remembered(settlement: Settlement, at: float) -> Remembered:
    """Without what was decoded and loaded for the attempt. The garbage collector sees nothing of a plain success."""
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
    return Remembered(job, at, replace(settlement, execution=kept))


def _cluster(failover: Failover) -> str | None:
    return None if failover.history is None else failover.history.partition("/")[0]
