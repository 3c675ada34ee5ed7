"""Run worlds until one fails: `python -m tests.simulator.hunt 4711` replays one seed and prints its timeline."""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path

from tests.simulator.oracle import complaints
from tests.simulator.plan import Plan, plan_of
from tests.simulator.shrink import shrunk
from tests.simulator.world import Studio, World

SHRINKING_RUNS = 60


def story(world: World, wrong: list[str]) -> str:
    """What a person reads: what is wrong, the plan, and what happened when."""
    plan = world.plan
    head = f"seed {plan.seed}: {plan.workers} workers, {len(plan.jobs)} jobs, {plan.climate}"
    return "\n".join([head, *wrong, *(str(fault) for fault in plan.faults), *world.timeline])


def smallest(studio: Studio, plan: Plan, *, runs: int = SHRINKING_RUNS) -> World:
    """The world of the smallest plan that was found to fail as this one does: by the first of its rules."""
    rule = _rules(studio, plan)[0]
    return studio.run(shrunk(plan, lambda smaller: rule in _rules(studio, smaller), runs=runs))


def _rules(studio: Studio, plan: Plan) -> list[str]:
    """Those that its world breaks."""
    return [sentence.partition(":")[0] for sentence in complaints(studio.run(plan))]


def hunt(studio: Studio, seeds: Iterable[int], jobs: int) -> tuple[Plan, list[str]] | None:
    """The first plan whose world fails, and what is wrong with it."""
    for seed in seeds:
        plan = plan_of(seed, jobs=jobs)
        if wrong := complaints(studio.run(plan)):
            return plan, wrong
    return None


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("seed", type=int)
    parser.add_argument("--worlds", type=int, default=1, help="so many seeds from this one on, until one fails")
    parser.add_argument("--jobs", type=int, default=40)
    parser.add_argument("--shrink", action="store_true", help="leave out of the plan what the failure does not need")
    arguments = parser.parse_args()
    began = time.process_time()
    with tempfile.TemporaryDirectory() as folder, Studio(Path(folder)) as studio:
        failing = hunt(studio, range(arguments.seed, arguments.seed + arguments.worlds), arguments.jobs)
        if failing is None:
            each = 1000 * (time.process_time() - began) / arguments.worlds / arguments.jobs
            print(f"{arguments.worlds} worlds were right; {each:.1f} ms an effect")
            if arguments.worlds == 1:
                print(story(studio.run(plan_of(arguments.seed, jobs=arguments.jobs)), []))
            return 0
        plan, wrong = failing
        world = smallest(studio, plan) if arguments.shrink else studio.run(plan)
        print(story(world, complaints(world) if arguments.shrink else wrong))
        return 1


if __name__ == "__main__":
    sys.exit(main())
