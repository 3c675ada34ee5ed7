"""Objects that a test process keeps until its end: Python need not look for garbage while they are made."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def lasting_objects() -> Iterator[None]:
    """Look for no garbage meanwhile; what was made counts as old, and is seldom looked through."""
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.unfreeze()
        gc.enable()
