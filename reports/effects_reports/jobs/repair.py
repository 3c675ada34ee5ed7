"""The job types `report.repair` and `report.cleanup`: runs whose jobs were lost, and what finished runs leave."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import msgspec

from effects import Attempt, Done, JobType, Schedule
from effects_reports.admin import repair_reports
from effects_reports.jobs.step import RunPayload
from effects_reports.retention import Retention, clear_copies, clear_run
from effects_reports.routing import CLEANUP_TYPE, FINISHING_PRIORITY, QUEUE, REPAIR_TYPE
from effects_reports.state import ReportRegistry

if TYPE_CHECKING:
    from effects import Effects


_ACTOR = "schedule:reports.repair"


class ReportRepair(JobType[dict[str, Any]]):
    """`repair_reports`, as a job of the schedule `reports.repair`."""

    name = REPAIR_TYPE
    internal = True
    queue = QUEUE
    priority = FINISHING_PRIORITY
    time_limit_seconds = 300.0

    def __init__(self, app: Effects, *, scheduled: bool) -> None:
        self._app = app
        if scheduled:  # an app without reports has nothing to repair
            self.schedule = Schedule("reports.repair", REPAIR_TYPE, cron="*/5 * * * *", catch_up="none")

    def perform(self, payload: dict[str, Any], attempt: Attempt) -> Done:
        return Done(detail=msgspec.to_builtins(repair_reports(actor=_ACTOR, effects=self._app)))


class ReportCleanup(JobType[RunPayload]):
    """Deletes the parts of a run that is ready; its file stays. What it leaves undone, pruning does."""

    name = CLEANUP_TYPE
    internal = True
    payload = RunPayload
    queue = QUEUE
    priority = FINISHING_PRIORITY  # behind a file's end, before further parts need their room
    time_limit_seconds = 600.0

    def __init__(self, app: Effects, registry: ReportRegistry) -> None:
        self._app, self._registry = app, registry

    def prune(self, keep_seconds: float, *, dry_run: bool, go_on: Callable[[], bool]) -> int:
        """See `Retention`: rows are kept for EFFECTS_RETENTION_EFFECTS_DAYS, 90 days by default."""
        if not len(self._registry):
            return 0  # an app without reports may not even be allowed to look at the storage
        return Retention(self._app, self._app.storage, keep_seconds, dry_run=dry_run, go_on=go_on).run()

    def perform(self, payload: RunPayload, attempt: Attempt) -> Done:
        deleted = clear_run(self._app, self._app.storage, payload.run_id)
        return Done(detail={"deleted": deleted + clear_copies(self._app, self._registry)})
