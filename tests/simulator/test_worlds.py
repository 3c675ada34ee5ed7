"""Whole workers over virtual time: whatever the seed plans, the ledger says what the receiver saw."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from dataclasses import replace

import pytest

from tests.simulator.oracle import complaints
from tests.simulator.plan import Plan, PlannedFault, plan_of
from tests.simulator.shrink import shrunk
from tests.simulator.world import Studio

WORLDS = 400 if os.environ.get("EFFECTS_TEST_FULL") else 3
SHRINKING_RUNS = 60


@pytest.fixture(scope="module")
def studio(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Studio]:
    with Studio(tmp_path_factory.mktemp("worlds")) as opened:
        yield opened


def test_every_world_comes_to_rest_with_a_ledger_that_is_right(studio: Studio) -> None:
    """The seed of each is drawn from EFFECTS_TEST_SEED; a failure is shrunk, and its timeline printed."""
    draw = random.Random(f"worlds {os.environ['EFFECTS_TEST_SEED']}")
    for _ in range(WORLDS):
        plan = plan_of(draw.getrandbits(32))
        if complaints(studio.run(plan)):
            pytest.fail(_story(studio, shrunk(plan, lambda smaller: _fails(studio, smaller), runs=SHRINKING_RUNS)))


def test_the_same_plan_gives_the_same_timeline(studio: Studio) -> None:
    plan = plan_of(7, jobs=30)
    timelines = [studio.run(plan).timeline for _ in range(2)]
    assert timelines[0] == timelines[1]
    assert len(timelines[0]) > len(plan.jobs)


def test_a_failing_plan_is_shrunk_to_what_it_needs() -> None:
    plan = plan_of(1, jobs=40)
    plan = replace(plan, workers=3, faults=[PlannedFault("crash", number, 5.0) for number in range(9)])

    def fails(smaller: Plan) -> bool:
        names = {job.name for job in smaller.jobs}
        return {"job3", "job30"} <= names and any(fault.worker == 4 for fault in smaller.faults) and smaller.workers > 1

    smallest = shrunk(plan, fails, runs=200)
    assert {job.name for job in smallest.jobs} == {"job3", "job30"}
    assert ([fault.worker for fault in smallest.faults], smallest.workers) == ([4], 2)


def _fails(studio: Studio, plan: Plan) -> bool:
    return bool(complaints(studio.run(plan)))


def _story(studio: Studio, plan: Plan) -> str:
    """What a person reads: the complaints, the plan and the timeline."""
    world = studio.run(plan)
    lines = [f"seed {plan.seed}, {plan.workers} workers, {len(plan.jobs)} jobs", *complaints(world), *world.timeline]
    return "\n".join(lines)
