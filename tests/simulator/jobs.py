"""The job types of a world, and the receiver that sees what they do."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec
from sqlalchemy import Connection

from effects import Attempt, Done, Fixed, JobType, Outcome, Refused, Retry, RetryPolicy, Unknown
from effects.retry import OnUnknown
from tests.simulator.database import lost_connection
from tests.simulator.plan import POLICIES, TIME_LIMIT_SECONDS, WAYS, PlannedJob

if TYPE_CHECKING:
    from tests.simulator.world import World

RETRY_SECONDS, ATTEMPTS_MAX = 3.0, 6
SILENT_SECONDS = 60.0  # of a receiver that does not answer: beyond the time limit
BEFORE, UNSURE = ("retry", "refuse", "raise"), ("lost request", "lost answer", "silent")
_INSERT = "INSERT INTO applied (job_id, token) VALUES (?, ?)"


class Script(msgspec.Struct, frozen=True):
    """The payload: the job's name in the plan."""

    name: str


@dataclass(slots=True)
class Run:
    """One attempt, as its handler saw it.

    Attributes:
        arrived: when its effect reached the receiver, if it did.
        ended: when the handler returned.
    """

    name: str
    job_id: int
    token: int
    process: str
    began: float
    arrived: float | None = None
    ended: float = float("inf")

    @property
    def key(self) -> tuple[int, int]:
        return self.job_id, self.token


class ScriptedJob(JobType[Script]):
    """Acts upon the world's receiver; what happens at each attempt follows from the seed, the job and its number."""

    payload = Script
    retry = RetryPolicy(backoff=Fixed(RETRY_SECONDS), max_attempts=ATTEMPTS_MAX, jitter=0.0)
    time_limit_seconds = TIME_LIMIT_SECONDS
    on_unknown: OnUnknown

    def __init__(self, policy: str) -> None:
        self.name = policy
        self.on_unknown = policy  # type: ignore[assignment]
        self.world: World | None = None

    def perform(self, payload: Script, attempt: Attempt) -> Outcome:
        assert self.world is not None
        return self.world.receiver.perform(payload.name, attempt)


def job_types() -> list[ScriptedJob]:
    return [ScriptedJob(policy) for policy in POLICIES]


class Receiver:
    """What attempts do, and the log of it.

    Attributes:
        runs: every attempt that a handler began, in order.
        calls_of_apply: how often that of an attempt was called.
    """

    def __init__(self, world: World) -> None:
        self._world, self._sleep = world, world.scheduler.sleep
        self.runs: list[Run] = []
        self._jobs = {job.name: job for job in world.plan.jobs}
        self.calls_of_apply: Counter[tuple[int, int]] = Counter()
        self._calls: Counter[str] = Counter()

    def perform(self, name: str, attempt: Any) -> Outcome:
        """One attempt of a job: before the effect, the effect, and the answer."""
        world, job = self._world, attempt.job
        self._calls[name] += 1
        draw = random.Random(f"{world.plan.seed} {name} {self._calls[name]}")
        way = draw.choices(WAYS, world.plan.climate.ways)[0]
        run = Run(name, job.id, job.lease_token, world.scheduler.running_process, world.scheduler.now)
        self.runs.append(run)
        try:
            world.in_handler()
            self._pass_time(draw)
            if way in BEFORE:
                return _before(way)
            attempt.release()
            world.in_handler()
            self._pass_time(draw)
            if way in ("lost request", "busy"):
                return _before("retry") if way == "busy" else Unknown("no reply", code="lost")
            run.arrived = world.scheduler.now
            world.note("receiver", f"{name} arrives: job {job.id}, attempt {job.attempts}")
            world.in_handler()
            if way == "silent":
                self._sleep(SILENT_SECONDS)
            self._pass_time(draw)
            if way == "raise after":
                raise ValueError("boom")
            return Unknown("no reply", code="lost") if way in UNSURE else self._done(run, draw)
        finally:
            run.ended = world.scheduler.now

    def _pass_time(self, draw: random.Random) -> None:
        seconds = draw.choice([0.0, 1.0, 1.0]) * draw.random() * self._world.plan.climate.handler_seconds
        if seconds:
            self._sleep(seconds)

    def _done(self, run: Run, draw: random.Random) -> Outcome:
        planned: PlannedJob | None = self._jobs.get(run.name)
        if planned is None or planned.applies is None:
            return Done()
        misbehaves = planned.applies if draw.random() < 0.5 else "row"
        return Done(apply=lambda connection: self._apply(connection, run, misbehaves))

    def _apply(self, connection: Connection, run: Run, way: str) -> None:
        """The app's own row beside the outcome; then what goes wrong."""
        self.calls_of_apply[run.key] += 1
        connection.exec_driver_sql(_INSERT, run.key)
        if way == "raise":
            raise ValueError("boom")
        if way == "lost":
            raise lost_connection()
        if way == "roll back":
            connection.connection.driver_connection.rollback()  # type: ignore[union-attr]


def _before(way: str) -> Outcome:
    if way == "raise":
        raise ValueError("boom")
    return Refused("no") if way == "refuse" else Retry("busy", code="busy")
