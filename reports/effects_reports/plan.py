"""The job type `report.plan`: what a run's chunks are, frozen."""

from __future__ import annotations

from contextlib import nullcontext
from functools import partial

import msgspec

from effects.job_type import Attempt
from effects.outcome import Cancelled, Done, Outcome
from effects.retry import DAY_SECONDS
from effects_reports import steps
from effects_reports.catalogue import PLAN_TYPE
from effects_reports.planning import check_format, plan_rows, resolve
from effects_reports.reading import reading
from effects_reports.tables import runs as run_table
from effects_reports.tables.runs import Planned, Run
from effects_reports.work import Loaded, ReportWork, RunPayload


class ReportPlan(ReportWork[RunPayload]):
    """Looks at the keys, not at the rows; nothing is kept of a plan that is not committed."""

    name = PLAN_TYPE
    payload = RunPayload
    time_limit_seconds = 900.0

    def perform(self, payload: RunPayload, attempt: Attempt) -> Outcome:
        loaded: Loaded = attempt.loaded
        run = loaded.run
        if run is None or not self._begin(run):
            return Cancelled("the run is no longer to be planned")
        if (waiting := self.unknown_report(run)) is not None:
            return waiting
        return self._plan(run, attempt)

    def _begin(self, run: Run) -> bool:
        with self.app.store.begin() as connection:
            return run_table.begin_planning(self.app.store, connection, run)

    def _plan(self, run: Run, attempt: Attempt) -> Outcome:
        definition = self.catalogue.get(run.report)
        params = msgspec.json.decode(run.params)
        resolved = resolve(definition, params, run.format, run.dialect, None)
        self.app.storage.check()
        engine = self.catalogue.engine_of(definition)
        seconds = attempt.remaining_seconds()
        with nullcontext() if resolved.statement is None else reading(engine, seconds=seconds) as connection:
            plan = plan_rows(connection, definition, resolved.statement)
        columns = definition.columns_of(resolved.statement)
        check_format(definition, resolved.file, plan.rows_total, len(columns))
        planned = Planned(
            version=definition.version,
            columns=[(column.name, column.header) for column in columns],
            as_of=resolved.as_of.timestamp(),
            rows_total=plan.rows_total,
            total_kind=plan.total_kind,
            bytes_max=definition.bytes_max,
            keep_seconds=definition.keep_days * DAY_SECONDS,
        )
        apply = partial(
            steps.planned, self.app, run=run, plan=planned, ranges=plan.ranges, parallel=definition.parallel
        )
        return Done(apply=apply, detail={"chunks": len(plan.ranges), "rows": plan.rows_total})
