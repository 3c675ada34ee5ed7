"""The progress of a worker on a terminal."""

from __future__ import annotations

import threading
from collections import Counter
from types import TracebackType
from typing import TYPE_CHECKING

from effects.model.settlement import Settlement
from effects.process import lazy

if TYPE_CHECKING:
    from rich import console, progress
else:
    console, progress = lazy.module("rich.console"), lazy.module("rich.progress")

_WORDS = {"succeeded": "done", "failed": "to retry", "dead": "dead", "cancelled": "cancelled"}


class WorkProgress:
    """A bar on standard error; log lines are printed above it.

    Args:
        total: jobs that are due at the start; None where the worker has no end.
    """

    def __init__(self, total: int | None) -> None:
        self._total = total
        self._counts: Counter[str] = Counter()
        self._lock = threading.Lock()
        done = "{task.completed} of {task.total} due" if total is not None else "{task.completed} jobs"
        self._progress = progress.Progress(
            progress.SpinnerColumn(),
            progress.TextColumn("{task.description}"),
            progress.BarColumn(),
            progress.TextColumn(done),
            progress.TimeElapsedColumn(),
            console=console.Console(stderr=True),
        )
        self._task = self._progress.add_task("waiting for jobs", total=total)

    def settled(self, settlement: Settlement) -> None:
        """Count one recorded outcome; called from the settling thread."""
        if not settlement.ends and settlement.status != "failed":
            return
        with self._lock:
            self._counts[_WORDS[settlement.status]] += 1
            handled = self._counts.total()
            if self._total is not None:
                self._total = max(self._total, handled)
            words = ", ".join(f"{count:,} {word}" for word, count in self._counts.items())
            self._progress.update(self._task, completed=handled, total=self._total, description=words)

    def __enter__(self) -> WorkProgress:
        self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._progress.stop()
