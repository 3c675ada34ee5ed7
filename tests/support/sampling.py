"""A sample of a matrix that is too large for every run. It prints its seed; `make soak` runs the whole."""

from __future__ import annotations

import os
import random
from collections.abc import Iterable, Sequence
from typing import TypeVar

Case = TypeVar("Case")


def is_full() -> bool:
    """Whether this is `make soak`, which runs every case."""
    return os.environ.get("EFFECTS_TEST_FULL") == "1"


def sample(cases: Iterable[Case], count: int) -> list[Case]:
    """`count` of the cases in their order; all of them with EFFECTS_TEST_FULL=1, the same ones with EFFECTS_TEST_SEED.

    The seed is printed, so that a failure says how to run it again.
    """
    every = list(cases)
    if is_full() or len(every) <= count:
        return every
    seed = os.environ.get("EFFECTS_TEST_SEED") or str(random.SystemRandom().randrange(10**9))
    print(f"EFFECTS_TEST_SEED={seed}: {count} of {len(every)} cases")
    return draw(every, count, seed)


def draw(cases: Sequence[Case], count: int, seed: str) -> list[Case]:
    """`count` of the cases in their order, the same ones with the same seed; all if there are no more."""
    chosen = random.Random(seed).sample(range(len(cases)), min(count, len(cases)))
    return [cases[number] for number in sorted(chosen)]
