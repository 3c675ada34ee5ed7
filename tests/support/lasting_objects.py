"""Objects that a test process keeps until its end, by the million: Python need not look for garbage among them."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def lasting_objects() -> Iterator[None]:
    """Look for no garbage meanwhile, and never among what there is at the end.

    Each test that has Python collect all garbage would else take seconds beside a million nodes of syntax trees.
    """
    gc.collect()  # else what is garbage now would last as well
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()
