"""What the plan of an incremental report adds: which rows are this run's, and that no other run has them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
from sqlalchemy import Connection, Table

from effects_reports.definitions.definition import ReportDefinition
from effects_reports.errors import DefinitionInvalid
from effects_reports.source.replica import Position, ReportSource
from effects_reports.source.since import Since, read_bound
from effects_reports.tables import watermarks
from effects_reports.tables.runs import Run
from effects_reports.tables.watermarks import IncrementBounds

if TYPE_CHECKING:
    from effects import Effects

WAIT_SECONDS = 10.0


class Increment:
    """The rows that one run covers; `since` for the function that selects them, `position` of where they were seen."""

    def __init__(self, series: str, bounds: IncrementBounds, position: Position | None) -> None:
        self._series, self._bounds, self.position = series, bounds, position
        self.since = since_of(bounds)

    def freeze(self, app: Effects, connection: Connection, run_id: str) -> None:
        """Keep them with the plan."""
        watermarks.freeze(app.store, connection, run_id, self._series, self._bounds)


def since_of(bounds: IncrementBounds) -> Since:
    """For the function of a run with these bounds."""
    return Since(bounds.dialect, bounds.lo, bounds.hi)


def stored_since(app: Effects, definition: ReportDefinition, run_id: str) -> Since | None:
    """What the plan of a run has frozen; None where its report is not incremental."""
    if not definition.incremental:
        return None
    with app.store.read() as connection:
        bounds = watermarks.read_bounds_of(app.store, connection, run_id)
    return None if bounds is None else since_of(bounds)


def begin_increment(app: Effects, run: Run, table: Table, source: ReportSource, seconds: float) -> Increment | None:
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
    return Increment(series, IncrementBounds(source.engine.dialect.name, held.lo, hi), position)


def the_table(definition: ReportDefinition, since: Since) -> Table:
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
