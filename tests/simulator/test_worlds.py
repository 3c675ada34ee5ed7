"""Worlds come to rest, and their tables say what their receivers saw."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tests.simulator.hunt import hunt, smallest, story
from tests.simulator.oracle import complaints
from tests.simulator.plan import Plan, PlannedFault, plan_of
from tests.simulator.shrink import shrunk
from tests.simulator.world import Studio
from tests.support.sampling import is_full

CASES, JOBS = 40, 40
WORLDS = 500 if is_full() else 13  # of each case
REPLAYED = 30  # a seed with most kinds of fault
ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def studio() -> Iterator[Studio]:
    with tempfile.TemporaryDirectory() as folder, Studio(Path(folder)) as opened:
        yield opened


@pytest.mark.timeout(3600)
@pytest.mark.parametrize("case", range(CASES))
def test_every_world_comes_to_rest_with_a_ledger_that_is_right(studio: Studio, case: int) -> None:
    """The same seeds each time; `make soak` draws others from EFFECTS_TEST_SEED. A failure is shrunk, and its timeline
    printed.
    """
    drawn = random.Random(f"worlds {os.environ['EFFECTS_TEST_SEED']} {case}").getrandbits(32)
    first = drawn if is_full() else case * WORLDS
    failing = hunt(studio, range(first, first + WORLDS), JOBS)
    if failing is not None:
        plan, wrong = failing
        world = smallest(studio, plan)
        text = f"python -m tests.simulator.hunt {plan.seed} --jobs {JOBS}  # {wrong}"
        pytest.fail(f"{text}\n{story(world, complaints(world))}")


def test_a_seed_has_one_timeline_in_any_process() -> None:
    command = [sys.executable, "-m", "tests.simulator.hunt", str(REPLAYED)]
    outputs = []
    for hash_seed in ("1", "2"):
        environment = {**os.environ, "PYTHONHASHSEED": hash_seed}
        ran = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=True)
        outputs.append(ran.stdout.splitlines()[1:])  # without the time that it took
    assert len(outputs[0]) > 100
    assert outputs[0] == outputs[1]


def test_a_world_depends_on_none_before_it(studio: Studio) -> None:
    timelines = []
    for before in (3, 4):
        studio.run(plan_of(before, jobs=10))
        timelines.append(studio.run(plan_of(REPLAYED)).timeline)
    assert timelines[0] == timelines[1]


def test_a_failing_plan_is_shrunk_to_what_it_needs() -> None:
    plan = plan_of(1, jobs=40)
    plan = replace(plan, workers=3, faults=[PlannedFault("crash", number, 5.0) for number in range(9)])

    def fails(smaller: Plan) -> bool:
        names = {job.name for job in smaller.jobs}
        return {"job3", "job30"} <= names and any(fault.worker == 4 for fault in smaller.faults) and smaller.workers > 1

    smallest_plan = shrunk(plan, fails, runs=200)
    assert {job.name for job in smallest_plan.jobs} == {"job3", "job30"}
    assert ([fault.worker for fault in smallest_plan.faults], smallest_plan.workers) == ([4], 2)
