"""What a worker consists of, put together from top to bottom; its start, its end, and the last resort where that hangs.

The end gives back what was not begun, lets the rest end, records what is left and deregisters. Where a part hangs that
cannot be ended, the last resort is the end of the process.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Sequence
from functools import partial
from typing import Any, Protocol

from effects.errors import EffectsError
from effects.kit.exit_codes import ExitCode
from effects.kit.logs import error_places, own_logger
from effects.model.job_type import JobType
from effects.store.claim.lease import ClaimRequest
from effects.store.db import revisions
from effects.store.db.store import Store
from effects.store.db.urls import describe_database
from effects.store.queue.job_rows import find_unknown
from effects.store.workers import deregister, end
from effects.worker.claiming.batch_loader import BatchLoader
from effects.worker.claiming.dispatcher import Claimer, Dispatcher
from effects.worker.context import WorkerContext, cut_overdue
from effects.worker.machine.runtime import Runtime
from effects.worker.queues.handler_loop import HandlerLoop
from effects.worker.queues.worker_queues import WorkerQueues
from effects.worker.recording.failover_evidence import FailoverEvidence
from effects.worker.recording.observers import (
    EndAnnouncer,
    HookCaller,
    Observer,
    Observers,
    OutcomeLog,
    QueueLooks,
    RetryTimes,
    RollupRecorder,
    SpanEnder,
)
from effects.worker.recording.release_batcher import ReleaseBatcher, ReleaseMarker, ReleaseThread
from effects.worker.recording.settler import Settler
from effects.worker.supervisor import Service, Supervisor, Watch
from effects.worker.upkeep.heartbeat import Heartbeat, Rescuer
from effects.worker.upkeep.notifications import NotificationListener
from effects.worker.upkeep.scheduler import Scheduler

_log = own_logger("effects.worker")


class Parts:
    """The parts of one worker. The dispatcher has no thread of its own: the worker's caller lends it one.

    Args:
        requests: the queues to serve.
        observers: told of what is committed, after the worker's own.
        drain_requested: called when an operator has requested that this worker ends.
    """

    def __init__(
        self,
        context: WorkerContext,
        requests: Collection[ClaimRequest],
        observers: Sequence[Observer],
        drain_requested: Callable[[], None],
    ) -> None:
        self._context = context
        app, runtime, supervisor, outage = context.app, context.runtime, context.supervisor, context.outage
        lease_seconds = context.settings.lease_seconds
        self.started = False
        self.unknown_jobs = False  # when it started, jobs of types or queues that are not known here were waiting

        # what records: the evidence for failovers is told first, then the observers
        self.evidence = FailoverEvidence(context)
        self.observers = Observers(runtime)
        self.settler = Settler(
            context, self.evidence, self.observers,
            max_linger=lambda: self.queues.max_linger(),  # noqa: PLW0108 - they are made below, and hand on to it
        )  # fmt: skip
        marker = ReleaseMarker(context, self.evidence, self.observers)
        batcher = ReleaseBatcher(marker.mark, runtime)
        self.releases = ReleaseThread(batcher, runtime, supervisor, bound_seconds=lease_seconds)

        # what carries out
        self.loop = HandlerLoop(context)
        self.queues = WorkerQueues(context, requests, self.loop, self.settler)

        # who is told of what is recorded
        numbers = RollupRecorder(context.store, runtime, lease_seconds=lease_seconds)
        retries = RetryTimes(runtime)
        self.observers.add(
            numbers, retries, EndAnnouncer(app.notifier), HookCaller(app.hooks), SpanEnder(), OutcomeLog(), *observers,
            QueueLooks(self.queues),
        )  # fmt: skip

        # upkeep
        self._scheduler = Scheduler(context, self.queues)
        self.heartbeat = Heartbeat(
            context, self.queues, self.settler, self._scheduler, numbers, self.evidence, drain_requested
        )
        self._rescuer = Rescuer(context, self.queues, self.observers)
        self._listener = NotificationListener(context, self.queues.notified)
        self.others = [self._rescuer, self._scheduler, self._listener]  # that may end at once

        # what claims
        self.loader = BatchLoader(context, self.settler, self.releases)
        self.claimer = Claimer(context, self.queues, self.settler, self.evidence)
        self.dispatcher = Dispatcher(
            context, self.queues, self.claimer, self.loader, self.settler, self.heartbeat, retries
        )

        # while the database is away, once it is back, and every second
        outage.while_waiting(supervisor.came_round)
        outage.while_waiting(self.releases.came_round)  # it may wait for this thread, which releases for both
        outage.while_waiting(self.dispatcher.database_awaited)
        outage.when_over(self._listener.reconnect)
        outage.when_over(self.queues.poll)
        supervisor.each_second(partial(cut_overdue, context.store, runtime))
        supervisor.each_second(self.settler.leave_behind)

    # -- start -----------------------------------------------------------------------------------------------

    def watch_caller(self) -> Watch:
        """Start the supervisor; the calling thread is watched, because it is to run the dispatcher."""
        settings, supervisor = self._context.settings, self._context.supervisor
        watch = supervisor.watch_caller("dispatcher", max(settings.lease_seconds, 3 * settings.poll_seconds))
        supervisor.begin()
        return watch

    def start(self, *, checked: bool) -> bool:
        """Check the tables, write the worker's row, look for lost jobs and due schedules.

        Args:
            checked: the version of the tables is known to be right.

        False if it gave up while the database was unavailable.

        Raises:
            ConfigurationError: a job type's settings are wrong.
            SchemaMismatch: the tables are not those of this version.
        """
        if not self._ready(checked):
            return False
        self._rescuer.try_round()  # a drain may end before the rescuer's own first round
        self._scheduler.try_round()  # likewise: a worker started by cron enqueues today's slots and runs them
        queues = " ".join(f"{queue.request.queue}={queue.request.threads}" for queue in self.queues)
        database = describe_database(self._context.store.engine.url)
        _log.info("worker.started", extra={"worker": self.heartbeat.worker.id, "database": database, "queues": queues})
        self.started = True
        return True

    def start_threads(self) -> None:
        context = self._context
        context.outage.retry_until_available(partial(_connect, context.store), give_up=context.gives_up)
        for service in (self.settler, self.heartbeat, *self.others):
            service.start(context.supervisor)
        self.queues.start(context.supervisor)

    def _ready(self, checked: bool) -> bool:
        """What precedes the first claim; waits for an unavailable database."""
        context = self._context
        steps: list[Callable[[], object]]
        steps = [partial(_start_type, job_type, context.runtime.is_interrupt) for job_type in context.job_types]
        if not checked:
            steps.append(partial(revisions.check, context.store))
        steps += [self.heartbeat.register, self._look_for_unknown]
        return all(
            context.outage.retry_until_available(partial(_done, step), give_up=context.gives_up) for step in steps
        )

    def _look_for_unknown(self) -> None:
        """Warn of jobs of unknown types, which a worker without the app's types (a forgotten --app) would ignore."""
        app, store = self._context.app, self._context.store
        with store.read() as connection:
            unknown, queues = find_unknown(store, connection, app.job_types.names(), app.queues)
        self.unknown_jobs = bool(unknown or queues)
        if unknown:
            types = " ".join(sorted(unknown_type.job_type for unknown_type in unknown))
            facts = {"types": types, "jobs": sum(unknown_type.jobs for unknown_type in unknown)}
            _log.warning(
                "worker.unknown_types", extra={**facts, "advice": "name the app that knows them: --app, EFFECTS_APP"}
            )


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


FLUSH_SECONDS = 30.0
JOIN_SECONDS = 2.0
HOOKS_SECONDS = 2.0  # for hooks that have not returned
LOOK_SECONDS = 0.02


class Shutdown:
    """The shutdown, performed once, by the dispatcher's thread or by one that takes over if that stalls.

    Args:
        grace_seconds: for running handlers after a requested stop; at the end of a drain they have their
            own deadlines.
        stop_asked: whether a stop was requested.
        aborting: set when there is no grace any more.
    """

    def __init__(
        self,
        context: WorkerContext,
        parts: Parts,
        *,
        grace_seconds: float,
        stop_asked: Callable[[], bool],
        aborting: threading.Event,
    ) -> None:
        self._context, self._parts, self._now = context, parts, context.runtime.monotonic
        self._grace_seconds, self._stop_asked = grace_seconds, stop_asked
        self._aborting, self._came_round = aborting, context.supervisor.came_round
        self._begun, self._is_interrupt = threading.Lock(), context.runtime.is_interrupt
        self.over = context.runtime.event()

    @property
    def _of_async_handlers(self) -> tuple[Service, ...]:
        return (self._parts.loop, self._parts.releases)

    @property
    def begun(self) -> bool:
        return self._begun.locked()

    def conduct(self, *, fault: tuple[ExitCode, str] | None) -> bool:
        """False if another thread has begun it.

        Args:
            fault: the exit code and the reason, where the end is not in order. Then claimed jobs that the part which
                failed left without a holder are returned, and the worker's row keeps both.
        """
        if not self._begun.acquire(blocking=False):
            return False
        try:
            self._conduct(fault)
        finally:
            self.over.set()
        return True

    def _conduct(self, fault: tuple[ExitCode, str] | None) -> None:
        parts = self._parts
        for service in parts.others:
            service.stop()
        parts.queues.give_back_unstarted()
        self._wait_for_running()
        parts.queues.cut_short()
        parts.queues.close()
        for part in self._of_async_handlers:
            part.stop()
        if fault is not None:
            self._try("give_back", lambda: parts.claimer.give_back(parts.heartbeat.worker.id))
        self._flush()
        parts.heartbeat.stop()
        self._join()
        self._context.app.hooks.finish(0.0 if self._aborting.is_set() else HOOKS_SECONDS)
        self._try("numbers", parts.heartbeat.write_numbers)
        for job_type in self._context.job_types:
            self._try("worker_ends", job_type.worker_ends)
        self._try("deregister", lambda: self._deregister(fault))
        if fault is None and not self._context.outage.under_way and not parts.settler.unwritten:
            self._try("evidence", parts.evidence.close)

    def _deregister(self, fault: tuple[ExitCode, str] | None) -> None:
        store, worker = self._context.store, self._parts.heartbeat.worker.id
        last = partial(deregister, store, worker) if fault is None else partial(end, store, worker, *fault)
        self._context.outage.retry_until_available(last, give_up=lambda: True)

    def _try(self, step: str, call: Callable[[], object]) -> None:
        """Log a failure and leave the rest to rescue: the process ends in any case."""
        self._came_round()
        try:
            call()
        except BaseException as error:
            if self._is_interrupt(error):
                raise
            fields = {"step": step, "error": type(error).__name__, "at": error_places(error)}
            _log.warning("worker.end_failed", extra=fields)

    def _wait_for_running(self) -> None:
        queues, asked_at = self._parts.queues, None
        while queues.busy() and not self._aborting.is_set():
            self._came_round()
            asked_at = asked_at or (self._now() if self._stop_asked() else None)
            if asked_at is not None and self._now() - asked_at > self._grace_seconds:
                return
            queues.give_up_overdue()
            self._aborting.wait(LOOK_SECONDS)

    def _flush(self) -> None:
        """Have what was answered written. After the time what is left is left to rescue."""
        settler = self._parts.settler
        settler.close()
        until = self._now() + FLUSH_SECONDS
        while settler.is_alive() and self._now() < until:
            self._came_round()
            settler.join(0.05)
            if self._aborting.is_set() and self._context.outage.under_way:
                break
        settler.abandon()

    def _join(self) -> None:
        """They hold connections, and a heartbeat under way would find us gone; one that hangs is left behind."""
        until = self._now() + JOIN_SECONDS
        for service in (self._parts.heartbeat, *self._of_async_handlers, *self._parts.others):
            service.join(max(0.0, until - self._now()))
        self._came_round()


class OwnProcess(Protocol):
    """The process, where it is the worker's own: it ends also where its interpreter stands still. Must not raise."""

    @property
    def is_on_terminal(self) -> bool:
        """Whether a person reads its log: then texts of exceptions are logged, which may be personal."""

    def end(self, code: int) -> object:
        """End it, at once."""

    def came_round(self) -> None:
        """The interpreter goes on; called every second."""

    def put_off(self, seconds: float) -> None:
        """It will end within so many seconds from now, and may not come round meanwhile."""


class LastResort:
    """A thread that waits for the worker's end, and ends the process where it does not come.

    It is there from the worker's start, because at the end there may be no thread, no memory and no descriptor to have.

    Args:
        process: None where it is not ours to end.
    """

    def __init__(self, runtime: Runtime, process: OwnProcess | None) -> None:
        self._process, self._now = process, runtime.monotonic
        self._end: tuple[float, ExitCode] | None = None  # monotonic
        self._has_returned = False
        self._changed = runtime.event()

    def start(self, supervisor: Supervisor) -> None:
        """Be there from now on."""
        if self._process is not None:
            supervisor.start(supervisor.watch("last-resort"), partial(self._guard, self._process))

    def within(self, seconds: float, code: ExitCode) -> None:
        """The worker returns within so many seconds from now, or the process ends with the code."""
        end = (self._now() + seconds, code)
        self._end = end if self._end is None else min(end, self._end)
        self._changed.set()
        if self._process is not None:
            self._process.put_off(seconds)  # the supervisor, which does so, may be what failed

    def returned(self) -> None:
        """The worker's caller has the process again."""
        self._has_returned = True
        self._changed.set()

    def _guard(self, process: OwnProcess) -> None:
        while not self._has_returned:
            end = self._end
            seconds = None if end is None else end[0] - self._now()
            if end is not None and end[0] <= self._now():
                process.end(end[1])
                return
            self._changed.wait(seconds)
            self._changed.clear()
