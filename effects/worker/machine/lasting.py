"""What Python's search for garbage leaves out while a worker runs, and how often it searches."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

PYTHONS_OWN = (700, 2000)  # first thresholds of Python's versions
OBJECTS = 10_000  # more than a claim makes of jobs, attempts and rows, which hold no garbage


@contextmanager
def lasting() -> Iterator[None]:
    """Meanwhile, what was there before is no garbage: modules, classes and the like, over 100,000 objects.

    The jobs that a worker holds make Python look through all objects again and again; without those that last, and
    after 10,000 new ones rather than 700, that costs next to nothing. A fifth of a short job's CPU was spent on it.
    What the app has set itself stays so: frozen objects, and a first threshold other than Python's own.
    """
    thresholds, freezes = gc.get_threshold(), not gc.get_freeze_count()
    raises = thresholds[0] in PYTHONS_OWN
    if freezes:
        gc.freeze()
    if raises:
        gc.set_threshold(OBJECTS, *thresholds[1:])
    try:
        yield
    finally:  # only what this one has changed: another worker of the process may go on
        if raises:
            gc.set_threshold(*thresholds)
        if freezes:
            gc.unfreeze()
