"""An attempt with a span, where the app has telemetry."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from effects.model.job_type import JobType
from effects.model.settlement import AttemptEnd, Execution, Settlement
from effects.telemetry import AttemptSpan, Telemetry
from effects.worker.attempts.attempt import RunningAttempt


class TracedAttempt(RunningAttempt):
    """A `RunningAttempt` whose span begins with it, is current while its handler runs, and ends with its outcome.

    Whoever ends the attempt ends the span: its own thread, or the one that gives it up at its time limit.
    """

    __slots__ = ("_span", "_telemetry")

    def __init__(
        self,
        telemetry: Telemetry,
        execution: Execution,
        job_type: JobType[Any],
        release: Callable[[Execution], bool],
        **options: Any,
    ) -> None:
        super().__init__(execution, job_type, release, **options)
        self._telemetry = telemetry
        self._span: AttemptSpan | None = None

    def start(self) -> None:
        super().start()
        self._span = self._telemetry.start(self.job)

    def settle(self, ending: AttemptEnd, error: BaseException | None = None) -> Settlement:
        settlement = super().settle(ending, error)
        if self._span is not None:
            self._span.end(settlement)
        return settlement

    def run(self) -> Settlement:
        if self._span is None:
            return super().run()
        leave = self._span.enter()
        try:
            return super().run()
        finally:
            leave()

    async def run_async(self) -> Settlement:
        if self._span is not None:
            self._span.enter()  # of its task, whose context ends with it
        return await super().run_async()
