"""A world: workers, an app, people, a database and a receiver in virtual time, run by a plan."""

from __future__ import annotations

import gc
import logging
import random
import weakref
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from effects import Effects, NewJob, Schedule
from effects.calls.enqueue import enqueue_many
from effects.errors import StoreUnavailable
from effects.model.settlement import Settlement
from effects.operate.tables.audit import audit
from effects.settings import Settings
from effects.store import schedules
from effects.store.limits.key_limits import ensure_limit
from effects.store.schema.job_tables import STATUS_LIVE
from effects.worker import Worker
from effects.worker.recording.observers import Observer
from tests.simulator.database import Host, SimDatabase, SimFile, lost_connection
from tests.simulator.jobs import Receiver, Script, job_types
from tests.simulator.people import People
from tests.simulator.plan import (
    APP,
    AT_A_COMMIT,
    AT_A_STEP,
    AT_A_TIME,
    BUSY_SECONDS,
    IN_A_HANDLER,
    LEASE_SECONDS,
    Plan,
    PlannedFault,
    PlannedJob,
)
from tests.simulator.runtime import SimRuntime
from tests.simulator.scheduler import CrashedError, Scheduler, SimProcess, SimThread

HEARTBEAT_SECONDS, POLL_SECONDS = 10.0, 8.0
REST_SECONDS = 3600.0  # after the last fault everything has ended by then, on one thread with slow handlers too
RESTART_SECONDS = 3.0
PROMOTION_SECONDS = HEARTBEAT_SECONDS + 2.0
AUDITS = 3  # while it is busy
OF_LOSSES = ("effects_known", "failovers_compared")  # the audit's own words for what a failover lost
HOSTS = 5  # three workers, the app, people
TICK = Schedule(name="tick", job_type="repeat", payload={"name": "tick {slot}"}, cron="* * * * *", catch_up="all",
                overlap="allow")  # fmt: skip


class World:
    """One run of a plan.

    Attributes:
        timeline: what happened when.
        ids: the ids of the jobs by their names.
        gone: processes that ended before the world's end.
        ends: how workers ended: the process, and its exit code or error.
        refused: attempts whose end the fence refused, and their verdicts.
        findings: of the audit, while it ran and at rest.
        errors: events of the level ERROR in the workers' log.
    """

    def __init__(self, plan: Plan, hosts: list[Host], file: SimFile) -> None:
        self.plan, self.hosts = plan, hosts
        self.timeline: list[str] = []
        self.scheduler = Scheduler(plan.seed)
        self.control, self.app = SimProcess("world"), SimProcess("app")
        self.database = SimDatabase(self.scheduler, file)
        self.database.edge = self._edge
        self.receiver = Receiver(self)
        self.ids: dict[str, int] = {}
        self.gone: set[str] = set()
        self.ends: list[tuple[str, str]] = []
        self.findings: list[str] = []
        self.errors: Counter[str] = Counter()
        self.refused: dict[tuple[int, int], str] = {}
        self.failed_over = False
        self._free = list(hosts)
        self.people = People(self, self._free.pop().enter(self.database, self.control))
        self._commits: Counter[int] = Counter()
        self._steps: Counter[int] = Counter()
        self._handled: Counter[int] = Counter()
        self._at_commits, self._at_steps, self._in_handlers = (
            {(fault.worker, int(fault.at)): fault for fault in plan.faults if fault.kind in kinds}
            for kinds in (AT_A_COMMIT, AT_A_STEP, IN_A_HANDLER)
        )
        if self._at_steps:
            self.scheduler.preempted = self._preempted
        self._places: dict[int, tuple[SimProcess, Worker]] = {}
        self._generations: Counter[int] = Counter()
        self._busy, self._closing = 0, False

    # -- running ---------------------------------------------------------------------------------------------

    def run(self) -> None:
        """Carry out the plan, then let everything come to rest."""
        scheduler = self.scheduler
        for place in range(self.plan.workers):
            scheduler.start(self.control, partial(self._keep_running, place), f"place {place}")
        host = self._free.pop().enter(self.database, self.app)
        self._until_done(self.app, partial(self._enqueue_all, host), "app")
        self._until_done(self.control, self.people.carry_out, "people")
        for fault in self.plan.faults:
            if fault.kind in AT_A_TIME:
                self._until_done(self.control, partial(self._strike, fault), fault.kind)
        for part in range(1, AUDITS + 1):
            scheduler.run(BUSY_SECONDS * part / AUDITS)
            self._look()
        while not self._at_rest() and scheduler.now < BUSY_SECONDS + REST_SECONDS:
            scheduler.run(scheduler.now + 5.0)
        self._look()
        self._closing = True
        scheduler.start(self.control, self._stop_all, "end")
        while self._places and scheduler.now < BUSY_SECONDS + REST_SECONDS + 120.0:
            scheduler.run(scheduler.now + 1.0)
        scheduler.end()

    def _look(self) -> None:
        """The audit, true at any time but for what a failover has lost."""
        app, away_until = self.people.app, self.database.away_until
        self.database.away_until = 0.0
        for finding in audit(app.store, app.ledgers):
            if not (self.failed_over and finding.check in OF_LOSSES):
                self.findings.append(f"effects audit at {self.scheduler.now:.0f} s: {finding}")
        self.database.away_until = away_until

    def _until_done(self, process: SimProcess, run: partial[None] | object, name: str) -> None:
        """Start a thread that the world waits for before it is at rest."""

        def counted() -> None:
            run()  # type: ignore[operator]
            self._busy -= 1

        self._busy += 1
        self.scheduler.start(process, counted, name)

    def _at_rest(self) -> bool:
        return not self._busy and not self.database.query(f"SELECT 1 FROM effects_jobs WHERE {STATUS_LIVE} LIMIT 1")

    # -- workers ---------------------------------------------------------------------------------------------

    def _keep_running(self, place: int) -> None:
        """As systemd does: start it again a while after it has ended."""
        climate = self.plan.climate
        while not self._closing:
            self._generations[place] += 1
            process = SimProcess(f"w{place}.{self._generations[place]}")
            host = self._free.pop().enter(self.database, process)
            runtime = SimRuntime(
                self.scheduler, process, self.database.committed,
                drift=climate.drift * (place + 1), heard_seconds=climate.heard_seconds,
            )  # fmt: skip
            thread = self.scheduler.start(process, partial(self._work, place, process, host, runtime), process.name)
            thread.join()
            while process.threads:
                process.threads[0].join()
            self._places.pop(place, None)
            self._free.append(host)
            if not self._closing:
                self.scheduler.sleep(RESTART_SECONDS)

    def _work(self, place: int, process: SimProcess, host: Host, runtime: SimRuntime) -> None:
        self.note(process.name, "starts")
        worker = Worker(
            host.app, queues={"default": self.plan.climate.threads}, housekeeping=False, runtime=runtime,
            grace_seconds=5.0, observers=[_Chronicle(self, process.name)],
        )  # fmt: skip
        self._places[place] = (process, worker)
        try:
            code = str(int(worker.run()))
        except CrashedError:
            self.note(process.name, "is gone")
            raise
        except Exception as error:
            code = f"{type(error).__name__}: {error}"
        self.note(process.name, f"ends with {code}")
        self.ends.append((process.name, code))
        self._crash(process)  # handlers that went on end with it

    def _stop_all(self) -> None:
        for _, worker in list(self._places.values()):
            worker.stop()

    # -- the app ---------------------------------------------------------------------------------------------

    def _enqueue_all(self, host: Host) -> None:
        app, climate = host.app, self.plan.climate
        self._insist(lambda: _declare(app, climate.caps, climate.schedule))
        for job in self.plan.jobs:
            self.scheduler.sleep(job.at - self.scheduler.now)
            self._insist(lambda job=job: self._enqueue(app, job))  # type: ignore[misc]

    def _insist(self, call: partial[None] | object) -> None:
        """Call again until the database answers."""
        while True:
            try:
                call()  # type: ignore[operator]
            except StoreUnavailable:
                self.scheduler.sleep(1.0)
            else:
                return

    def _enqueue(self, app: Effects, job: PlannedJob) -> None:
        self.app.immune = not job.keyed  # without a key nobody can know what an unanswered commit has done
        new = NewJob(
            job_type=job.policy, payload=Script(job.name), key=job.name if job.keyed else None, group_key=job.group,
            limit_key=job.limit, delay=job.delay or None, priority=job.priority,
        )  # fmt: skip
        self.ids[job.name] = enqueue_many([new], effects=app)[0].job_id
        self.note("app", f"enqueues {job.name} ({job.policy}) as {self.ids[job.name]}")

    # -- faults ----------------------------------------------------------------------------------------------

    def _strike(self, fault: PlannedFault) -> None:
        database, scheduler = self.database, self.scheduler
        scheduler.sleep(fault.at)
        self.note("fault", f"{fault.kind} of place {fault.worker}, {fault.seconds:g} s")
        if fault.kind == "away":
            database.away_until = max(database.away_until, scheduler.now + fault.seconds)
        elif fault.kind == "clock":
            database.offset += fault.seconds
        elif fault.kind == "failover":
            self._fail_over(fault.seconds)
        elif fault.worker in self._places:
            process, worker = self._places[fault.worker]
            if fault.kind == "crash":
                self._crash(process)
            elif fault.kind == "freeze":
                process.freeze(scheduler.now + fault.seconds)
            elif fault.kind == "stop":
                worker.stop()

    def _fail_over(self, lost_seconds: float) -> None:
        """The primary dies; its standby was that far behind. No connection outlives it, so that all workers notice."""
        self.database.remember()
        self.scheduler.sleep(lost_seconds)
        self.database.forget()
        self.database.away_until = self.scheduler.now + PROMOTION_SECONDS
        self.failed_over = True
        self.note("fault", f"the commits of {lost_seconds:g} s are lost")

    def _edge(self, process: SimProcess, before: bool) -> None:
        if process is self.control or process.immune:
            return
        place = _place(process)
        if before:
            self._commits[place] += 1
        fault = self._at_commits.get((place, self._commits[place]))
        if fault is None or ("before" in fault.kind) != before:
            return
        self.note("fault", f"{fault.kind} {int(fault.at)} of {process.name}, {fault.seconds:g} s")
        if fault.kind == "stall":  # the answer to the commit comes late
            self.scheduler.sleep(fault.seconds)
        elif fault.kind.startswith("crash") and place != APP:
            self._crash(process)
            self.scheduler.check()
        else:
            raise lost_connection()

    def in_handler(self) -> None:
        """A handler has begun, has released its effect, or has carried it out."""
        assert self.scheduler.running is not None
        process = self.scheduler.running.process
        place = _place(process)
        self._handled[place] += 1
        fault = self._in_handlers.get((place, self._handled[place]))
        if fault is None:
            return
        self.note("fault", f"{fault.kind} of {process.name}, {fault.seconds:g} s")
        if fault.kind.startswith("crash"):
            self._crash(process)
            self.scheduler.check()
        process.freeze(self.scheduler.now + fault.seconds)
        self.scheduler.sleep(0.0)

    def _crash(self, process: SimProcess) -> None:
        if not self._closing:
            self.gone.add(process.name)
        self.scheduler.crash(process)

    def _preempted(self, thread: SimThread) -> float:
        if thread.process in (self.control, self.app):
            return 0.0
        place = _place(thread.process)
        self._steps[place] += 1
        fault = self._at_steps.get((place, self._steps[place]))
        if fault is None:
            return 0.0
        self.note("fault", f"{thread.name} of {thread.process.name} does not go on for {fault.seconds:g} s")
        return fault.seconds

    def note(self, who: str, what: str) -> None:
        self.timeline.append(f"{self.scheduler.now:9.2f}  {who:8} {what}")


def _place(process: SimProcess) -> int:
    return APP if process.name == "app" else int(process.name[1:].partition(".")[0])


def _declare(app: Effects, caps: dict[str, int], schedule: bool) -> None:
    with app.store.begin() as connection:
        for key, most in caps.items():
            ensure_limit(app.store, connection, key, max_in_flight=most)
    if schedule:
        schedules.register(app.store, [TICK])


class _Chronicle(Observer):
    """Notes what a worker commits."""

    def __init__(self, world: World, name: str) -> None:
        self._world, self._note, self._name = world, world.note, name

    def recorded(self, settlements: Sequence[Settlement]) -> None:
        for settlement in settlements:
            self._note(self._name, f"records job {settlement.job.id}: {_words(settlement)}")

    def refused(self, settlements: Sequence[Settlement]) -> None:
        for settlement in settlements:
            if settlement.outcome and settlement.verdict in ("done", "not_done"):
                self._world.refused[settlement.job.attempt_id] = settlement.verdict
            self._note(self._name, f"is refused: job {settlement.job.id}, {_words(settlement)}")


def _words(settlement: Settlement) -> str:
    words = ["lost" if settlement.lost else settlement.outcome or "given back", settlement.verdict, settlement.status]
    return ", ".join(str(word) for word in words if word)


class _ErrorLog(logging.Handler):
    """Hears what the workers of a world log as errors; one that is gone logs no more."""

    world: World

    def emit(self, record: logging.LogRecord) -> None:
        running = self.world.scheduler.running
        if running is None or not running.process.crashed:
            self.world.errors[record.msg] += 1
            self.world.note("log", f"{record.msg} {getattr(record, 'error', '')} {getattr(record, 'at', '')}")


class Studio:
    """The file and the apps that the worlds of one folder share."""

    def __init__(self, folder: Path) -> None:
        self._file = SimFile(folder / "world.db")
        self.hosts = [Host(self._app()) for _ in range(HOSTS)]
        self._errors = _ErrorLog(logging.ERROR)

    def _app(self) -> Effects:
        settings = Settings(
            database_url=f"sqlite:///{self._file.path}",
            lease_seconds=LEASE_SECONDS,
            heartbeat_seconds=HEARTBEAT_SECONDS,
            poll_seconds=POLL_SECONDS,
            sessions="off",
        )
        return Effects(settings=settings, job_types=job_types())

    def __enter__(self) -> Studio:
        return self

    def __exit__(self, *error: object) -> None:
        """Leave no app behind: another test may count those that live."""
        apps = [weakref.ref(host.app) for host in self.hosts]
        for host in self.hosts:
            host.app.store.dispose()
            del host.app  # worlds that are kept have the host
        self._file.close()
        self.hosts.clear()
        gc.collect()
        assert error[0] is not None or not any(app() for app in apps), "worlds leave apps behind"

    def run(self, plan: Plan) -> World:
        self._file.reset()
        world = World(plan, self.hosts, self._file)
        for host in self.hosts:
            for policy in host.app.job_types.names():
                host.app.job_types.get(policy).world = world  # type: ignore[attr-defined]
        state = random.getstate()
        random.seed(plan.seed)
        self._errors.world = world
        try:
            with _heard_by(self._errors):
                world.run()
        finally:
            random.setstate(state)
            world.database.close()
        return world


@contextmanager
def _heard_by(handler: logging.Handler) -> Iterator[None]:
    """The log of hundreds of worlds is of no interest, but for its errors."""
    log = logging.getLogger("effects")
    level, propagates, handlers = log.level, log.propagate, log.handlers
    log.setLevel(logging.ERROR)
    log.propagate, log.handlers = False, [handler]
    try:
        yield
    finally:
        log.setLevel(level)
        log.propagate, log.handlers = propagates, handlers
