"""The worker process: one dispatcher, the threads of each queue, and its services.

    claim ─▶ load ─▶ threads of each queue ─▶ settler        beside it: heartbeat · rescuer · scheduler · supervisor

The dispatcher runs in the thread that called `run` or `drain`. A crash anywhere leaves rows that record how far
each job had come; `effects.store.queue.liveness.rescue` reads them.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial

from effects.app.effects import Effects
from effects.kit.exit_codes import ExitCode
from effects.kit.logs import own_logger
from effects.model.settlement import Settlement
from effects.worker.attempts.attempt import RunningAttempt
from effects.worker.context import WorkerContext
from effects.worker.machine.runtime import Runtime
from effects.worker.parts import FLUSH_SECONDS, JOIN_SECONDS, LastResort, OwnProcess, Parts, Shutdown
from effects.worker.queues.worker_queues import planned
from effects.worker.recording.observers import Observer
from effects.worker.supervisor import PartFault, Supervisor

HANGING_MAX = 4
HANDOVER_SECONDS = 1.0  # a dispatcher that has not begun the shutdown by then has stalled
FORCED_END_SECONDS = 1.5
END_MARGIN_SECONDS = 5.0

_log = own_logger("effects.worker")


@dataclass(slots=True)
class DrainResult:
    """What a drain did. `finished` is False when the time ran out first.

    `unknown_jobs`: when it began, there were jobs of types or in queues that this app does not know.
    """

    finished: bool = True
    counts: dict[str, int] = field(default_factory=dict)
    exit_code: ExitCode = ExitCode.DONE
    unknown_jobs: bool = False


class _OutcomeCounts(Observer):
    """Recorded outcomes by their kind."""

    def __init__(self) -> None:
        self.counts: dict[str, int] = {}
        self._lock = threading.Lock()

    def recorded(self, settlements: Sequence[Settlement]) -> None:
        with self._lock:
            for settlement in settlements:
                ends = settlement.ends
                word = settlement.status if ends else settlement.outcome
                if ends or (word and not settlement.lost):  # a lost attempt was another worker's
                    self.counts[word] = self.counts.get(word, 0) + 1


class Worker:
    """Carries out the jobs of one Effects.

    An essential thread that dies or stalls for a lease ends it: no more jobs are claimed,
    what was answered is written, running handlers have the grace period, and the exit code is 70.

    Args:
        app: settings, database and job types. Checked here and when the worker starts: a database that it
            does not know is refused with SchemaMismatch.
        queues: queue → attempts at a time. Default: the `default` queue, every queue that a job type, EFFECTS_QUEUES or
            `Effects(queues=[…])` names.
        housekeeping: whether to serve the queue `effects` besides: pruning, bulk actions, alerts. Default yes.
        grace_seconds: for running handlers after a requested stop. Default: of the settings.
        runtime: time, threads and randomness. Default: the machine's.
        observers: told of what is committed, after the worker's own observers, from the thread that settles, releases
            or rescues. What one raises is logged and counted.
        process: ends the process where something hangs that we cannot end: after a second `stop`, when an end takes
            longer than it may, or where the interpreter stands still. `effects work` gives one. Default: such a thread
            is left behind, because the process is not ours.

    Attributes:
        fault: the first part that died or stalled, if one has.
        counts: recorded outcomes by their kind; of the jobs taken back from lost workers, those that ended.
        observer_errors: class of an observer → how often it has raised.
    """

    def __init__(
        self,
        app: Effects,
        *,
        queues: Mapping[str, int] | None = None,
        housekeeping: bool = True,
        grace_seconds: float | None = None,
        runtime: Runtime | None = None,
        observers: Sequence[Observer] = (),
        process: OwnProcess | None = None,
    ) -> None:
        self.app = app
        self.fault: PartFault | None = None
        self._runtime = runtime = runtime or Runtime()
        self._now = runtime.monotonic
        self._grace_seconds = app.settings.grace_seconds if grace_seconds is None else grace_seconds
        self._last_resort = LastResort(runtime, process)
        self._aborting = runtime.event()
        self._coming = runtime.event()  # the dispatcher's thread, to its end
        self._handlers_hang = False  # too many of them; once true, so for good: some may come back during the end
        self._stop_asked = False  # by `stop`, in contrast to a drain that has come to its end
        self._context = context = WorkerContext(
            app,
            runtime,
            Supervisor(runtime, failed=self._failed),
            logs_error_texts=process is not None and process.is_on_terminal,
        )
        self._stopping = context.stopping
        outcomes = _OutcomeCounts()
        self.counts = outcomes.counts
        requests = planned(app, queues, runtime, housekeeping=housekeeping)
        self._parts = Parts(context, requests, [outcomes, *observers], self._stop_once)
        self.observer_errors: Mapping[str, int] = self._parts.observers.errors
        if process is not None:
            context.supervisor.each_second(process.came_round)
        self._shutdown = Shutdown(
            context, self._parts, grace_seconds=self._grace_seconds,
            stop_asked=lambda: self._stop_asked or self.fault is not None, aborting=self._aborting,
        )  # fmt: skip

    # -- running ---------------------------------------------------------------------------------------------

    @property
    def id(self) -> str:
        """The id of its row; another one after it was declared dead."""
        return self._parts.heartbeat.worker.id

    @property
    def running(self) -> list[RunningAttempt]:
        """The attempts that it is carrying out."""
        return self._parts.queues.running

    def run(self) -> ExitCode:
        """Work until `stop` is called; the exit code: 0, 70 or 75 (see `effects.kit.exit_codes`).

        Raises:
            SchemaMismatch: the tables are not those of this version.
        """
        self._live(self._go_on)
        return self._code(ExitCode.DONE)

    def drain(self, max_seconds: float | None = None, *, checked: bool = False) -> DrainResult:
        """Work until no job is due, or until `max_seconds` have passed; no job starts after that, and an unavailable
        database is no longer waited for.

        Jobs that are due later, retries included, are not waited for. Two drains at once are harmless.

        Args:
            checked: the caller has just checked the version of the tables.
        """
        if max_seconds is not None:
            self._context.give_up_at = self._now() + max_seconds
        result = DrainResult(finished=False)
        self._parts.loader.draining = True
        self._parts.queues.look_first()

        def until_nothing_is_due() -> None:
            result.finished = self._parts.dispatcher.sees_nothing() or self._drained()

        self._live(until_nothing_is_due, checked=checked)
        result.counts, result.unknown_jobs = dict(self.counts), self._parts.unknown_jobs
        if not result.finished:
            result.exit_code = self._code(ExitCode.TIME_RAN_OUT)
        else:
            result.exit_code = self._code(ExitCode.FINDINGS if self.counts.get("dead", 0) else ExitCode.DONE)
        return result

    def stop(self) -> None:
        """Stop claiming, finish or give back, and end within the grace period. Called again: end at once, and where
        `hard_end` was given, within 2 s in any case, with exit code 143.

        Safe in a signal handler: the events are set by a separate thread, because the interrupted thread may be
        inside one of their locks. Where no thread can be started, they are set here nevertheless.
        """
        if not self._started(self.stop_directly, "effects-stop"):
            self.stop_directly()

    def stop_directly(self) -> None:
        """As `stop`, on the calling thread, which is in no signal handler: it needs nothing that may be used up."""
        again, self._stop_asked = self._stop_asked, True
        self._stop(again)

    def _started(self, run: Callable[[], None], name: str) -> bool:
        """Whether a thread does this: a process may have no more of them, or no memory."""
        try:
            self._runtime.start(run, name)
        except (RuntimeError, MemoryError):
            return False
        return True

    def _stop_once(self) -> None:
        """Stop because of `effects workers drain`: like the first signal, never like the second."""
        if not self._stop_asked:
            self.stop()

    def _stop(self, at_once: bool) -> None:
        seconds, code = (FORCED_END_SECONDS, ExitCode.FORCED) if at_once else (self._end_seconds, ExitCode.PART_FAILED)
        self._last_resort.within(seconds, code)
        self._stopping.set()
        if at_once:
            self._aborting.set()
        self._context.wake.set()
        facts = {"grace_seconds": 0.0 if at_once else self._grace_seconds}
        # By another thread: one that waits for a full pipe would not hear the next signal.
        self._started(partial(_log.info, "worker.stopping", extra=facts), "effects-log")

    def _go_on(self) -> None:
        self._parts.start_threads()
        while not self._stopping.is_set() and not self._too_many_hang():
            if not self._parts.dispatcher.round():
                self._parts.dispatcher.rest()

    def _drained(self) -> bool:
        self._parts.start_threads()
        finished = False
        while not (finished or self._context.gives_up() or self._too_many_hang()):
            finished = self._parts.dispatcher.nothing_due()
        return finished

    def _code(self, otherwise: ExitCode) -> ExitCode:
        if self.fault is not None:
            return ExitCode.PART_FAILED
        return ExitCode.HANDLERS_HANG if self._handlers_hang else otherwise

    def _fault_code(self) -> tuple[ExitCode, str] | None:
        """What the worker's row keeps of an end that is not in order."""
        if self.fault is not None:
            return ExitCode.PART_FAILED, str(self.fault)
        return (ExitCode.HANDLERS_HANG, "handlers hang") if self._handlers_hang else None

    # -- start and end ---------------------------------------------------------------------------------------

    def _live(self, loop: Callable[[], None], *, checked: bool = False) -> None:
        """Start, loop, and end in every case."""
        parts, supervisor, watch = self._parts, self._context.supervisor, self._parts.watch_caller()
        try:
            self._last_resort.start(supervisor)
            if parts.start(checked=checked):
                try:
                    with self._runtime.rare_collections():
                        loop()
                except (KeyboardInterrupt, SystemExit):  # of the program that runs us
                    raise
                except BaseException as error:
                    supervisor.ended(watch, error)
                finally:
                    self._end()
        finally:
            supervisor.forget(watch)
            supervisor.stop()
            self._last_resort.returned()

    def _end(self) -> None:
        self._stopping.set()
        self._coming.set()
        if not self._shutdown.conduct(fault=self._fault_code()):
            self._shutdown.over.wait(self._end_seconds)
        _log.info("worker.stopped", extra={"worker": self._parts.heartbeat.worker.id, **self.counts})

    # -- when a part fails -----------------------------------------------------------------------------------

    def _failed(self, fault: PartFault) -> None:
        """Told by the supervisor, on whichever thread found it."""
        first, self.fault = self.fault is None, self.fault or fault
        if first:
            self._last_resort.within(self._end_seconds, ExitCode.PART_FAILED)
        self._stopping.set()
        self._context.wake.set()
        for service in (self._parts.settler, self._parts.heartbeat):  # the end needs them
            if service.name == fault.part:
                with suppress(RuntimeError, MemoryError):
                    service.substitute(self._context.supervisor)
        if first:
            self._started(self._take_over, "effects-end")

    def _take_over(self) -> None:
        """Conduct the end where the dispatcher's thread does not come to it; then the process ends without it."""
        self._coming.wait(HANDOVER_SECONDS)
        if self._shutdown.conduct(fault=self._fault_code()):
            self._last_resort.within(HANDOVER_SECONDS, ExitCode.PART_FAILED)

    @property
    def _end_seconds(self) -> float:
        """The longest duration of a shutdown in which nothing hangs."""
        return self._grace_seconds + FLUSH_SECONDS + JOIN_SECONDS + END_MARGIN_SECONDS

    def _too_many_hang(self) -> bool:
        """Whether so many handlers hang that only a fresh process helps; logged once."""
        if not self._handlers_hang and len(hanging := self._parts.queues.hanging) >= HANGING_MAX:
            self._handlers_hang = True
            self._last_resort.within(self._end_seconds, ExitCode.HANDLERS_HANG)
            jobs = ",".join(str(attempt.job.id) for attempt in hanging)
            types = " ".join(sorted({attempt.job.job_type for attempt in hanging}))
            _log.error("worker.handlers_hang", extra={"jobs": jobs, "types": types})
        return self._handlers_hang

    # -- what probes ask ------------------------------------------------------------------------------------

    def why_not_live(self) -> str | None:
        """What only a fresh process mends, such as a part that stalled; else None, as while the database is away."""
        if self.fault is not None:
            return str(self.fault)
        if self._handlers_hang:
            return "too many handlers hang"
        return None if self._context.supervisor.is_looking else "supervisor stalled"

    def why_not_ready(self) -> str | None:
        """Why it would start no job now: it has not started, it stops, its heartbeat is not current. Else None."""
        if (why := self.why_not_live()) is not None:
            return why
        if self._stopping.is_set():
            return "stopping"
        if not self._parts.started:
            return "starting"
        return None if self._context.lease.is_valid else "no heartbeat for half a lease: is the database reachable?"
