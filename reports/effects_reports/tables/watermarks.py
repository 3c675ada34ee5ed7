"""How far an incremental report has come: a row for each report and its params, held by one run at a time."""

from __future__ import annotations

import hashlib

import msgspec
from sqlalchemy import Connection

from effects.extend.sql import Sql, Store
from effects_reports.tables.runs import ENDED

_ENDED = f"({', '.join(repr(state) for state in ENDED)})"


class Held(msgspec.Struct, frozen=True):
    """What a run may begin with: after `lo`, which is None before the first run."""

    series: str
    lo: int | None


class IncrementBounds(msgspec.Struct, frozen=True):
    """What a run covers: after `lo` up to `hi`; of what kind of database."""

    dialect: str
    lo: int | None
    hi: int


def series_of(report: str, params: bytes) -> str:
    """Name what advances together: the runs of a report with the same params, as JSON in a fixed order."""
    return f"{report}:{hashlib.sha256(params).hexdigest()[:16]}"


def _add(sql: Sql) -> str:
    return f"""
    INSERT INTO {sql.report_watermarks} (series, report, created_at, updated_at)
    VALUES (:series, :report, {sql.now}, {sql.now}) ON CONFLICT DO NOTHING"""


def _lock_series(sql: Sql) -> str:
    return f"SELECT run_id FROM {sql.report_watermarks} WHERE series = :series {sql.lock(skip=False)}"


def _hold(sql: Sql) -> str:
    return f"""
    UPDATE {sql.report_watermarks} AS t SET run_id = :run_id, updated_at = {sql.now}
    WHERE series = :series AND (run_id IS NULL OR run_id = :run_id OR NOT EXISTS (
        SELECT 1 FROM {sql.report_runs} AS r
        WHERE r.id = t.run_id AND r.state NOT IN {_ENDED}))
    RETURNING position"""


def hold(store: Store, connection: Connection, series: str, report: str, run_id: str) -> Held | None:
    """Make this run the only one that may advance; None while another is under way. One that has failed lets go."""
    store.write(connection, _add, series=series, report=report)
    store.row(connection, _lock_series, series=series)  # so that the next statement sees every run that has held it
    row = store.row(connection, _hold, series=series, run_id=run_id)
    return None if row is None else Held(series, row.position)


def _freeze(sql: Sql) -> str:
    return f"""
    INSERT INTO {sql.report_increments} (run_id, series, dialect, lo, hi)
    VALUES (:run_id, :series, :dialect, CAST(:lo AS bigint), CAST(:hi AS bigint))
    ON CONFLICT (run_id) DO UPDATE SET lo = excluded.lo, hi = excluded.hi"""


def freeze(store: Store, connection: Connection, run_id: str, series: str, bounds: IncrementBounds) -> None:
    """Keep what the run covers; a plan that is made again replaces it."""
    values = msgspec.structs.asdict(bounds)
    store.write(connection, _freeze, run_id=run_id, series=series, **values)


def _bounds(sql: Sql) -> str:
    return f"SELECT dialect, lo, hi FROM {sql.report_increments} WHERE run_id = :run_id"


def read_bounds_of(store: Store, connection: Connection, run_id: str) -> IncrementBounds | None:
    """What the run covers; None where it is not incremental."""
    row = store.row(connection, _bounds, run_id=run_id)
    return None if row is None else IncrementBounds(row.dialect, row.lo, row.hi)


def _lock(sql: Sql) -> str:
    return f"""
    SELECT w.run_id FROM {sql.report_watermarks} AS w JOIN {sql.report_increments} AS i ON i.series = w.series
    WHERE i.run_id = :run_id {sql.lock(skip=False, of="w")}"""


def is_superseded(store: Store, connection: Connection, run_id: str) -> bool:
    """Whether another run has begun with the rows of this one since; if not, none does until the transaction ends."""
    row = store.row(connection, _lock, run_id=run_id)
    return row is not None and row.run_id != run_id


def _advance(sql: Sql) -> str:
    return f"""
    UPDATE {sql.report_watermarks} SET run_id = NULL, updated_at = {sql.now}, position = (
        SELECT i.hi FROM {sql.report_increments} AS i WHERE i.run_id = :run_id)
    WHERE run_id = :run_id"""


def advance(store: Store, connection: Connection, run_id: str) -> None:
    """The run is ready: the next one begins where it ends. Nothing for a run that is not incremental."""
    store.write(connection, _advance, run_id=run_id)


def _delete(sql: Sql) -> str:
    return f"DELETE FROM {sql.report_watermarks} WHERE series = :series"


def forget(store: Store, connection: Connection, series: str) -> bool:
    """Let the next run begin with every row; a run under way is then superseded. False where it has none."""
    return store.write(connection, _delete, series=series) == 1
