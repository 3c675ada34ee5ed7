"""The worker process: one dispatcher, the threads of each queue, and its services.

    claim ─▶ load ─▶ threads of each queue ─▶ settler        beside it: heartbeat · rescuer · scheduler · supervisor

The dispatcher runs in the thread that called `run` or `drain`. A crash anywhere leaves rows that record how far
each job had come; `effects.store.queue.liveness.rescue` reads them.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from effects.app import Effects
from effects.exit_codes import ExitCode
from effects.logs import RateLimitedLogger, error_places
from effects.model.settlement import Settlement
from effects.worker.machine.lasting import lasting
from effects.worker.machine.runtime import Runtime
from effects.worker.parts import Parts
from effects.worker.shutdown import FLUSH_SECONDS, JOIN_SECONDS, LastResort, Shutdown
from effects.worker.supervision.supervisor import PartFault

HANGING_MAX = 4
HANDOVER_SECONDS = 1.0  # a dispatcher that has not begun the shutdown by then has stalled
FORCED_END_SECONDS = 1.5
END_MARGIN_SECONDS = 5.0

_log = logging.getLogger("effects.worker")


@dataclass(slots=True)
class DrainResult:
    """What a drain did. `finished` is False when the time ran out first.

    `unknown_types`: when it began, there were jobs of types that are not registered here.
    """

    finished: bool = True
    counts: dict[str, int] = field(default_factory=dict)
    exit_code: ExitCode = ExitCode.DONE
    unknown_types: bool = False


class Worker:
    """Carries out the jobs of one Effects.

    An essential thread that dies or stalls for a lease ends it: no more jobs are claimed,
    what was answered is written, running handlers have the grace period, and the exit code is 70.

    Args:
        app: settings, database and job types. Checked here and when the worker starts: a database that it
            does not know is refused with SchemaMismatch.
        queues: queue → attempts at a time. Default: the `default` queue, every queue that a job type or EFFECTS_QUEUES
            names.
        settled: called after every recorded outcome, from the thread that settles or the one that rescues (for progress
            bars). What it raises is logged.
        rescue: whether to take back the jobs of workers that are gone. Default yes.
        checked: the caller has just checked the version of the tables. Default: checked at the start.
        runtime: time, threads and randomness. Default: the machine's.
        hard_end: ends the process with an exit code, at once, where something hangs that we cannot end: after a second
            `stop`, or when an end takes longer than it may. `effects work` gives `os._exit`. Default: such a thread is
            left behind, because the process is not ours.

    Attributes:
        fault: the first part that died or stalled, if one has.
        counts: recorded outcomes by their kind; of the jobs taken back from lost workers, those that ended.
    """

    def __init__(
        self,
        app: Effects,
        *,
        queues: Mapping[str, int] | None = None,
        grace_seconds: float | None = None,
        settled: Callable[[Settlement], None] | None = None,
        rescue: bool = True,
        checked: bool = False,
        runtime: Runtime | None = None,
        hard_end: Callable[[int], object] | None = None,
    ) -> None:
        self.app = app
        self.counts: dict[str, int] = {}
        self._counting = threading.Lock()
        self.fault: PartFault | None = None
        self._runtime = runtime = runtime or Runtime()
        self._now = runtime.monotonic
        self._grace_seconds = app.settings.grace_seconds if grace_seconds is None else grace_seconds
        self._told = settled
        self._last_resort = LastResort(runtime, hard_end)
        self._callback_errors = RateLimitedLogger(_log, "callback.failed")
        self._stopping, self._aborting = runtime.event(), runtime.event()
        self._coming = runtime.event()  # the dispatcher's thread, to its end
        self._give_up_at = float("inf")  # monotonic; the end of a drain's time
        self._handlers_hang = False  # too many of them; once true, so for good: some may come back during the end
        self._stop_asked = False  # by `stop`, in contrast to a drain that has come to its end
        self._parts = parts = Parts(
            app, runtime, queues=queues, rescue=rescue, checked=checked, stopping=self._stopping,
            gives_up=self._gives_up, recorded=self._count, drain_requested=self._stop_once, failed=self._failed,
        )  # fmt: skip
        self._shutdown = Shutdown(
            app, parts, runtime, grace_seconds=self._grace_seconds,
            stop_asked=lambda: self._stop_asked or self.fault is not None, aborting=self._aborting,
        )  # fmt: skip

    # -- running ---------------------------------------------------------------------------------------------

    @property
    def id(self) -> str:
        """The id of its row; another one after it was declared dead."""
        return self._parts.heartbeat.worker.id

    def run(self) -> ExitCode:
        """Work until `stop` is called; the exit code: 0, 70 or 75 (see `effects.exit_codes`).

        Raises:
            SchemaMismatch: the tables are not those of this version.
        """
        self._live(self._go_on)
        return self._code(ExitCode.DONE)

    def drain(self, max_seconds: float | None = None) -> DrainResult:
        """Work until no job is due, or until `max_seconds` have passed; no job starts after that, and an unavailable
        database is no longer waited for.

        Jobs that are due later, retries included, are not waited for. Two drains at once are harmless.
        """
        if max_seconds is not None:
            self._give_up_at = self._now() + max_seconds
        result = DrainResult(finished=False)
        self._parts.loader.draining = True
        self._parts.queues.look_first()

        def until_nothing_is_due() -> None:
            parts = self._parts
            nothing = parts.dispatcher.sees_nothing() and not parts.more_to_come.waited()
            result.finished = nothing or self._drained()

        self._live(until_nothing_is_due)
        result.counts, result.unknown_types = dict(self.counts), self._parts.unknown_types
        if not result.finished:
            result.exit_code = self._code(ExitCode.TIME_RAN_OUT)
        else:
            result.exit_code = self._code(ExitCode.FINDINGS if self.counts.get("dead", 0) else ExitCode.DONE)
        return result

    def stop(self) -> None:
        """Stop claiming, finish or give back, and end within the grace period. Called again: end at once, and where
        `hard_end` was given, within 2 s in any case, with exit code 143.

        Safe in a signal handler: the events are set by a thread of its own, because the interrupted thread may be
        inside one of their locks.
        """
        again, self._stop_asked = self._stop_asked, True
        self._runtime.start(lambda: self._stop(again), "effects-stop")

    def _stop_once(self) -> None:
        """Stop because of `effects workers drain`: like the first signal, never like the second."""
        if not self._stop_asked:
            self.stop()

    def _stop(self, at_once: bool) -> None:
        self._stopping.set()
        if at_once:
            self._aborting.set()
            self._last_resort.within(FORCED_END_SECONDS, ExitCode.FORCED)
        else:
            self._last_resort.within(self._end_seconds, ExitCode.PART_FAILED)
        self._parts.wake.set()
        _log.info("worker.stopping", extra={"grace_seconds": 0.0 if at_once else self._grace_seconds})

    def _go_on(self) -> None:
        self._parts.start_threads()
        while not self._stopping.is_set() and not self._too_many_hang():
            if not self._parts.dispatcher.round():
                self._parts.dispatcher.rest()

    def _drained(self) -> bool:
        self._parts.start_threads()
        finished = False
        while not (finished or self._gives_up() or self._too_many_hang()):
            finished = self._parts.dispatcher.nothing_due(self._give_up_at) and not self._more_comes()
        return finished

    def _more_comes(self) -> bool:
        """Whether another worker's job is about to enqueue what is to be done here; waits a moment for it."""
        coming = self._parts.more_to_come.waited()
        if coming:
            self._parts.queues.poll()
        return coming

    def _gives_up(self) -> bool:
        """Whether to wait for the database, or for jobs, no longer."""
        return self._stopping.is_set() or self._now() >= self._give_up_at

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

    def _live(self, loop: Callable[[], None]) -> None:
        """Start, loop, and end in every case."""
        parts, watch = self._parts, self._parts.watch_caller()
        try:
            if parts.start():
                try:
                    with lasting():
                        loop()
                except (KeyboardInterrupt, SystemExit):  # of the program that runs us
                    raise
                except BaseException as error:
                    parts.supervisor.ended(watch, error)
                finally:
                    self._end()
        finally:
            parts.supervisor.forget(watch)
            parts.supervisor.stop()
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
        self._stopping.set()
        first, self.fault = self.fault is None, self.fault or fault
        for service in (self._parts.settler, self._parts.heartbeat):  # the end needs them
            if service.name == fault.part:
                service.substitute(self._parts.supervisor)
        if first:
            self._last_resort.within(self._end_seconds, ExitCode.PART_FAILED)
            self._runtime.start(self._take_over, "effects-end")
        self._parts.wake.set()

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
        return None if self._parts.supervisor.is_looking else "supervisor stalled"

    def why_not_ready(self) -> str | None:
        """Why it would start no job now: it has not started, it stops, its heartbeat is not current. Else None."""
        if (why := self.why_not_live()) is not None:
            return why
        if self._stopping.is_set():
            return "stopping"
        if not self._parts.started:
            return "starting"
        return (
            None if self._parts.heartbeat.lease_valid else "no heartbeat for half a lease: is the database reachable?"
        )

    def _count(self, settlement: Settlement) -> None:
        ends = settlement.ends
        if ends:
            self.app.notifier.ended(settlement.job.id)
        self.app.hooks.recorded(settlement)
        word = settlement.status if ends else settlement.outcome
        if ends or (word and not settlement.lost):  # a lost attempt was another worker's
            with self._counting:
                self.counts[word] = self.counts.get(word, 0) + 1
        if self._told is not None:
            try:
                self._told(settlement)
            except BaseException as error:
                self._callback_errors.error(f"settled raised {type(error).__name__} at {error_places(error)}")
