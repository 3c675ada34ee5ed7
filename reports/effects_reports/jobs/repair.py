"""The job type `report.repair`: repairs runs whose jobs were lost, every five minutes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from effects import Attempt, Done, JobType, Schedule
from effects_reports.admin import repair_reports
from effects_reports.routing import QUEUE, REPAIR_TYPE

if TYPE_CHECKING:
    from effects import Effects


_ACTOR = "schedule:reports.repair"


class ReportRepair(JobType[dict[str, Any]]):
    """`repair_reports`, as a job of the schedule `reports.repair`."""

    name = REPAIR_TYPE
    queue = QUEUE
    priority = 3
    time_limit_seconds = 300.0

    def __init__(self, app: Effects, *, scheduled: bool) -> None:
        self._app = app
        if scheduled:  # an app without reports has nothing to repair
            self.schedule = Schedule("reports.repair", REPAIR_TYPE, cron="*/5 * * * *", catch_up="none")

    def perform(self, payload: dict[str, Any], attempt: Attempt) -> Done:
        return Done(detail=msgspec.to_builtins(repair_reports(actor=_ACTOR, effects=self._app)))
