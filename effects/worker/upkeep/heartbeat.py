"""The worker's heartbeat and the rescue of other workers' jobs, each on its own thread."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable

from effects.errors import SchemaMismatch, StoreUnavailable, WorkerCannotContinue
from effects.kit.logs import RateLimitedLogger, error_places, own_logger
from effects.store.claim.invalid_rows import rescue_valid
from effects.store.db import revisions
from effects.store.db.clock import turn_back
from effects.store.db.engine import DatabaseFile
from effects.store.queue.liveness import look_for_lost
from effects.store.schema.tables import FIRST
from effects.store.workers import (
    Activity,
    Failover,
    HeartbeatAnswer,
    WorkerIdentity,
    heartbeat,
    note_failover,
    register,
)
from effects.version import VERSION
from effects.worker.context import WorkerContext
from effects.worker.queues.worker_queues import WorkerQueues
from effects.worker.recording.failover_evidence import FailoverEvidence
from effects.worker.recording.observers import Observers, RollupRecorder
from effects.worker.recording.settler import Settler
from effects.worker.supervisor import Service
from effects.worker.upkeep.scheduler import Scheduler

CLOCK_LOOK_SECONDS = 60.0  # between two looks for times of a clock that was ahead
_log = own_logger("effects.worker")


class Heartbeat(Service):
    """Renews the worker's row every `heartbeat_seconds` and passes on requests to cancel jobs or to drain.

    Args:
        queues: learn of lost leases and of cancellations.
        settler, scheduler: what they do is kept in the worker's row.
        numbers: written with each heartbeat.
        evidence: is told of each sign that commits were lost.
        drain_requested: called once, when a drain of this worker was requested.
    """

    name = "heartbeat"

    def __init__(
        self,
        context: WorkerContext,
        queues: WorkerQueues,
        settler: Settler,
        scheduler: Scheduler,
        numbers: RollupRecorder,
        evidence: FailoverEvidence,
        drain_requested: Callable[[], None],
    ) -> None:
        super().__init__(context.runtime)
        self._context, self._store, self._outage = context, context.store, context.outage
        self._queues, self._settler, self._scheduler = queues, settler, scheduler
        self._evidence, self._beats, self._failover_id = evidence, 0, 0
        self._numbers, self._numbers_failed = numbers, RateLimitedLogger(_log, "numbers.failed")
        self.bound_seconds = context.settings.lease_seconds / 2
        self._drain_requested = drain_requested
        self._drains = False
        self._clock, self._lease = context.runtime.lease_clock, context.lease
        self._file: DatabaseFile | None = None  # known once the worker's row is in it
        self._own_revisions = self._seen_revisions = " ".join(sorted(revisions.newest()))
        self.worker = self._identity()

    def _identity(self) -> WorkerIdentity:
        """A new one: a worker that was declared dead comes back as another."""
        host, pid = socket.gethostname(), os.getpid()
        name = f"{host}:{pid}:{self._runtime.unique()[:8]}"
        settings = self._context.settings
        return WorkerIdentity(
            id=name, host=host, pid=pid, version=VERSION, queues=",".join(self._queues.names),
            heartbeat_seconds=settings.heartbeat_seconds, lease_seconds=settings.lease_seconds,
            revisions=self._own_revisions,
        )  # fmt: skip

    def register(self) -> None:
        """Write the worker's row; required before the first claim.

        Raises:
            StoreUnavailable: the database is unavailable.
            SchemaMismatch: the tables were migrated meanwhile, and this version does not work with them.
        """
        asked_at = self._clock()  # as for a heartbeat
        self._register()
        self._file = DatabaseFile(self._store.engine)
        self._lease.renewed_at = asked_at

    def _register(self) -> None:
        answer = register(self._store, self.worker)
        assert answer.now is not None
        self._look_at_tables(answer)
        self._numbers.set_clock(answer.now)
        failover = answer.failover or self._note_failover()
        self._beats, self._failover_id = answer.beat, failover.id
        self._evidence.begin(self.worker.id, failover)

    def _look_at_tables(self, answer: HeartbeatAnswer) -> None:
        """Whether they were migrated while this worker runs: it goes on where they say that it may."""
        if answer.revisions in (None, self._seen_revisions):
            return
        if newer := revisions.check(self._store):
            _log.warning("schema.newer", extra={"worker": self.worker.id, "revisions": " ".join(newer)})
        self._seen_revisions = answer.revisions

    def _note_failover(self, rewound: int | None = None) -> Failover:
        """Write down that the database goes by another history than before: another server was promoted."""
        failover = note_failover(self._store, self.worker.id, rewound=rewound)
        if failover.sign != FIRST:
            _log.warning("database.failed_over", extra={"failover": failover.id, "history": failover.history})
        return failover

    def _look_at_history(self, answer: HeartbeatAnswer, beats_before: int) -> None:
        """Whether commits were lost: by the name of the database's history, or because our heartbeats went back.

        Args:
            beats_before: how many there were when it was asked; another thread may have asked since.
        """
        if not answer.alive:
            return
        failover, is_rewound = answer.failover, answer.beat <= beats_before
        if failover is None:
            failover = self._note_failover()
        elif is_rewound:  # unless it is another history already than at the last heartbeat
            failover = self._note_failover(rewound=self._failover_id)
        if is_rewound or failover.id != self._failover_id:
            self._evidence.suspect()
        self._beats, self._failover_id = answer.beat, failover.id

    def run(self) -> None:
        interval = wait = self._context.settings.heartbeat_seconds
        while not self._ending.wait(wait):
            wait = interval
            try:
                self._outage.retry_until_available(self._beat, give_up=self._ending.is_set)
            except WorkerCannotContinue as error:
                _log.critical("database.gone", extra={"error": str(error)})
                raise
            except SchemaMismatch as error:
                _log.critical("schema.mismatch", extra={"error": str(error)})
                raise
            except Exception as error:  # the next one may succeed; if none does, this part has stalled
                _log.error("heartbeat.failed", extra={"error": type(error).__name__, "at": error_places(error)})
            else:
                self.came_round()
                began = self._runtime.monotonic()
                self.write_numbers()  # which does not put off the next heartbeat
                wait = max(0.0, interval - (self._runtime.monotonic() - began))

    def write_numbers(self) -> None:
        """Write what was counted since the last time; after a failure, next time."""
        if self._outage.under_way:
            return
        try:
            with self._outage.bounded(True):
                self._numbers.write()
        except StoreUnavailable:  # whoever must have the database says that it is away
            _log.debug("numbers.put_off")
        except Exception as error:  # numbers never stop a worker
            self._numbers_failed.error(f"{type(error).__name__} at {error_places(error)}")

    def _beat(self) -> None:
        asked_at = self._clock()  # before the statement: a slow answer must not make the lease look younger
        silent_seconds = asked_at - self._lease.renewed_at
        if self._file is not None:
            self._file.check()
        beats_before = self._beats
        answer = heartbeat(self._store, self.worker.id, self._activity())
        if asked_at < self._lease.renewed_at:
            return  # this thread stood still, and the one in its place has had a newer answer
        if not answer.alive or silent_seconds > self._context.settings.lease_seconds:
            _log.error(
                "worker.fenced_off",
                extra={"worker": self.worker.id, "silent_seconds": round(silent_seconds, 1)},
            )
            self._queues.fence_off()
            self.worker = self._identity()
            if not answer.alive:
                self._evidence.suspect()
            self._register()
        else:
            self._look_at_tables(answer)
            self._look_at_history(answer, beats_before)
        self._lease.renewed_at = asked_at
        if answer.now is not None:
            self._numbers.set_clock(answer.now)
        if answer.cancelled:
            self._queues.pass_on_cancel(answer.cancelled)
        if answer.drain_requested_by is not None and not self._drains:
            self._drains = True
            _log.info("worker.drain_requested", extra={"worker": self.worker.id, "by": answer.drain_requested_by})
            self._drain_requested()

    def _activity(self) -> Activity:
        now, wrote_at, caller = self._runtime.monotonic(), self._settler.wrote_at, self._context.supervisor.caller
        return Activity(
            claimed=now - caller.came_round_at if caller is not None else None,
            settled=now - wrote_at if wrote_at is not None else None,
            fired=self._scheduler.came_round_seconds_ago(now),
            oldest_unsettled_seconds=self._settler.oldest_unwritten_seconds(),
        )


class Rescuer(Service):
    """Takes back, every quarter of a lease or so, the jobs of workers that are gone.

    After a database outage every worker looks silent. So no worker rescues until a full lease after it
    worker's last outage, nor within a lease of the server's start or promotion.
    """

    name = "rescuer"

    def __init__(self, context: WorkerContext, queues: WorkerQueues, observers: Observers) -> None:
        super().__init__(context.runtime)
        self._context, self._store, self._outage = context, context.store, context.outage
        self._queues, self._observers = queues, observers
        self._interval = min(30.0, context.settings.lease_seconds / 4)
        self._rest = 0.0  # until the next round; the first may have been the start's
        self._clock_look_at = context.runtime.monotonic() + CLOCK_LOOK_SECONDS
        self.bound_seconds = 10 * self._interval

    def run(self) -> None:
        while not self._ending.wait(self._rest):
            self.try_round()
            self.came_round()

    def try_round(self) -> None:
        """Run one round and log its failure: the next one may succeed, and the worker must continue."""
        self._rest = self._interval * (0.75 + self._runtime.random() / 2)
        try:
            with self._outage.bounded(False):
                self.round()
                self._look_at_the_clock()
        except StoreUnavailable as error:
            self._outage.began(error)
        except Exception as error:
            _log.error("rescue.failed", extra={"error": type(error).__name__, "at": error_places(error)})

    def round(self) -> int:
        """Rescue until nothing more can be taken back; the number of jobs that were."""
        total = 0
        while not self._ending.is_set() and self._is_due():
            context = self._context
            settled = rescue_valid(
                self._store, context.job_types, context.ledgers, context.settings.lease_seconds,
                brisk=self._outage.bounded(True),
            )  # fmt: skip
            if settled.accepted:
                self._observers.recorded(settled.accepted)
            total += len(settled.accepted)
            self.came_round()
            if not settled.accepted:  # a short batch is not the last one where some of its jobs were left
                break
        if total:
            self._queues.poll()
        return total

    def _look_at_the_clock(self) -> None:
        """Mend what a clock that was ahead has left; drains leave it to `effects prune`."""
        if self._runtime.monotonic() >= self._clock_look_at:
            self._clock_look_at = self._runtime.monotonic() + CLOCK_LOOK_SECONDS
            if turn_back(self._store):
                self._queues.poll()

    def _is_due(self) -> bool:
        """Whether there is anything to rescue, and it is not too early to say so."""
        lease = self._context.settings.lease_seconds
        if self._outage.under_way or self._runtime.monotonic() - self._outage.ended_at < lease:
            return False
        look = look_for_lost(self._store, self._context.job_types, lease)
        return look.is_due and look.seconds_up >= lease
