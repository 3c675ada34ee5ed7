"""A world: workers, a database and a receiver in virtual time, run by a plan."""

from __future__ import annotations

import gc
import logging
import random
import sqlite3
from collections import Counter
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from effects import Attempt, Done, Effects, Fixed, JobType, NewJob, Outcome, Refused, Retry, RetryPolicy, Unknown
from effects.calls.enqueue import enqueue_many
from effects.errors import StoreUnavailable
from effects.retry import OnUnknown
from effects.settings import Settings
from effects.store.migrations import migrate
from effects.store.schema.job_tables import STATUS_LIVE
from effects.worker import Worker
from tests.simulator.database import Host, SimDatabase, copy_template
from tests.simulator.plan import BUSY_SECONDS, POLICIES, Plan, PlannedFault
from tests.simulator.runtime import SimRuntime
from tests.simulator.scheduler import CrashedError, Scheduler, SimProcess

LEASE_SECONDS, HEARTBEAT_SECONDS, POLL_SECONDS, TIME_LIMIT_SECONDS = 45.0, 10.0, 8.0, 20.0
REST_SECONDS = 3600.0  # after the last fault everything has ended by then
HOSTS = 6


class Script(msgspec.Struct, frozen=True):
    """The payload: the job's name in the plan."""

    name: str


@dataclass(slots=True)
class Arrival:
    """One effect, as its receiver saw it."""

    name: str
    job_id: int
    token: int
    at: float
    until: float = float("inf")  # when its handler had the answer


class ScriptedJob(JobType[Script]):
    """Acts upon the world's receiver; what happens at each attempt follows from the seed, the job and its number."""

    payload = Script
    retry = RetryPolicy(backoff=Fixed(3.0), max_attempts=6, jitter=0.0)
    time_limit_seconds = TIME_LIMIT_SECONDS
    on_unknown: OnUnknown

    def __init__(self, policy: str) -> None:
        self.name = policy
        self.on_unknown = policy  # type: ignore[assignment]
        self.world: World | None = None

    def perform(self, payload: Script, attempt: Attempt) -> Outcome:
        assert self.world is not None
        return self.world.perform(payload.name, attempt)


class World:
    """One run of a plan.

    Attributes:
        arrivals: the receiver's log.
        timeline: what happened when.
        ids: the ids of the jobs by their names.
    """

    def __init__(self, plan: Plan, hosts: list[Host], file: Path) -> None:
        self.plan, self.hosts, self.file = plan, hosts, file
        self.arrivals: list[Arrival] = []
        self.timeline: list[str] = []
        self.scheduler = Scheduler(plan.seed)
        self.control = SimProcess("world")
        self.database = SimDatabase(self.scheduler, self.file)
        self.database.edge = self._edge
        self.ids: dict[str, int] = {}
        self._calls: Counter[str] = Counter()
        self._commits: Counter[int] = Counter()
        self._at_commits = {
            (fault.worker, int(fault.at)): fault for fault in self.plan.faults if fault.kind.endswith("commit")
        }
        self._free = list(self.hosts)
        self._places: dict[int, tuple[SimProcess, Host, Worker]] = {}
        self._generations: Counter[int] = Counter()
        self._closing = False

    # -- running ---------------------------------------------------------------------------------------------

    def run(self) -> None:
        """Carry out the plan, then let everything come to rest."""
        scheduler = self.scheduler
        for place in range(self.plan.workers):
            scheduler.start(self.control, partial(self._keep_running, place), f"place {place}")
        scheduler.start(self.control, self._enqueue_all, "app")
        for fault in self.plan.faults:
            if not fault.kind.endswith("commit"):
                scheduler.start(self.control, partial(self._strike, fault), fault.kind)
        scheduler.run(BUSY_SECONDS)
        while not self._at_rest() and scheduler.now < BUSY_SECONDS + REST_SECONDS:
            scheduler.run(scheduler.now + 5.0)
        self._closing = True
        scheduler.start(self.control, self._stop_all, "end")
        while self._places and scheduler.now < BUSY_SECONDS + REST_SECONDS + 120.0:
            scheduler.run(scheduler.now + 1.0)
        scheduler.end()

    def _at_rest(self) -> bool:
        return len(self.ids) == len(self.plan.jobs) and not self._waiting()

    def _waiting(self) -> int:
        """How many jobs are neither ended nor held for a person."""
        with closing(sqlite3.connect(self.file)) as connection:
            [count] = connection.execute(f"SELECT count(*) FROM effects_jobs WHERE {STATUS_LIVE}").fetchone()
        return int(count)

    # -- workers ---------------------------------------------------------------------------------------------

    def _keep_running(self, place: int) -> None:
        """As systemd does: start it again a while after it has ended."""
        while not self._closing:
            self._generations[place] += 1
            process = SimProcess(f"w{place}.{self._generations[place]}")
            host = self._free.pop()
            host.enter(self.database, process)
            runtime = SimRuntime(self.scheduler, process, self.database.committed)
            thread = self.scheduler.start(process, partial(self._work, place, process, host, runtime), process.name)
            thread.join()
            while process.threads:
                process.threads[0].join()
            self._places.pop(place, None)
            self._free.append(host)
            if not self._closing:
                self.scheduler.sleep(3.0)

    def _work(self, place: int, process: SimProcess, host: Host, runtime: SimRuntime) -> None:
        self.note(process.name, "starts")
        worker = Worker(host.app, queues={"default": 3}, housekeeping=False, runtime=runtime, grace_seconds=5.0)
        self._places[place] = (process, host, worker)
        try:
            code = worker.run()
            self.note(process.name, f"ends with {int(code)}")
        except CrashedError:
            self.note(process.name, "is gone")
            raise
        except Exception as error:
            self.note(process.name, f"ends by {type(error).__name__}: {error}")

    def _stop_all(self) -> None:
        for _, _, worker in list(self._places.values()):
            worker.stop()

    # -- jobs ------------------------------------------------------------------------------------------------

    def _enqueue_all(self) -> None:
        host = self._free.pop()
        host.enter(self.database, self.control)
        for job in self.plan.jobs:
            self.scheduler.sleep(job.at - self.scheduler.now)
            new = NewJob(
                job_type=job.policy, payload=Script(job.name), key=job.name, group_key=job.group, limit_key=job.limit,
                delay=job.delay or None, priority=job.priority,
            )  # fmt: skip
            while job.name not in self.ids:
                try:
                    self.ids[job.name] = enqueue_many([new], effects=host.app)[0].job_id
                    self.note("app", f"enqueues {job.name} ({job.policy}) as {self.ids[job.name]}")
                except StoreUnavailable:
                    self.scheduler.sleep(1.0)
        self._free.append(host)

    def perform(self, name: str, attempt: Any) -> Outcome:
        """One attempt of a job: before the effect, the effect, and the answer."""
        self._calls[name] += 1
        draw = random.Random(f"{self.plan.seed} {name} {self._calls[name]}")
        job = attempt.job
        self.scheduler.sleep(draw.choice([0.0, 0.01, draw.uniform(0, 2)]))
        before = draw.choices(["go", "retry", "raise", "refuse"], [85, 6, 5, 4])[0]
        if before == "retry":
            return Retry("busy", code="busy")
        if before == "raise":
            raise ValueError("boom")
        if before == "refuse":
            return Refused("no")
        attempt.release()
        self.scheduler.sleep(draw.choice([0.0, 0.01, draw.uniform(0, 3)]))
        way = draw.choices(["answer", "lost request", "lost answer", "busy", "silent", "raise"], [80, 4, 5, 4, 3, 4])[0]
        if way == "lost request":
            return Unknown("no reply", code="lost")
        if way == "busy":
            return Retry("busy", code="busy")
        arrival = Arrival(name, job.id, job.lease_token, self.scheduler.now)
        self.arrivals.append(arrival)
        self.note("receiver", f"{name} arrives: job {job.id}, attempt {job.attempts}")
        self.scheduler.sleep(draw.choice([0.0, 0.01, draw.uniform(0, 3)]))
        arrival.until = self.scheduler.now
        if way == "silent":
            self.scheduler.sleep(60.0)
        if way in ("lost answer", "silent"):
            return Unknown("no reply", code="lost")
        if way == "raise":
            raise ValueError("boom")
        return Done()

    # -- faults ----------------------------------------------------------------------------------------------

    def _strike(self, fault: PlannedFault) -> None:
        self.scheduler.sleep(fault.at)
        self.note("fault", f"{fault.kind} of place {fault.worker}, {fault.seconds:g} s")
        if fault.kind == "away":
            self.database.away_until = max(self.database.away_until, self.scheduler.now + fault.seconds)
        elif fault.kind == "clock":
            self.database.offset += fault.seconds
        elif fault.worker in self._places:
            process, _, worker = self._places[fault.worker]
            if fault.kind == "crash":
                self.scheduler.crash(process)
            elif fault.kind == "freeze":
                process.frozen_until = max(process.frozen_until, self.scheduler.now + fault.seconds)
            elif fault.kind == "stop":
                worker.stop()

    def _edge(self, process: SimProcess, before: bool) -> None:
        if process is self.control:
            return
        place = int(process.name[1:].split(".")[0])
        if before:
            self._commits[place] += 1
        fault = self._at_commits.get((place, self._commits[place]))
        if fault is None or fault.kind.endswith("before commit") != before:
            return
        self.note("fault", f"{fault.kind} {int(fault.at)} of {process.name}")
        if fault.kind.startswith("crash"):
            self.scheduler.crash(process)
            raise CrashedError
        raise StoreUnavailable(fault.kind)

    def note(self, who: str, what: str) -> None:
        self.timeline.append(f"{self.scheduler.now:9.2f}  {who:8} {what}")


class Studio:
    """The template and the apps that worlds of one folder share."""

    def __init__(self, folder: Path) -> None:
        self._template, self._file = folder / "template.db", folder / "world.db"
        app = Effects(f"sqlite:///{self._template}", job_types=[])
        migrate.init(app.store)
        app.store.dispose()
        self.types: list[ScriptedJob] = []
        self.hosts = [Host(self._app()) for _ in range(HOSTS)]

    def _app(self) -> Effects:
        types = [ScriptedJob(policy) for policy in POLICIES]
        self.types += types
        settings = Settings(
            database_url=f"sqlite:///{self._file}",
            lease_seconds=LEASE_SECONDS,
            heartbeat_seconds=HEARTBEAT_SECONDS,
            poll_seconds=POLL_SECONDS,
            sessions="off",
        )
        return Effects(settings=settings, job_types=types)

    def __enter__(self) -> Studio:
        return self

    def __exit__(self, *error: object) -> None:
        """Leave no app behind: the next test may count those that live."""
        for host in self.hosts:
            host.app.store.dispose()
        for job_type in self.types:
            job_type.world = None
        self.hosts.clear()
        self.types.clear()
        gc.collect()

    def run(self, plan: Plan) -> World:
        copy_template(self._template, self._file)
        world = World(plan, self.hosts, self._file)
        for job_type in self.types:
            job_type.world = world
        state = random.getstate()
        random.seed(plan.seed)
        try:
            with quiet():
                world.run()
        finally:
            random.setstate(state)
        return world


@contextmanager
def quiet() -> Iterator[None]:
    """The log of hundreds of worlds is of no interest."""
    log = logging.getLogger("effects")
    level = log.level
    log.setLevel(logging.CRITICAL + 1)
    try:
        yield
    finally:
        log.setLevel(level)
