"""The job type `report.plan`: what a run's chunks are, frozen; of an incremental report, only what is new."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec
from sqlalchemy import Connection, Table

from effects import Attempt, Cancelled, Done, Effects, Job, Outcome, Snooze
from effects.extend.arguments import DAY_SECONDS
from effects.extend.text import moment
from effects_reports.definitions.definition import ReportDefinition
from effects_reports.errors import DefinitionInvalid, ReportRefused
from effects_reports.formats.opening import quickest_packing
from effects_reports.jobs.step import ReportWork, RunPayload, Shares, freeze_columns
from effects_reports.loading import Loaded
from effects_reports.routing import PLAN_TYPE
from effects_reports.runs import state_machine
from effects_reports.runs.planner import Plan, Resolved, check_format, plan_parts, resolve_parts, total_of
from effects_reports.source.replica import Position, ReplicaUnfit, ReportSource
from effects_reports.source.since import Since, read_bound
from effects_reports.source.snapshot import Holder, begin_reading, copy_database, delete_copy, reading
from effects_reports.state import ReportRegistry
from effects_reports.tables import runs as run_table
from effects_reports.tables import watermarks
from effects_reports.tables.runs import Planned, Run
from effects_reports.tables.watermarks import IncrementBounds

if TYPE_CHECKING:
    from effects import Effects


WAIT_SECONDS = 10.0


class _Increment:
    """The rows that one run covers; `since` for the function that selects them, `position` of where they were seen."""

    def __init__(self, series: str, bounds: IncrementBounds, position: Position | None) -> None:
        self._series, self._bounds, self.position = series, bounds, position
        self.since = _since_of(bounds)

    def freeze(self, app: Effects, connection: Connection, run_id: str) -> None:
        """Keep them with the plan."""
        watermarks.freeze(app.store, connection, run_id, self._series, self._bounds)


def _since_of(bounds: IncrementBounds) -> Since:
    """For the function of a run with these bounds."""
    return Since(bounds.dialect, bounds.lo, bounds.hi)


def stored_since(app: Effects, definition: ReportDefinition, run_id: str) -> Since | None:
    """What the plan of a run has frozen; None where its report is not incremental."""
    if not definition.incremental:
        return None
    with app.store.read() as connection:
        bounds = watermarks.read_bounds_of(app.store, connection, run_id)
    return None if bounds is None else _since_of(bounds)


def _begin_increment(app: Effects, run: Run, table: Table, source: ReportSource, seconds: float) -> _Increment | None:
    """Take the report's new rows for this run; None while another run of it, with the same params, is under way.

    A crash leaves the report held by this run, whose plan is made again; one that has failed or was cancelled lets go.

    Args:
        table: whose rows are asked for.
        seconds: that the database may take.

    Raises:
        ReportRefused: the database is behind what the last run saw.
        ReplicaUnfit: as `ReportSource.reading`.
    """
    params = msgspec.json.encode(msgspec.json.decode(run.params), order="sorted")
    series = watermarks.series_of(run.report, params)
    with app.store.begin() as connection:
        held = watermarks.hold(app.store, connection, series, run.report, run.id)
    if held is None:
        return None
    with source.reading(seconds=seconds) as connection:
        hi = read_bound(connection, table, held.lo)
        position = source.position_of(connection)
    return _Increment(series, IncrementBounds(source.engine.dialect.name, held.lo, hi), position)


def _the_table(definition: ReportDefinition, since: Since) -> Table:
    """The one table whose new rows the function has asked for.

    Raises:
        DefinitionInvalid: none, or several.
    """
    tables = {table.key: table for table in since.tables}
    if len(tables) != 1:
        raise DefinitionInvalid(
            f"report {definition.name!r}: its function takes `since`, and asks for the new rows of {len(tables)} "
            "tables; call since.new_rows(table) for one"
        )
    return next(iter(tables.values()))


class ReportPlan(ReportWork[RunPayload]):
    """Looks at the keys, not at the rows; nothing is kept of a plan that is not committed."""

    name = PLAN_TYPE
    payload = RunPayload
    time_limit_seconds = 900.0

    def __init__(self, app: Effects, registry: ReportRegistry, shares: Shares) -> None:
        super().__init__(app, registry)
        self._shares = shares
        self.enqueues_more = len(registry) > 0

    def load(self, connection: Connection, jobs: Sequence[tuple[Job, RunPayload]]) -> Mapping[int, Any]:
        loaded: Mapping[int, Loaded] = super().load(connection, jobs)
        self._shares.update(connection, [each.run.report for each in loaded.values() if each.run is not None])
        return loaded

    def perform(self, payload: RunPayload, attempt: Attempt) -> Outcome:
        loaded: Loaded = attempt.loaded
        run = loaded.run
        as_of = None if run is None else self._begin(run)
        if run is None or as_of is None:
            return Cancelled("the run is no longer to be planned")
        if (waiting := self.unknown_report(run)) is not None:
            return waiting
        try:
            return self._plan(run, as_of, attempt)
        except ReplicaUnfit as unfit:
            return self.wait_for_replica(unfit)

    def _begin(self, run: Run) -> datetime | None:
        """The time of the plan, by the database's clock; None where there is nothing to plan."""
        with self.app.store.begin() as connection:
            if not run_table.begin_planning(self.app.store, connection, run):
                return None
            return moment(self.app.store.now(connection))

    def _plan(self, run: Run, as_of: datetime, attempt: Attempt) -> Outcome:
        definition = self.registry.get(run.report)
        source = self.registry.source_of(definition)
        params = definition.read_params(msgspec.json.decode(run.params))
        since, packing = Since(), quickest_packing(run.format)

        def resolved_from(since: Since) -> list[Resolved]:
            return resolve_parts(definition, params, run.format, run.dialect, as_of, since=since, packing=packing)

        parts = resolved_from(since)
        increment = None
        if definition.incremental:
            table = _the_table(definition, since)
            increment = _begin_increment(self.app, run, table, source, attempt.remaining_seconds())
            if increment is None:
                return Snooze(WAIT_SECONDS, "another run of this report is under way", ages=False, code="run_under_way")
            parts = resolved_from(increment.since)
        self.app.storage.check()
        snapshot, position = None, None
        if parts[0].statement is None:
            plans = plan_parts(None, definition, parts)
        elif definition.consistency == "snapshot":
            if attempt.draining:
                raise ReportRefused(
                    f"report {run.report!r} reads a snapshot, which only a worker that stays can keep: run `effects "
                    'work` without --drain, or choose consistency "range" or "single"',
                    code="snapshot_under_drain",
                )
            snapshot, plans, position = self._plan_snapshot(run, source, parts, attempt)
        else:
            after = None if increment is None else increment.position
            with source.reading(seconds=attempt.remaining_seconds(), position=after) as connection:
                plans = plan_parts(connection, definition, parts)
                position = source.position_of(connection)
        for part, plan in zip(parts, plans, strict=True):
            check_format(definition, part.file, plan.rows_total, len(part.columns))
        ranges = [chunk_range for plan in plans for chunk_range in plan.ranges]
        frozen = _frozen(definition, parts, plans, snapshot, packing, position)

        def apply(connection: Connection) -> None:
            if increment is not None:
                increment.freeze(self.app, connection, run.id)
            parallel = definition.parallel
            state_machine.planned(self.app, connection, run=run, plan=frozen, ranges=ranges, parallel=parallel)

        return Done(apply=apply, detail={"chunks": len(ranges), "rows": frozen.rows_total})

    # -- one instant ---------------------------------------------------------------------------------------------

    def _plan_snapshot(
        self, run: Run, source: ReportSource, parts: Sequence[Resolved], attempt: Attempt
    ) -> tuple[str, list[Plan], Position | None]:
        """The snapshot, kept from now on, the plans as it sees the rows, and where that was."""
        definition = self.registry.get(run.report)
        engine = source.engine
        seconds = attempt.remaining_seconds()
        if engine.dialect.name != "postgresql":
            path = copy_database(engine, run.id, run.round)
            try:
                with reading(engine, seconds=seconds, snapshot=path) as connection:
                    return path, plan_parts(connection, definition, parts), None
            except BaseException:
                delete_copy(path)
                raise
        holder = source.open(Holder)
        try:
            begin_reading(holder.connection, seconds)
            plans = plan_parts(holder.connection, definition, parts)
            position = source.position_of(holder.connection)
        except BaseException:
            holder.release()
            raise
        holder.hold(partial(self._is_needed, run.id, run.round))
        return holder.snapshot, plans, position

    def _is_needed(self, run_id: str, number: int, snapshot: str) -> bool:
        """While the plan is not committed, and then while chunks read it; not beyond this Effects' own end."""
        if self.app.disposed:
            return False
        with self.app.store.read() as connection:
            run = run_table.get_run(self.app.store, connection, run_id)
        if run is None or run.round != number:
            return False
        return run.state == "planning" or (run.state == "running" and run.snapshot == snapshot)


def _frozen(
    definition: ReportDefinition, parts: Sequence[Resolved], plans: Sequence[Plan], snapshot: str | None,
    packing: str | None, position: Position | None,
) -> Planned:  # fmt: skip
    rows_total, total_kind = total_of(plans)
    return Planned(
        version=definition.version,
        columns=freeze_columns(parts, plans),
        as_of=parts[0].as_of.timestamp(),
        rows_total=rows_total,
        total_kind=total_kind,
        bytes_max=definition.bytes_max,
        keep_seconds=definition.keep_days * DAY_SECONDS,
        snapshot=snapshot,
        packing=packing,
        read_from=None if position is None else position.server,
        read_position=None if position is None else position.lsn,
    )
