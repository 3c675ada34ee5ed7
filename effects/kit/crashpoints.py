"""Named points where a test may kill, raise or pause. Outside tests each is one comparison with None."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from typing import Literal, TypeAlias, cast

Action: TypeAlias = Literal["kill", "raise", "pause"]
ACTIONS: tuple[Action, ...] = ("kill", "raise", "pause")

# The name and place of every crash point. A test fails for a point without a row and a row without a test.
POINTS: dict[str, str] = {
    "enqueue.before_commit": "own transaction: written, not committed",
    "enqueue.committed": "own transaction: committed, not yet returned",
    "claim.before_commit": "jobs marked running, not committed",
    "claim.committed": "lease held, no handler begun",
    "heartbeat.before": "about to write the heartbeat",
    "heartbeat.committed": "committed, reply not used",
    "release.before": "the attempt is about to record its release",
    "release.committed": "marked, nothing sent",
    "perform.before": "a thread holds the job, the handler not entered",
    "perform.after": "the handler has returned, nothing is recorded",
    "settle.before": "outcomes gathered, nothing written",
    "settle.applied": "outcomes and their `apply` written, not committed",
    "settle.committed": "committed, not yet reported",
    "rescue.selected": "lost jobs locked, not updated",
    "rescue.committed": "lost jobs given back",
    "fire.before_commit": "slots and their jobs written, not committed",
    "fire.committed": "slots and their jobs committed, workers not notified",
    "prune.before_commit": "a batch of old jobs deleted, not committed",
    "prune.committed": "a batch of old jobs deleted, the next not begun",
    "bulk.before_commit": "a chunk of jobs acted on, not committed",
    "bulk.committed": "a chunk of jobs acted on, the next not begun",
    "migration.built": "an index built alongside workers, its revision not recorded",
    "migration.before_commit": "a revision applied, not committed",
}
_hook: Callable[[str], None] | None = None


def declare(points: dict[str, str]) -> None:
    """Add the points of an effect package to the list."""
    POINTS.update(points)


class CrashPoint(Exception):
    """Raised at a crash point because a test requested it."""


def point(name: str) -> None:
    """Pass the named point."""
    if _hook is not None:
        _hook(name)


def install(hook: Callable[[str], None] | None) -> None:
    """Call `hook(name)` at every point; None removes it."""
    global _hook  # noqa: PLW0603 - one process, one plan
    _hook = hook


def plan(name: str, *, nth: int = 1, action: Action = "kill") -> Callable[[str], None]:
    """A hook that kills (SIGKILL), raises, or pauses (SIGSTOP) when `name` is passed for the n-th time.

    Raises:
        ValueError: there is no such action.
    """
    if action not in ACTIONS:
        raise ValueError(f"{action!r} is no action; give one of {', '.join(ACTIONS)}")
    passed = 0

    def hook(passing: str) -> None:
        nonlocal passed
        if passing != name:
            return
        passed += 1
        if passed == nth:
            if action == "raise":
                raise CrashPoint(name)
            # To this very thread, which takes no further step; a signal to the process might reach another first.
            signal.pthread_kill(threading.get_ident(), signal.SIGKILL if action == "kill" else signal.SIGSTOP)

    return hook


def install_from_environment() -> None:
    """Read `EFFECTS_CRASHPOINT=name[:nth[:action]]`, for processes that a test starts."""
    text = os.environ.get("EFFECTS_CRASHPOINT")
    if text:
        name, nth, action = [*text.split(":"), "", ""][:3]
        install(plan(name, nth=int(nth or 1), action=cast(Action, action or "kill")))
