"""Waiting for a condition with a deadline, instead of sleeping and hoping."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable


def wait_until(condition: Callable[[], object], *, seconds: float = 20.0) -> None:
    """Return as soon as `condition()` is true.

    Raises:
        AssertionError: it did not become true in time.
    """
    pause = threading.Event()
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            raise AssertionError(f"did not become true within {seconds:g} s")
        pause.wait(0.01)
