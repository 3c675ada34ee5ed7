"""What a tracing library is told: which jobs are enqueued, and how their attempts run. The core imports none.

`effects.contrib.opentelemetry.instrument` sets `Effects.telemetry`; while that is None nothing here is called.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Protocol

from effects.model.job import Job, NewJob
from effects.model.settlement import Settlement


class AttemptSpan(Protocol):
    """One attempt, from its start to its end. No method may raise."""

    def enter(self) -> Callable[[], object]:
        """Make it the current one of the calling thread or task; what is returned undoes that, in the same one."""
        ...

    def end(self, settlement: Settlement) -> None:
        """The attempt has ended so. Called once or more, by whichever thread ends it; only the first call counts."""
        ...


class Telemetry(Protocol):
    """No method may raise for a reason of its own."""

    def enqueuing(self, jobs: Sequence[NewJob]) -> AbstractContextManager[Callable[[Sequence[int]], object]]:
        """A span around the writing of these jobs; it is told their ids."""
        ...

    def trace_context(self) -> str | None:
        """The current context as text, for `trace_context` of a job that was given none."""
        ...

    def start(self, job: Job) -> AttemptSpan:
        """An attempt of the job starts now."""
        ...
