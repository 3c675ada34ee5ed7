"""The worker process: one dispatcher, lanes of threads, and the services beside them.

    claim ─▶ intake ─▶ lanes (threads) ─▶ settler        beside it: pulse · rescuer · scheduler · wakeup

The dispatcher runs in the thread that called `run` or `drain`. A crash anywhere leaves rows that say how far
each job had come; `effects.store.liveness.rescue` reads them.
"""

from __future__ import annotations

import logging
import os
import socket
import threading
import time
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib.metadata import version

from effects.app import Effects
from effects.job import Job
from effects.settlement import GivenBack, Settlement
from effects.store import revisions
from effects.store.liveness import WorkerIdentity, leave, release
from effects.worker.attempt import RunningAttempt
from effects.worker.claimer import Claimer
from effects.worker.dispatcher import Dispatcher
from effects.worker.intake import Intake
from effects.worker.lanes import Lanes, planned
from effects.worker.outage import Outage
from effects.worker.pulse import Pulse, Rescuer
from effects.worker.releaser import Releaser
from effects.worker.scheduler import Scheduler
from effects.worker.settler import Settler
from effects.worker.wakeup import Wakeup

EXIT_DONE = 0
EXIT_ERRORS = 1  # drained, and at least one job ended dead
EXIT_TIME = 3  # drained, and the time ran out with work left
EXIT_STUCK = 75  # too many threads hang in handlers: the supervisor must start a fresh process

STUCK_MAX = 4
FLUSH_SECONDS = 30.0
JOIN_SECONDS = 2.0

_log = logging.getLogger("effects.worker")


@dataclass(slots=True)
class DrainResult:
    """What a drain did. `finished` is False when the time ran out first."""

    finished: bool = True
    counts: dict[str, int] = field(default_factory=dict)
    exit_code: int = EXIT_DONE


class Worker:
    """Carries out the jobs of one Effects.

    Args:
        app: settings, database and job types. Checked here and when the worker starts: a database that it
            does not know is refused with SchemaMismatch.
        lanes: queue → threads. Default: the `default` lane, every lane that a job type or EFFECTS_LANES names.
        settled: called after every recorded outcome, from the settling thread (for progress bars).
        rescue: whether to take back the jobs of workers that are gone. Default yes.
    """

    def __init__(
        self,
        app: Effects,
        *,
        lanes: Mapping[str, int] | None = None,
        grace_seconds: float | None = None,
        settled: Callable[[Settlement], None] | None = None,
        rescue: bool = True,
    ) -> None:
        self.app = app
        self.counts: dict[str, int] = {}
        self._grace_seconds = app.settings.grace_seconds if grace_seconds is None else grace_seconds
        self._told = settled
        self._wake = threading.Event()
        self._stopping = threading.Event()
        self._asked = False  # by `stop`, in contrast to a drain that has come to its end
        self._aborting = threading.Event()
        self._outage = Outage()
        self._lanes = Lanes(
            planned(app, lanes), self._wake,
            may_start=self._may_start, give_back=self._give_back, finish=self._settle, finish_alone=self._settle_alone,
        )  # fmt: skip
        ask = self._lanes.ask
        self._pulse = Pulse(
            app, self._outage, self._identity,
            disowned=self._lanes.disown, cancelled=self._lanes.pass_on_cancel,
        )  # fmt: skip
        self._rescuer = Rescuer(app, self._outage, rescued=ask) if rescue else None
        self._scheduler = Scheduler(app, self._outage, fired=ask)
        self._settler = Settler(
            app.store, app.job_types, app.ledgers, self._outage,
            patience=self._lanes.patience, wake=ask, settled=self._count,
        )  # fmt: skip
        self._intake = Intake(app, Releaser(self._mark).release, self._settler.add)
        self._dispatcher = Dispatcher(
            self._lanes, Claimer(app, self._outage, self._held, self._settler.add), self._intake, self._settler,
            self._pulse, stopping=self._stopping, wake=self._wake, poll_seconds=app.settings.poll_seconds,
        )  # fmt: skip
        self._wakeup = Wakeup(app.engine, app.settings.schema, ask)

    # -- running ---------------------------------------------------------------------------------------------

    def run(self) -> int:
        """Work until `stop` is called; the exit code.

        Raises:
            SchemaMismatch: the tables are not those of this version.
        """
        if self._start():
            try:
                while not self._stopping.is_set() and not self._too_many_stuck():
                    if not self._dispatcher.round():
                        self._dispatcher.rest()
            finally:
                self._finish()
        return EXIT_STUCK if self._too_many_stuck() else EXIT_DONE

    def drain(self, max_seconds: float | None = None) -> DrainResult:
        """Work until nothing is due, or until `max_seconds` have passed; nothing starts after that.

        Jobs that are due later, retries included, are not waited for. Two drains at once are harmless.
        """
        give_up_at = time.monotonic() + max_seconds if max_seconds is not None else float("inf")
        finished, dispatcher = False, self._dispatcher
        self._intake.draining = True
        if self._start():
            try:
                while not (finished or self._stopping.is_set() or self._too_many_stuck()):
                    if time.monotonic() >= give_up_at:
                        break
                    finished = (
                        not dispatcher.round()
                        and dispatcher.all_settled(give_up_at)
                        and not dispatcher.round_everywhere()
                        and not dispatcher.await_token(give_up_at)
                    )
            finally:
                self._finish()
        dead = self.counts.get("dead", 0)
        code = (
            EXIT_STUCK if self._too_many_stuck() else EXIT_TIME if not finished else EXIT_ERRORS if dead else EXIT_DONE
        )
        return DrainResult(finished=finished, counts=dict(self.counts), exit_code=code)

    def stop(self) -> None:
        """Stop claiming, finish or give back, and end within the grace period. Called again: end at once.

        Safe in a signal handler: the events are set by a thread of its own, because the interrupted thread may be
        inside one of their locks.
        """
        again, self._asked = self._asked, True
        threading.Thread(target=self._end, args=(again,), name="effects-stop", daemon=True).start()

    def _end(self, at_once: bool) -> None:
        self._stopping.set()
        if at_once:
            self._aborting.set()
        self._wake.set()
        _log.info("worker.stopping", extra={"grace_seconds": 0.0 if at_once else self._grace_seconds})

    # -- start and end ---------------------------------------------------------------------------------------

    def _start(self) -> bool:
        """Check the tables, write the worker's row, look for lost jobs, start the threads.

        False if we were told to stop while the database was away.
        """
        for job_type in self.app.job_types:
            job_type.worker_starts()
        for step in (lambda: revisions.check(self.app.store), self._pulse.first):
            self._outage.ride_out(step, give_up=self._stopping.is_set)
            if self._stopping.is_set():
                return False
        if self._rescuer is not None:  # a drain may end before the rescuer's own first round
            self._rescuer.try_round()
        self._scheduler.try_round()  # likewise: cron's worker makes the jobs of today's slots, and does them
        lanes = " ".join(f"{lane.lane.queue}={lane.threads}" for lane in self._lanes)
        _log.info("worker.started", extra={"worker": self._pulse.worker.id, "lanes": lanes})
        for service in (self._settler, self._pulse, self._rescuer, self._scheduler, self._wakeup):
            if service is not None:
                service.start()
        self._lanes.start()
        return True

    def _finish(self) -> None:
        """Give back what was not begun, let the rest end, record what is left, leave.

        After `stop` the running handlers have the grace period; at the end of a drain, their own deadlines.
        """
        self._stopping.set()
        for service in (self._rescuer, self._scheduler, self._wakeup):
            if service is not None:
                service.stop()
        for attempt in self._lanes.unstarted():
            self._give_back(attempt)
        self._wait_for_running()
        for settlement in self._lanes.cut_short():
            self._settler.add(settlement)
        self._lanes.close()
        self._settler.close(FLUSH_SECONDS, abort=self._aborting.is_set)
        self._pulse.stop()
        self._join_services(time.monotonic() + JOIN_SECONDS)
        for job_type in self.app.job_types:
            job_type.worker_ends()
        self._outage.ride_out(lambda: leave(self.app.store, self._pulse.worker.id), give_up=lambda: True)
        _log.info("worker.stopped", extra={"worker": self._pulse.worker.id, **self.counts})

    def _join_services(self, until: float) -> None:
        """They hold connections, and a heartbeat under way would find us gone; one that hangs is left behind."""
        for service in (self._pulse, self._rescuer, self._scheduler, self._wakeup):
            if service is not None:
                service.join(max(0.0, until - time.monotonic()))

    def _wait_for_running(self) -> None:
        asked_at: float | None = None
        while self._lanes.busy() and not self._aborting.is_set():
            asked_at = asked_at or (time.monotonic() if self._asked else None)
            if asked_at is not None and time.monotonic() - asked_at > self._grace_seconds:
                return
            for settlement in self._lanes.overdue():
                self._settler.add(settlement)
            self._aborting.wait(0.02)

    # -- what the parts tell each other ----------------------------------------------------------------------

    def _identity(self) -> WorkerIdentity:
        return WorkerIdentity(
            id=f"{socket.gethostname()}:{os.getpid()}:{uuid.uuid4().hex[:8]}",
            host=socket.gethostname(),
            pid=os.getpid(),
            version=version("effects"),
            lanes=",".join(lane.lane.queue for lane in self._lanes),
        )

    def _may_start(self) -> bool:
        return not self._stopping.is_set() and self._pulse.fresh

    def _settle(self, settlement: Settlement) -> None:
        self._settler.add(settlement)

    def _settle_alone(self, settlement: Settlement) -> None:
        self._settler.add_and_wait(settlement)

    def _give_back(self, attempt: RunningAttempt) -> None:
        self._settler.add(attempt.settle(GivenBack()))

    def _mark(self, jobs: list[Job]) -> set[int] | None:
        return self._outage.ride_out(
            lambda: release(self.app.store, jobs, self.app.ledgers), give_up=self._stopping.is_set
        )

    def _held(self) -> set[int]:
        """Lanes first: what leaves one is known to the settler before."""
        open_ids = self._lanes.open_ids()
        return open_ids | {settlement.job.id for settlement in self._settler.unwritten}

    def _too_many_stuck(self) -> bool:
        return self._lanes.stuck >= STUCK_MAX

    def _count(self, settlement: Settlement) -> None:
        if settlement.outcome or settlement.ends:
            word = settlement.status if settlement.ends else settlement.outcome
            self.counts[word] = self.counts.get(word, 0) + 1
        if self._told is not None:
            self._told(settlement)
