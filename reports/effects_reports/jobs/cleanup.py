"""The job type `report.cleanup`: what a finished run no longer needs."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from effects import Attempt, Done, JobType
from effects_reports.definitions.registry import ReportRegistry
from effects_reports.jobs.step import RunPayload
from effects_reports.retention import Retention, clear_copies, clear_run
from effects_reports.routing import CLEANUP_TYPE, QUEUE

if TYPE_CHECKING:
    from effects import Effects


class ReportCleanup(JobType[RunPayload]):
    """Deletes the parts of a run that is ready; its file stays. What it leaves undone, pruning does."""

    name = CLEANUP_TYPE
    payload = RunPayload
    queue = QUEUE
    priority = 7
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
