"""What a seed plans: jobs, workers and faults. Every one of them can be left out, so that a failing world shrinks."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Literal

FaultKind = Literal["crash", "freeze", "away", "clock", "cut before commit", "cut after commit", "crash before commit",
                    "crash after commit", "stop"]  # fmt: skip
AT_A_TIME: tuple[FaultKind, ...] = ("crash", "freeze", "freeze", "freeze", "away", "clock", "stop")
AT_A_COMMIT: tuple[FaultKind, ...] = (
    "cut before commit", "cut after commit", "crash before commit", "crash after commit",
)  # fmt: skip
BUSY_SECONDS = 60.0  # jobs come and faults happen
POLICIES = ("repeat", "repeat_once", "hold")


@dataclass(frozen=True, slots=True)
class PlannedJob:
    """A job, enqueued at this time of the world."""

    name: str
    at: float
    policy: str
    group: str | None = None
    limit: str | None = None
    delay: float = 0.0
    priority: int | None = None


@dataclass(frozen=True, slots=True)
class PlannedFault:
    """At a time of the world, or at the n-th commit of a worker's place."""

    kind: FaultKind
    worker: int
    at: float
    seconds: float = 0.0


@dataclass(slots=True)
class Plan:
    """A world to run."""

    seed: int
    workers: int
    jobs: list[PlannedJob] = field(default_factory=list)
    faults: list[PlannedFault] = field(default_factory=list)


def plan_of(seed: int, *, jobs: int = 100) -> Plan:
    """The plan of a seed."""
    draw = random.Random(f"faults {seed}")
    plan = Plan(seed, draw.randint(1, 4))
    for _ in range(draw.choice([0, 3, 6, 9, 12])):
        worker, kind = draw.randrange(plan.workers), draw.choice(AT_A_COMMIT if draw.random() < 0.4 else AT_A_TIME)
        at = draw.randint(1, 120) if kind in AT_A_COMMIT else round(draw.uniform(2, BUSY_SECONDS), 1)
        plan.faults.append(PlannedFault(kind, worker, at, round(_seconds(kind, draw), 1)))
    draw = random.Random(f"jobs {seed}")
    for number in range(jobs):
        group = draw.choice([None, None, None, "g1", "g2"])
        plan.jobs.append(PlannedJob(
            f"job{number}", round(draw.uniform(0, BUSY_SECONDS), 1), draw.choice(POLICIES), group,
            draw.choice([None, None, None, "l1"]) if group is None else None,
            draw.choice([0.0, 0.0, 0.0, 45.0]), draw.choice([None, None, None, 1, 9]),
        ))  # fmt: skip
    plan.jobs.sort(key=lambda job: job.at)
    return plan


def _seconds(kind: FaultKind, draw: random.Random) -> float:
    match kind:
        case "freeze":
            return draw.choice([draw.uniform(1, 20), draw.uniform(46, 100)])
        case "away":
            return draw.uniform(0.5, 60)
        case "clock":
            return draw.choice([-1, 1]) * draw.choice([draw.uniform(0.1, 5), draw.uniform(5, 90)])
        case _:
            return draw.uniform(0.5, 30)  # until it is started again
