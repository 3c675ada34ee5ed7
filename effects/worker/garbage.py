"""How often Python looks for garbage while a worker runs."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

ALLOCATIONS = 20_000  # Python's own: 700 to 2,000


@contextmanager
def rare_collections() -> Iterator[None]:
    """Meanwhile, look for cycles each 20,000 allocations at most.

    A worker holds jobs by the thousand, none of which is garbage, and each look goes through all of them: with Python's
    own threshold that was a quarter of a job's CPU. A threshold that is higher, or 0 (never), stays.
    """
    youngest, *older = gc.get_threshold()
    if 0 < youngest < ALLOCATIONS:
        gc.set_threshold(ALLOCATIONS, *older)
    try:
        yield
    finally:
        gc.set_threshold(youngest, *older)
