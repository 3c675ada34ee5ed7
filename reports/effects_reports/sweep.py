"""What a lost job left behind is repaired, or fails where people see it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
from sqlalchemy import Row

from effects.app import default
from effects.job_type import Attempt, JobType
from effects.outcome import Done
from effects.schedules import Schedule
from effects_reports import steps
from effects_reports.catalogue import QUEUE, SWEEP_TYPE, catalogue_of
from effects_reports.retention import clear_copies
from effects_reports.tables import runs as run_table
from effects_reports.tables import sweep as table

if TYPE_CHECKING:
    from effects.app import Effects


class Swept(msgspec.Struct, kw_only=True):
    """How many runs or chunks a sweep has moved; zeros are the rule.

    `restarted`: runs whose plan or assembly got a new job. `failed`: runs whose job had died unnoticed. `chunks`:
    those whose job was gone. `closed`: runs all of whose chunks had ended. `copies`: of a SQLite
    file, which runs no longer read.
    """

    restarted: int = 0
    failed: int = 0
    chunks: int = 0
    closed: int = 0
    copies: int = 0


def sweep_reports(*, effects: Effects | None = None) -> Swept:
    """Move every run that nothing else would move any more.

    The steps write their next jobs with themselves, and a job that dies takes its run along: what this finds was done
    by hand, or by a version of this package that did less. Running it at any moment, twice at once too, is harmless: it
    takes the same conditional steps.

    Raises:
        StoreUnavailable: the database is away.
    """
    app = effects or default()
    swept = Swept()
    with app.store.read() as connection:
        stranded = table.stranded_runs(app.store, connection)
        orphaned = table.orphaned_chunks(app.store, connection)
        complete = table.complete_runs(app.store, connection)
    for row in stranded:
        _move_on(app, row, swept)
    for row in orphaned:
        code, text = _how_it_ended(row)
        with app.store.begin() as connection:
            steps.chunk_ended(app, connection, row.run_id, row.ordinal, row.job_id, died=True, code=code, text=text)
        swept.chunks += 1
    for run_id in complete:
        with app.store.begin() as connection:
            steps.close(app, connection, run_id)
        swept.closed += 1
    swept.copies = clear_copies(app, catalogue_of(app))
    return swept


def _how_it_ended(row: Row[Any]) -> tuple[str, str]:
    if row.status is None:
        return "job_gone", "its job is gone"
    return row.error_code or f"job_{row.status}", row.last_error or f"its job ended {row.status}"


def _move_on(app: Effects, row: Row[Any], swept: Swept) -> None:
    """Fail the run with its dead job; where the job is gone without a word, write it anew."""
    with app.store.begin() as connection:
        run = run_table.lock_run(app.store, connection, row.id)
        if run is None or run.state != row.state or not table.is_stranded(app.store, connection, run.id):
            return
        if row.status in ("dead", "cancelled"):
            steps.fail(app, connection, run.id, *_how_it_ended(row))
            swept.failed += 1
        else:
            steps.begin_again(app, connection, run)
            swept.restarted += 1


class ReportSweep(JobType[dict[str, Any]]):
    """`sweep_reports`, as a job of the schedule `reports.sweep`."""

    name = SWEEP_TYPE
    queue = QUEUE
    priority = 3
    time_limit_seconds = 300.0
    retention_days = 1.0

    def __init__(self, app: Effects, *, scheduled: bool) -> None:
        self._app = app
        if scheduled:  # an app without reports has nothing to sweep
            self.schedule = Schedule("reports.sweep", SWEEP_TYPE, cron="*/5 * * * *", catch_up="none")

    def perform(self, payload: dict[str, Any], attempt: Attempt) -> Done:
        return Done(detail=msgspec.to_builtins(sweep_reports(effects=self._app)))
