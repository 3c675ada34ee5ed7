"""What a worker consists of: its parts, what they tell each other, and their start. `shutdown` ends them."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from effects.app import Effects
from effects.errors import EffectsError
from effects.logs import error_places
from effects.model.job_type import JobType
from effects.model.settlement import Execution, Settlement
from effects.store.db import revisions
from effects.store.db.store import Store
from effects.store.operator.counts import count_unknown
from effects.store.workers.registration import Activity
from effects.worker.claiming.batch_loader import BatchLoader
from effects.worker.claiming.dispatcher import Claimer, Dispatcher
from effects.worker.claiming.more_to_come import MoreToCome
from effects.worker.machine.runtime import Runtime
from effects.worker.queues.handler_loop import HandlerLoop
from effects.worker.queues.worker_queues import WorkerQueues, planned
from effects.worker.recording.numbers import RollupRecorder
from effects.worker.recording.release_batcher import ReleaseBatcher, Released, ReleaseThread, mark_released
from effects.worker.recording.settler import Settler
from effects.worker.supervision.outage import Outage, bounds, cut_overdue
from effects.worker.supervision.supervisor import PartFault, Supervisor, Watch
from effects.worker.upkeep.failover_evidence import FailoverEvidence
from effects.worker.upkeep.heartbeat import Heartbeat, Rescuer
from effects.worker.upkeep.notifications import NotificationListener
from effects.worker.upkeep.scheduler import Scheduler

_log = logging.getLogger("effects.worker")


class Parts:
    """The parts of one worker. The dispatcher has no thread of its own: the worker's caller lends it one.

    Args:
        queues: queue → attempts at a time; None for those of the job types and settings.
        rescue: whether to take back the jobs of workers that are gone.
        checked: the version of the tables is known to be right.
        stopping: set when no more jobs may start.
        gives_up: whether to wait for the database, or for jobs, no longer.
        recorded: called after every recorded outcome, from the settling thread.
        drain_requested: called when an operator has requested that this worker ends.
        failed: called with the fault of a part, on the thread that finds it.
    """

    def __init__(
        self,
        app: Effects,
        runtime: Runtime,
        *,
        queues: Mapping[str, int] | None,
        rescue: bool,
        checked: bool,
        stopping: threading.Event,
        gives_up: Callable[[], bool],
        recorded: Callable[[Settlement], None],
        drain_requested: Callable[[], None],
        failed: Callable[[PartFault], None],
    ) -> None:
        self._app, self._now, self._checked = app, runtime.monotonic, checked
        self._is_interrupt, self._current = runtime.is_interrupt, runtime.current
        self.started = False
        self.unknown_types = False  # when it started, jobs of types that are not registered here were waiting
        self._stopping, self._gives_up, self._recorded = stopping, gives_up, recorded
        self._caller: Watch | None = None  # of the dispatcher's thread
        self.wake = runtime.event()  # the dispatcher has something to look at
        self.supervisor = Supervisor(runtime, failed=failed, at_each_look=partial(cut_overdue, app.store))
        patient, brisk = bounds(app.settings.lease_seconds)
        self.outage = Outage(
            runtime, bounded=lambda hurry: app.store.within(brisk if hurry else patient),
            missing_seconds=app.settings.lease_seconds, came_round=self._waits_for_database,
            ended=self._database_is_back,
        )  # fmt: skip
        self.loop = HandlerLoop(runtime, self.supervisor, bound_seconds=app.settings.lease_seconds)
        self.queues = WorkerQueues(
            planned(app, queues, runtime), self.wake, runtime, self.loop,
            job_types=app.job_types, threads=app.settings.threads,
            may_start=self._may_start, finish=self._settle, written=self._wait_written,
        )  # fmt: skip
        self.more_to_come = MoreToCome(app, [queue.request.queue for queue in self.queues], self.wake)
        self.evidence = FailoverEvidence(
            app, self.outage, runtime,
            running=lambda: [attempt for queue in self.queues for attempt in queue.open],
            unwritten=lambda: self.settler.unwritten, opened=self.queues.poll,
        )  # fmt: skip
        self._numbers = RollupRecorder(app.store, runtime, lease_seconds=app.settings.lease_seconds)
        self.heartbeat = Heartbeat(
            app, self.outage, runtime, queues=",".join(queue.request.queue for queue in self.queues),
            activity=self._activity, on_lease_lost=self.queues.fence_off, cancelled=self.queues.pass_on_cancel,
            drain_requested=drain_requested, numbers=self._numbers, evidence=self.evidence,
        )  # fmt: skip
        rescuer = Rescuer(app, self.outage, runtime, recorded=recorded, rescued=self.queues.poll, numbers=self._numbers)
        self._rescuer = rescuer if rescue else None
        self._scheduler = Scheduler(app, self.outage, runtime, fired=self.queues.poll)
        self.settler = Settler(
            app.store, app.job_types, app.ledgers, self.outage, runtime, bound_seconds=app.settings.lease_seconds,
            max_linger=self.queues.max_linger, wake=self.queues.ask, count=self._count, settled=self._settled,
            refused=self.evidence.refused,
        )  # fmt: skip
        releases = ReleaseBatcher(self._mark, runtime)
        self.releases = ReleaseThread(releases, runtime, self.supervisor, bound_seconds=app.settings.lease_seconds)
        self.loader = BatchLoader(
            app, releases.release, self.settler.add, runtime, bounded=self.outage.bounded, releases_async=self.releases
        )
        self.claimer = Claimer(app, self.outage, self._held, self.settler.add, self.evidence)
        self.dispatcher = Dispatcher(
            self.queues, self.claimer, self.loader, self.settler, self.heartbeat, runtime, supervisor=self.supervisor,
            stopping=stopping, gives_up=gives_up, wake=self.wake, poll_seconds=app.settings.poll_seconds,
        )  # fmt: skip
        self._wakeup = NotificationListener(
            app.store, self.queues.notified, app.notifier.watch, runtime, bounded=self.outage.bounded
        )
        services = (self._rescuer, self._scheduler, self._wakeup)
        self.others = [service for service in services if service is not None]  # that may end at once

    # -- start -----------------------------------------------------------------------------------------------

    def watch_caller(self) -> Watch:
        """Start the supervisor; the calling thread is watched, because it is to run the dispatcher."""
        settings = self._app.settings
        bound_seconds = max(settings.lease_seconds, 3 * settings.poll_seconds)
        self._caller = self.supervisor.watch_caller("dispatcher", bound_seconds)
        self.supervisor.begin()
        return self._caller

    def start(self) -> bool:
        """Check the tables, write the worker's row, look for lost jobs and due schedules.

        False if it gave up while the database was unavailable.

        Raises:
            ConfigurationError: a job type's settings are wrong.
            SchemaMismatch: the tables are not those of this version.
        """
        if not self._ready():
            return False
        if self._rescuer is not None:  # a drain may end before the rescuer's own first round
            self._rescuer.try_round()
        self._scheduler.try_round()  # likewise: a worker started by cron enqueues today's slots and runs them
        queues = " ".join(f"{queue.request.queue}={queue.request.threads}" for queue in self.queues)
        _log.info("worker.started", extra={"worker": self.heartbeat.worker.id, "queues": queues})
        self.started = True
        return True

    def start_threads(self) -> None:
        self.outage.retry_until_available(partial(_connect, self._app.store), give_up=self._gives_up)
        for service in (self.settler, self.heartbeat, *self.others):
            service.start(self.supervisor)
        self.queues.start(self.supervisor)

    def _ready(self) -> bool:
        """What precedes the first claim; waits for an unavailable database."""
        app = self._app
        steps: list[Callable[[], object]]
        steps = [partial(_start_type, job_type, self._is_interrupt) for job_type in app.job_types]
        if not self._checked:
            steps.append(partial(revisions.check, app.store))
        steps += [self.heartbeat.register, self._look_for_unknown_types]
        return all(self.outage.retry_until_available(partial(_done, step), give_up=self._gives_up) for step in steps)

    def _look_for_unknown_types(self) -> None:
        """Warn of jobs of unknown types, which a worker without the app's types (a forgotten --app) would ignore."""
        store = self._app.store
        with store.read() as connection:
            unknown = count_unknown(store, connection, self._app.job_types.names())
        self.unknown_types = bool(unknown)
        if unknown:
            types = " ".join(sorted(unknown_type.job_type for unknown_type in unknown))
            facts = {"types": types, "jobs": sum(unknown_type.jobs for unknown_type in unknown)}
            _log.warning(
                "worker.unknown_types", extra={**facts, "advice": "name the app that knows them: --app, EFFECTS_APP"}
            )

    # -- what they tell each other ---------------------------------------------------------------------------

    def _waits_for_database(self) -> None:
        """Called by each thread that does. Time limits hold meanwhile: they are the dispatcher's to see to."""
        self.supervisor.came_round()
        self.releases.came_round()  # it may be waiting for this thread, which releases for both
        if self._caller is not None and self._caller.thread is self._current():
            self.queues.give_up_overdue()

    def _database_is_back(self) -> None:
        self._wakeup.reconnect()
        self.queues.poll()

    def _activity(self) -> Activity:
        now, wrote_at = self._now(), self.settler.wrote_at
        return Activity(
            claimed=now - self._caller.came_round_at if self._caller is not None else None,
            settled=now - wrote_at if wrote_at is not None else None,
            fired=self._scheduler.came_round_seconds_ago(now),
            oldest_unsettled_seconds=self.settler.oldest_unwritten_seconds(),
        )

    def _may_start(self) -> bool:
        return not self._stopping.is_set() and self.heartbeat.lease_valid

    def _settle(self, settlement: Settlement) -> None:
        self.settler.add(settlement)

    def _wait_written(self, settlement: Settlement) -> None:
        self.settler.wait_written(settlement)

    def _mark(self, executions: list[Execution]) -> Released:
        released = mark_released(self._app, self.outage, executions, give_up=self._stopping.is_set)
        self.evidence.released(executions, released.marked)
        return released

    def _count(self, settlements: Sequence[Settlement]) -> None:
        self.evidence.settled(settlements)
        self._numbers.count(settlements)

    def _held(self) -> set[int]:
        """Queues first: what leaves one is known to the settler before. What cannot be written was carried out."""
        open_ids = self.queues.open_ids()
        unwritten = {settlement.job.id for settlement in self.settler.unwritten}
        return open_ids | unwritten | self.settler.unwritable

    def _settled(self, settlement: Settlement) -> None:
        job = settlement.job
        if job.group_key is not None:
            self.queues.look_at_group(job.home_queue, job.group_key)
        self._recorded(settlement)


def _connect(store: Store) -> None:
    """Within bounds: other threads wait until an engine has made its first connection, and handlers have no bounds."""
    if store.is_postgresql:
        with store.begin():
            pass


def _done(step: Callable[[], object]) -> bool:
    step()
    return True


def _start_type(job_type: JobType[Any], is_interrupt: Callable[[BaseException], bool]) -> None:
    """A wrong setting aborts the start; an unforeseen error affects only this type's jobs."""
    try:
        job_type.worker_starts()
    except EffectsError:
        raise
    except BaseException as error:
        if is_interrupt(error):
            raise
        facts = {"type": job_type.name, "error": type(error).__name__, "at": error_places(error)}
        _log.error("worker_starts.failed", extra=facts)
