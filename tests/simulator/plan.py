"""What a seed plans: jobs, acts of people, workers and faults. Each can be left out, so that a failing world shrinks.

Each seed also draws what its world is like, such as how long handlers take and which kinds of fault there are: worlds
that differ find more than worlds that have a little of everything.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Literal

FaultKind = Literal["crash", "freeze", "away", "clock", "stop", "failover", "stall", "preempt", "cut before commit",
                    "cut after commit", "crash before commit", "crash after commit", "crash in a handler",
                    "freeze in a handler"]  # fmt: skip
AT_A_TIME: tuple[FaultKind, ...] = ("crash", "freeze", "away", "clock", "stop", "failover")
AT_A_COMMIT: tuple[FaultKind, ...] = (
    "cut before commit", "cut after commit", "crash before commit", "crash after commit", "stall",
)  # fmt: skip
AT_A_STEP: tuple[FaultKind, ...] = ("preempt",)
IN_A_HANDLER: tuple[FaultKind, ...] = ("crash in a handler", "freeze in a handler")
ActKind = Literal["cancel", "requeue", "mark-done", "give-up", "pause key", "pause queue"]
ACTS: tuple[ActKind, ...] = (
    "cancel",
    "cancel",
    "requeue",
    "requeue",
    "mark-done",
    "give-up",
    "pause key",
    "pause queue",
)
BUSY_SECONDS = 60.0  # jobs come and faults happen
POLICIES = ("repeat", "repeat_once", "hold")
LEASE_SECONDS, TIME_LIMIT_SECONDS = 45.0, 20.0
WAYS = ("done", "retry", "refuse", "raise", "lost request", "lost answer", "busy", "silent", "raise after")
APP = -1  # the place of the app, whose commits are cut as those of workers


@dataclass(frozen=True, slots=True)
class PlannedJob:
    """A job, enqueued at this time of the world.

    Attributes:
        applies: what the `apply` of its outcome does, if it has one.
    """

    name: str
    at: float
    policy: str
    group: str | None = None
    limit: str | None = None
    delay: float = 0.0
    priority: int | None = None
    keyed: bool = True
    applies: str | None = None


@dataclass(frozen=True, slots=True)
class PlannedFault:
    """At a time of the world, or at the n-th commit, step or place in a handler of a worker's place."""

    kind: FaultKind
    worker: int
    at: float
    seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class PlannedAct:
    """What a person does at a time of the world; `index` chooses among the jobs that it may be done to."""

    kind: ActKind
    at: float
    index: int


@dataclass(frozen=True, slots=True)
class Climate:
    """What a world is like.

    Attributes:
        ways: how likely each of `WAYS` is.
        handler_seconds: at most, before and after its effect.
        heard_seconds: at most, until a worker looks for a commit of another one.
        caps: limit key → how many of its jobs may be in flight.
    """

    ways: tuple[float, ...]
    handler_seconds: float
    heard_seconds: float
    threads: int
    caps: dict[str, int]
    drift: float
    schedule: bool


@dataclass(slots=True)
class Plan:
    """A world to run."""

    seed: int
    workers: int
    climate: Climate
    jobs: list[PlannedJob] = field(default_factory=list)
    faults: list[PlannedFault] = field(default_factory=list)
    acts: list[PlannedAct] = field(default_factory=list)

    def has(self, *kinds: FaultKind) -> bool:
        return any(fault.kind in kinds for fault in self.faults)


def plan_of(seed: int, *, jobs: int = 40) -> Plan:
    """The plan of a seed."""
    draw = random.Random(f"climate {seed}")
    plan = Plan(seed, draw.choice([1, 2, 2, 3]), _climate(draw))
    plan.faults = _faults(random.Random(f"faults {seed}"), plan.workers)
    plan.jobs = _jobs(random.Random(f"jobs {seed}"), jobs)
    draw = random.Random(f"acts {seed}")
    for _ in range(draw.choice([0, 3, 10])):
        plan.acts.append(PlannedAct(draw.choice(ACTS), _time(draw, 5, 2 * BUSY_SECONDS), draw.randrange(1000)))
    return plan


def _time(draw: random.Random, first: float, last: float) -> float:
    return round(draw.uniform(first, last), 1)


def _climate(draw: random.Random) -> Climate:
    rough = draw.choice([0.0, 1.0, 3.0])
    return Climate(
        ways=(70.0, *(rough * draw.choice([0.0, 2.0, 5.0]) for _ in WAYS[1:])),
        handler_seconds=draw.choice([0.1, 3.0, 9.0]),
        heard_seconds=draw.choice([0.5, 4.0, 8.0]),
        threads=draw.choice([1, 3, 8]),
        caps={"l1": 1, "l2": draw.choice([2, 3])},
        drift=draw.choice([0.0, 0.0, 0.001, -0.02, 0.02]),
        schedule=draw.random() < 0.2,
    )


def _faults(draw: random.Random, workers: int) -> list[PlannedFault]:
    every = (*AT_A_TIME, *AT_A_COMMIT, *AT_A_STEP, *IN_A_HANDLER, *IN_A_HANDLER)
    kinds = draw.sample(every, draw.choice([1, 2, 4, len(every)]))
    if draw.random() < 0.7:
        kinds = [kind for kind in kinds if kind != "failover"] or ["freeze"]
    faults = []
    for _ in range(draw.choice([0, 4, 8, 8, 16, 16])):
        kind, worker = draw.choice(kinds), draw.randrange(workers)
        if kind in AT_A_COMMIT and draw.random() < 0.15:
            worker = APP
        at = _at(kind, worker, draw)
        faults.append(PlannedFault(kind, worker, at, round(_seconds(kind, draw), 1)))
    return faults


def _at(kind: FaultKind, worker: int, draw: random.Random) -> float:
    if kind in IN_A_HANDLER:
        return draw.randint(1, 50)
    if kind in AT_A_STEP:
        return draw.randint(50, 3000)
    if kind in AT_A_COMMIT:
        return draw.randint(1, 40 if worker == APP else 120)
    return _time(draw, 2, BUSY_SECONDS)


def _seconds(kind: FaultKind, draw: random.Random) -> float:
    match kind:
        case "freeze" | "freeze in a handler" | "stall" | "preempt":  # often about as long as until others take over
            return draw.choice([draw.uniform(1, 46), draw.uniform(40, 75), draw.uniform(40, 75), draw.uniform(40, 120)])
        case "away":
            return draw.uniform(0.5, 60)
        case "clock":
            return draw.choice([-1, 1]) * draw.choice([draw.uniform(0.1, 5), draw.uniform(5, 90)])
        case "failover":
            return draw.uniform(0.1, 8)  # of commits that are lost
        case _:
            return draw.uniform(0.5, 30)  # until it is started again


def _jobs(draw: random.Random, number: int) -> list[PlannedJob]:
    grouped, limited, applying = (draw.choice([0.0, 0.3, 0.8]) for _ in range(3))
    last = draw.choice([1.0, 20.0, BUSY_SECONDS])
    jobs = []
    for index in range(number):
        group = draw.choice(["g1", "g2"]) if draw.random() < grouped else None
        limit = draw.choice(["l1", "l2", "l2", "l3"]) if group is None and draw.random() < limited else None
        applies = draw.choice(["row", "row", "row", "raise", "roll back", "lost"]) if draw.random() < applying else None
        jobs.append(PlannedJob(
            f"job{index}", _time(draw, 0, last), draw.choice(POLICIES), group, limit,
            draw.choice([0.0, 0.0, 0.0, 30.0]), draw.choice([None, None, None, 1, 9]), draw.random() < 0.9, applies,
        ))  # fmt: skip
    return sorted(jobs, key=lambda job: job.at)
