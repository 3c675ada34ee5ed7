"""A worker that is killed where it passes a crash point."""

from __future__ import annotations

import os
import signal
import warnings

from effects import crashpoints
from effects.app import Effects
from effects.text.nearest import nearest
from effects.worker import Worker


def check_point(name: str) -> None:
    """
    Raises:
        ValueError: no crash point has this name; lists those there are.
    """
    if name not in crashpoints.POINTS:
        raise ValueError(
            f"no crash point {name!r} is declared{nearest(name, crashpoints.POINTS)} (there are "
            f"{', '.join(sorted(crashpoints.POINTS))}; an app declares its own by effects.crashpoints.declare)"
        )


def crash_worker(app: Effects, point: str, nth: int, max_seconds: float) -> None:
    """Let a forked worker do what is due, and be killed (SIGKILL) where it passes `point` for the n-th time.

    Raises:
        AssertionError: it ended without passing it.
    """
    app.engine.dispose()  # a SQLite connection must not be carried over a fork
    with warnings.catch_warnings():
        # Python 3.12 warns of threads. The child starts its own and takes no lock of ours.
        warnings.simplefilter("ignore", DeprecationWarning)
        child = os.fork()
    if child == 0:
        _work(app, point, nth, max_seconds)
    _, status = os.waitpid(child, 0)
    if not (os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL):
        raise AssertionError(f"the worker ended without passing {point} {f'{nth} times' if nth > 1 else ''}".strip())


def _work(app: Effects, point: str, nth: int, max_seconds: float) -> None:
    """The child's whole life; it never returns."""
    try:
        crashpoints.install(crashpoints.plan(point, nth=nth))
        Worker(app).drain(max_seconds)
    finally:
        os._exit(0)
