"""The worker's heartbeat and the rescue of other workers' jobs, each on a thread of its own."""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Callable

from effects.app import Effects
from effects.errors import SchemaMismatch, StoreUnavailable, WorkerCannotContinue
from effects.logs import RateLimitedLogger, error_places
from effects.model.settlement import Settlement
from effects.store.claim.rescue_each import rescue_valid
from effects.store.db import revisions
from effects.store.db.files import DatabaseFile
from effects.store.queue.liveness import look_for_lost
from effects.store.schedules.clock import turn_back
from effects.store.schema.failover_tables import FIRST
from effects.store.workers.failovers import Failover, note_failover
from effects.store.workers.registration import Activity, HeartbeatAnswer, WorkerIdentity, heartbeat, register
from effects.version import VERSION
from effects.worker.machine.runtime import Runtime
from effects.worker.recording.numbers import RollupRecorder
from effects.worker.supervision.outage import Outage
from effects.worker.supervision.supervisor import Service
from effects.worker.upkeep.failover_evidence import FailoverEvidence

CLOCK_LOOK_SECONDS = 600.0  # between two looks for times of a clock that was ahead
_log = logging.getLogger("effects.worker")


class Heartbeat(Service):
    """Renews the worker's row every `heartbeat_seconds` and passes on requests to cancel jobs or to drain.

    Args:
        queues, activity: for the worker's row.
        on_lease_lost: called when this worker finds that it was declared dead and owns no job.
        cancelled: called with the running jobs whose cancellation was requested.
        drain_requested: called once, when a drain of this worker was requested.
        numbers: written with each heartbeat.
        evidence: is told of each sign that commits were lost.
    """

    name = "heartbeat"

    def __init__(
        self,
        app: Effects,
        outage: Outage,
        runtime: Runtime,
        *,
        queues: str,
        activity: Callable[[], Activity],
        on_lease_lost: Callable[[], None],
        cancelled: Callable[[set[int]], None],
        drain_requested: Callable[[], None],
        numbers: RollupRecorder,
        evidence: FailoverEvidence,
    ) -> None:
        super().__init__(runtime)
        self._evidence, self._beats, self._failover_id = evidence, 0, 0
        self._numbers, self._numbers_failed = numbers, RateLimitedLogger(_log, "numbers.failed")
        self._app, self._outage, self._queues, self._activity = app, outage, queues, activity
        self.bound_seconds = app.settings.lease_seconds / 2
        self._on_lease_lost, self._cancelled, self._drain_requested = on_lease_lost, cancelled, drain_requested
        self._drains = False
        self._clock = runtime.lease_clock
        self._beat_at = self._clock()
        self._file: DatabaseFile | None = None  # known once the worker's row is in it
        self._own_revisions = self._seen_revisions = " ".join(sorted(revisions.newest()))
        self.worker = self._identity()

    def _identity(self) -> WorkerIdentity:
        """A new one: a worker that was declared dead comes back as another."""
        host, pid = socket.gethostname(), os.getpid()
        name = f"{host}:{pid}:{self._runtime.unique()[:8]}"
        settings = self._app.settings
        return WorkerIdentity(
            id=name, host=host, pid=pid, version=VERSION, queues=self._queues,
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
        self._file = DatabaseFile(self._app.engine)
        self._beat_at = asked_at

    def _register(self) -> None:
        answer = register(self._app.store, self.worker)
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
        if newer := revisions.check(self._app.store):
            _log.warning("schema.newer", extra={"worker": self.worker.id, "revisions": " ".join(newer)})
        self._seen_revisions = answer.revisions

    def _note_failover(self, rewound: int | None = None) -> Failover:
        """Write down that the database goes by another history than before: another server was promoted."""
        failover = note_failover(self._app.store, self.worker.id, rewound=rewound)
        if failover.sign != FIRST:
            _log.warning("database.failed_over", extra={"failover": failover.id, "history": failover.history})
        return failover

    def _look_at_history(self, answer: HeartbeatAnswer) -> None:
        """Whether commits were lost: by the name of the database's history, or because our heartbeats went back."""
        if not answer.alive:
            return
        failover, is_rewound = answer.failover, answer.beat <= self._beats
        if failover is None:
            failover = self._note_failover()
        elif is_rewound:  # unless it is another history already than at the last heartbeat
            failover = self._note_failover(rewound=self._failover_id)
        if is_rewound or failover.id != self._failover_id:
            self._evidence.suspect()
        self._beats, self._failover_id = answer.beat, failover.id

    @property
    def lease_valid(self) -> bool:
        """Whether the last heartbeat is younger than half the lease; only then an effect may start."""
        return self._clock() - self._beat_at < self._app.settings.lease_seconds / 2

    def run(self) -> None:
        interval = wait = self._app.settings.heartbeat_seconds
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
        silent_seconds = asked_at - self._beat_at
        if self._file is not None:
            self._file.check()
        answer = heartbeat(self._app.store, self.worker.id, self._activity())
        if not answer.alive or silent_seconds > self._app.settings.lease_seconds:
            _log.error(
                "worker.fenced_off",
                extra={"worker": self.worker.id, "silent_seconds": round(silent_seconds, 1)},
            )
            self._on_lease_lost()
            self.worker = self._identity()
            if not answer.alive:
                self._evidence.suspect()
            self._register()
        else:
            self._look_at_tables(answer)
            self._look_at_history(answer)
        self._beat_at = asked_at
        if answer.now is not None:
            self._numbers.set_clock(answer.now)
        if answer.cancelled:
            self._cancelled(answer.cancelled)
        if answer.drain_requested_by is not None and not self._drains:
            self._drains = True
            _log.info("worker.drain_requested", extra={"worker": self.worker.id, "by": answer.drain_requested_by})
            self._drain_requested()


class Rescuer(Service):
    """Takes back, every quarter of a lease or so, the jobs of workers that are gone.

    After a database outage every worker looks silent. So no worker rescues until a full lease after it
    worker's last outage, nor within a lease of the server's start or promotion.
    """

    name = "rescuer"

    def __init__(
        self,
        app: Effects,
        outage: Outage,
        runtime: Runtime,
        *,
        recorded: Callable[[Settlement], None],
        rescued: Callable[[], None],
        numbers: RollupRecorder,
    ) -> None:
        super().__init__(runtime)
        self._app, self._outage, self._numbers = app, outage, numbers
        self._recorded, self._rescued = recorded, rescued
        self._interval = min(30.0, app.settings.lease_seconds / 4)
        self._rest = 0.0  # until the next round; the first may have been the start's
        self._clock_look_at = runtime.monotonic() + CLOCK_LOOK_SECONDS
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
            app = self._app
            settled = rescue_valid(
                app.store, app.job_types, app.ledgers, app.settings.lease_seconds, brisk=self._outage.bounded(True)
            )
            for settlement in settled.accepted:
                fields = {
                    "job": settlement.job.id,
                    "type": settlement.job.job_type,
                    "lost": settlement.job.lost_count + 1,
                }
                _log.warning("job.rescued", extra={**fields, "status": settlement.status})
                self._recorded(settlement)
            self._numbers.count(settled.accepted)
            total += len(settled.accepted)
            self.came_round()
            if not settled.accepted:  # a short batch is not the last one where some of its jobs were left
                break
        if total:
            self._rescued()
        return total

    def _look_at_the_clock(self) -> None:
        """Mend what a clock that was ahead has left; drains leave it to `effects prune`."""
        if self._runtime.monotonic() >= self._clock_look_at:
            self._clock_look_at = self._runtime.monotonic() + CLOCK_LOOK_SECONDS
            if turn_back(self._app.store):
                self._rescued()

    def _is_due(self) -> bool:
        """Whether there is anything to rescue, and it is not too early to say so."""
        lease = self._app.settings.lease_seconds
        if self._outage.under_way or self._runtime.monotonic() - self._outage.ended_at < lease:
            return False
        look = look_for_lost(self._app.store, self._app.job_types, lease)
        return look.is_due and look.seconds_up >= lease
