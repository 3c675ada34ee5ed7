"""Waiting for a condition with a deadline, instead of sleeping and hoping."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable

# For what takes moments: a busy machine may starve a process for long. Less where a failure is what is expected.
PATIENCE_SECONDS = float(os.environ.get("EFFECTS_TEST_PATIENCE_SECONDS", "60"))


# A question often reads a database. It may take a fourth of the time, and be asked as late as a twentieth of the wait.
_PAUSE_SECONDS, _PAUSE_SECONDS_MAX = 0.01, 0.1
_LATE_SHARE = 20


def wait_until(condition: Callable[[], object], *, seconds: float = PATIENCE_SECONDS) -> None:
    """Return as soon as `condition()` is true.

    Raises:
        AssertionError: it did not become true in time.
    """
    pause = threading.Event()
    began = looked_at = time.monotonic()
    while not condition():
        now = time.monotonic()
        if now > began + seconds:
            raise AssertionError(f"did not become true within {seconds:g} s")
        longest = max(_PAUSE_SECONDS, (now - began) / _LATE_SHARE, 3 * (now - looked_at))
        pause.wait(min(longest, _PAUSE_SECONDS_MAX))
        looked_at = time.monotonic()
