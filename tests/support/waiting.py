"""Waiting for a condition with a deadline, instead of sleeping and hoping."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

PATIENCE_SECONDS = 60.0  # for what takes moments: a machine that is busy may starve a process for long


def wait_until(condition: Callable[[], object], *, seconds: float = PATIENCE_SECONDS) -> None:
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
