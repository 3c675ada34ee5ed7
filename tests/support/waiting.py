"""Waiting for a condition with a deadline, instead of sleeping and hoping."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable

# For what takes moments: a busy machine may starve a process for long. Less where a failure is what is expected.
PATIENCE_SECONDS = float(os.environ.get("EFFECTS_TEST_PATIENCE_SECONDS", "60"))


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
