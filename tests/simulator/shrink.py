"""The smallest plan that still fails: faults are left out first, then acts of people, workers and jobs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TypeVar

from tests.simulator.plan import Plan

Item = TypeVar("Item")


def shrunk(plan: Plan, fails: Callable[[Plan], bool], *, runs: int) -> Plan:
    """Leave out what the failure does not need, in at most so many runs.

    Args:
        fails: whether a world of this plan fails.
    """
    left = iter(range(runs))

    def still_fails(smaller: Plan) -> bool:
        return next(left, None) is not None and fails(smaller)

    plan = replace(plan, faults=_fewest(plan.faults, lambda faults: still_fails(replace(plan, faults=faults))))
    plan = replace(plan, acts=_fewest(plan.acts, lambda acts: still_fails(replace(plan, acts=acts))))
    for workers in range(1, plan.workers):
        if still_fails(smaller := replace(plan, workers=workers)):
            plan = smaller
            break
    return replace(plan, jobs=_fewest(plan.jobs, lambda jobs: still_fails(replace(plan, jobs=jobs))))


def _fewest(items: Sequence[Item], fails: Callable[[list[Item]], bool]) -> list[Item]:
    """Leave out ever smaller parts of a list, as long as it fails without them."""
    kept, size = list(items), len(items)
    while size:
        start = 0
        while start < len(kept):
            fewer = kept[:start] + kept[start + size :]
            if fails(fewer):
                kept = fewer
            else:
                start += size
        size //= 2
    return kept
