"""Runs of reports, their states and lists. Every step is one conditional update: a second caller changes nothing."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import msgspec
from sqlalchemy import Connection, Row

from effects.extend.sql import ANY_TIME, Sql, Statement, Store, Window, and_each, as_json, set_filters
from effects.extend.text import repr_without

WORKING = ("requested", "planning", "running", "assembling")
ENDED = ("ready", "failed", "cancelled", "expired")
LIST_MAX = 1000


def _among(states: Sequence[str]) -> str:
    return f"state IN ({', '.join(repr(state) for state in states)})"


# -- a request --------------------------------------------------------------------------------------------------


class NewRun(msgspec.Struct, frozen=True, kw_only=True):
    """One run to write, with its row in the ledger."""

    id: str
    report: str
    key: str
    generation: int
    digest: str
    job_id: int
    params: Any
    format: str
    dialect: str
    consistency: str
    prefix: str

    def __repr__(self) -> str:
        """Without the params: they may be personal."""
        return repr_without(self, ("params",))


def _newest(sql: Sql) -> str:
    return f"""
    SELECT g.report, g.key, g.generation, g.run_id, g.digest, g.job_id, COALESCE(r.state, 'expired') AS state
    FROM {sql.generated_reports} AS g LEFT JOIN {sql.report_runs} AS r ON r.id = g.run_id
    WHERE g.report = :report AND g.key = :key ORDER BY g.generation DESC LIMIT 1"""


def newest_generation(store: Store, connection: Connection, report: str, key: str) -> Row[Any] | None:
    """The newest run of this key; one whose row is pruned counts as expired."""
    return store.row(connection, _newest, report=report, key=key)


def _intend(sql: Sql) -> str:
    return f"""
    INSERT INTO {sql.generated_reports} (report, key, generation, run_id, digest, job_id, created_at, updated_at)
    SELECT r.report, r.key, r.generation, r.id, r.digest, r.job_id, {sql.now}, {sql.now}
    FROM {sql.rows("rows", NewRun)} AS r WHERE true ON CONFLICT DO NOTHING"""


def _insert(sql: Sql) -> str:
    names = "id, report, key, params, format, dialect, consistency, prefix"
    return f"""
    INSERT INTO {sql.report_runs} ({names}, created_at, updated_at)
    SELECT {", ".join(f"r.{name}" for name in names.split(", "))}, {sql.now}, {sql.now}
    FROM {sql.rows("rows", NewRun)} AS r"""


def insert_run(store: Store, connection: Connection, run: NewRun) -> bool:
    """Write the run and its row in the ledger; False where another request has just taken this generation."""
    rows = as_json([run])
    if store.write(connection, _intend, rows=rows) == 0:
        return False
    store.write(connection, _insert, rows=rows)
    return True


# -- reading ----------------------------------------------------------------------------------------------------


class Run(msgspec.Struct, frozen=True, kw_only=True):
    """A run as its row has it. JSON columns are texts; times are seconds since 1970."""

    id: str
    report: str
    key: str
    state: str
    params: str
    format: str
    dialect: Any  # one of `formats.base.DIALECTS`
    consistency: str
    prefix: str
    round: int
    version: int | None
    columns: str | None
    as_of: float | None
    rows_total: int | None
    total_kind: str
    bytes_max: int | None
    keep_seconds: float | None
    repairs: int
    snapshot: str | None
    packing: Any  # a `formats.base.Packing`, or None
    read_from: str | None
    read_position: str | None
    snapshot_restarts: int
    full_since: float | None
    progress_floor: float
    error_code: str | None
    error_text: str | None
    created_at: float
    planned_at: float | None
    assembling_at: float | None
    ended_at: float | None
    expires_at: float | None

    def __repr__(self) -> str:
        """Without the params: they may be personal."""
        return repr_without(self, ("params",))


_JSON = ("params", "columns")
_TIMES = ("as_of", "full_since", "created_at", "planned_at", "assembling_at", "ended_at", "expires_at")


def _run_columns(sql: Sql, alias: str = "r") -> str:
    def column(name: str) -> str:
        own = f"{alias}.{name}"
        shown = sql.json_text(own) if name in _JSON else sql.epoch(own) if name in _TIMES else own
        return f"{shown} AS {name}"

    return ", ".join(column(name) for name in Run.__struct_fields__)


def _by_ids(sql: Sql) -> str:
    return f"SELECT {_run_columns(sql)} FROM {sql.report_runs} AS r WHERE r.id {sql.any_of('ids')}"


def get_runs(store: Store, connection: Connection, run_ids: Sequence[str]) -> dict[str, Run]:
    """The runs of these ids."""
    return {row.id: Run(**row._mapping) for row in store.all(connection, _by_ids, ids=as_json(list(run_ids)))}


def get_run(store: Store, connection: Connection, run_id: str) -> Run | None:
    return get_runs(store, connection, [run_id]).get(run_id)


def _lock(sql: Sql) -> str:
    return f"SELECT {_run_columns(sql)} FROM {sql.report_runs} AS r WHERE r.id = :id {sql.lock(skip=False)}"


def lock_run(store: Store, connection: Connection, run_id: str) -> Run | None:
    """The run, locked until the transaction ends: what is decided by counting its chunks is decided alone."""
    row = store.row(connection, _lock, id=run_id)
    return None if row is None else Run(**row._mapping)


# -- transitions ------------------------------------------------------------------------------------------------


def _to_planning(sql: Sql) -> str:
    return f"""
    UPDATE {sql.report_runs} SET state = 'planning', updated_at = {sql.now}
    WHERE id = :id AND round = :round AND state IN ('requested', 'planning')"""


def begin_planning(store: Store, connection: Connection, run: Run) -> bool:
    return store.write(connection, _to_planning, id=run.id, round=run.round) == 1


class Planned(msgspec.Struct, frozen=True, kw_only=True):
    """What a plan freezes."""

    version: int
    columns: list[list[str]]  # name and header of each
    as_of: float
    rows_total: int | None
    total_kind: str
    bytes_max: int
    keep_seconds: float
    snapshot: str | None = None
    packing: str | None = None
    read_from: str | None = None
    read_position: str | None = None


def _to_running(sql: Sql) -> str:
    plain = [name for name in Planned.__struct_fields__ if name != "as_of"]
    return f"""
    UPDATE {sql.report_runs} AS t SET state = 'running', {", ".join(f"{name} = p.{name}" for name in plain)},
        as_of = {sql.time("p.as_of")}, planned_at = {sql.now}, updated_at = {sql.now}
    FROM {sql.rows("rows", Planned)} AS p WHERE t.id = :id AND t.round = :round AND t.state = 'planning'"""


def commit_plan(store: Store, connection: Connection, run: Run, planned: Planned) -> bool:
    """planning → running; False where the run was cancelled meanwhile, or planned by another attempt."""
    return store.write(connection, _to_running, id=run.id, round=run.round, rows=as_json([planned])) == 1


def _to_assembling(sql: Sql) -> str:
    return f"""
    UPDATE {sql.report_runs} SET state = 'assembling', assembling_at = {sql.now}, updated_at = {sql.now}
    WHERE id = :id AND state = 'running'"""


def begin_assembling(store: Store, connection: Connection, run_id: str) -> bool:
    return store.write(connection, _to_assembling, id=run_id) == 1


def _to_ready(sql: Sql) -> str:
    return f"""
    UPDATE {sql.report_runs} SET state = 'ready', ended_at = {sql.now}, updated_at = {sql.now},
        expires_at = {sql.after("keep_seconds")}, error_code = NULL, error_text = NULL
    WHERE id = :id AND round = :round AND state = 'assembling'"""


def become_ready(store: Store, connection: Connection, run: Run) -> bool:
    return store.write(connection, _to_ready, id=run.id, round=run.round) == 1


def _to_failed(sql: Sql) -> str:
    return f"""
    UPDATE {sql.report_runs} SET state = 'failed', error_code = :code, error_text = :text, ended_at = {sql.now},
        updated_at = {sql.now}
    WHERE id = :id AND {_among(WORKING)}"""


def become_failed(store: Store, connection: Connection, run_id: str, code: str, text: str) -> bool:
    """Any state in which it was worked on → failed."""
    return store.write(connection, _to_failed, id=run_id, code=code, text=text) == 1


def _to_cancelling(sql: Sql) -> str:
    return f"""
    UPDATE {sql.report_runs} SET state = 'cancelling', updated_at = {sql.now} WHERE id = :id AND {_among(WORKING)}"""


def begin_cancelling(store: Store, connection: Connection, run_id: str) -> bool:
    return store.write(connection, _to_cancelling, id=run_id) == 1


def _to_cancelled(sql: Sql) -> str:
    return f"""
    UPDATE {sql.report_runs} SET state = 'cancelled', ended_at = {sql.now}, updated_at = {sql.now}
    WHERE id = :id AND state = 'cancelling'"""


def become_cancelled(store: Store, connection: Connection, run_id: str) -> bool:
    return store.write(connection, _to_cancelled, id=run_id) == 1


def _restart(sql: Sql) -> str:
    return f"""
    UPDATE {sql.report_runs} SET state = :state, round = round + 1, error_code = NULL, error_text = NULL,
        ended_at = NULL, assembling_at = NULL, full_since = NULL, repairs = 0,
        snapshot_restarts = snapshot_restarts + :restarts,
        progress_floor = {sql.greatest("progress_floor", "CAST(:floor AS double precision)")}, updated_at = {sql.now}
    WHERE id = :id AND state = :was"""


def restart(store: Store, connection: Connection, run: Run, state: str, *, floor: float, restarts: int = 0) -> bool:
    """Begin a new round, from a new plan (`requested`) or with the chunks that there are (`running`)."""
    values = {"id": run.id, "state": state, "was": run.state, "floor": floor, "restarts": restarts}
    return store.write(connection, _restart, **values) == 1


def _forget_plan(sql: Sql) -> str:
    frozen = ", ".join(f"{name} = NULL" for name in Planned.__struct_fields__ if name != "total_kind")
    return f"""
    UPDATE {sql.report_runs} SET planned_at = NULL, total_kind = 'unknown', {frozen} WHERE id = :id"""


def forget_plan(store: Store, connection: Connection, run_id: str) -> None:
    """Leave nothing of what a plan has frozen: the run is like one that was never planned."""
    store.write(connection, _forget_plan, id=run_id)


def _repair(sql: Sql) -> str:
    return f"""
    UPDATE {sql.report_runs} SET state = 'running', repairs = repairs + 1, round = round + 1, updated_at = {sql.now}
    WHERE id = :id AND round = :round AND state = 'assembling'"""


def back_to_running(store: Store, connection: Connection, run: Run) -> bool:
    """assembling → running: parts were missing or altered."""
    return store.write(connection, _repair, id=run.id, round=run.round) == 1


def _full(sql: Sql) -> str:
    return f"""
    UPDATE {sql.report_runs} SET full_since = COALESCE(full_since, {sql.now}) WHERE id = :id
    RETURNING {sql.seconds("full_since", sql.now)} AS waited"""


def note_full(store: Store, connection: Connection, run_id: str) -> float:
    """Note that the storage has no room for the run, and how many seconds that has lasted."""
    row = store.row(connection, _full, id=run_id)
    return 0.0 if row is None else float(row.waited)


def _has_room(sql: Sql) -> str:
    return f"UPDATE {sql.report_runs} SET full_since = NULL WHERE id = :id"


def note_room(store: Store, connection: Connection, run_id: str) -> None:
    """Something of the run was written: a storage that is full again is so from then on."""
    store.write(connection, _has_room, id=run_id)


def _failed_with(sql: Sql) -> str:
    return f"SELECT id FROM {sql.report_runs} WHERE state = 'failed' AND error_code = :code ORDER BY created_at, id"


def failed_with(store: Store, connection: Connection, code: str) -> list[str]:
    """The runs that have failed so, the oldest first."""
    return [row.id for row in store.all(connection, _failed_with, code=code)]


def _floor(sql: Sql) -> str:
    return f"""
    UPDATE {sql.report_runs} SET progress_floor = CAST(:floor AS double precision)
    WHERE id = :id AND progress_floor < CAST(:floor AS double precision)"""


def raise_floor(store: Store, connection: Connection, run_id: str, floor: float) -> None:
    """What progress has been shown is not taken back."""
    store.write(connection, _floor, id=run_id, floor=floor)


class RunFilters(msgspec.Struct, frozen=True, kw_only=True):
    """Which runs a list has; None is no filter.

    Args:
        window: when they were requested.
        before: the id of a run; only older ones: the next page.
    """

    report: str | None = None
    state: str | None = None
    key: str | None = None
    window: Window = ANY_TIME
    before: str | None = None
    limit: int = 50


def run_ids(store: Store, connection: Connection, filters: RunFilters) -> list[str]:
    """The newest runs that match."""
    names = ("report", "state", "key", "before")
    parameters = set_filters({name: getattr(filters, name) for name in names} | filters.window.parameters())
    rows = store.all(connection, _ids(frozenset(parameters)), limit=filters.limit, **parameters)
    return [row.id for row in rows]


@cache
def _ids(names: frozenset[str]) -> Statement:
    def build(sql: Sql) -> str:
        cursor = f"SELECT b.created_at, b.id FROM {sql.report_runs} AS b WHERE b.id = :before"
        by_filter = {
            "report": "r.report = :report",
            "state": "r.state = :state",
            "key": "r.key = :key",
            "before": f"(r.created_at, r.id) < ({cursor})",
            **sql.bounds("r.created_at"),
        }
        return f"""
        SELECT r.id FROM {sql.report_runs} AS r WHERE true{and_each(by_filter, names)}
        ORDER BY r.created_at DESC, r.id DESC LIMIT :limit"""

    return build


class FailingStep(msgspec.Struct, frozen=True):
    """A live job of a run whose last attempt failed."""

    job_id: int
    error: str


def read_failing_step(store: Store, connection: Connection, run_id: str) -> FailingStep | None:
    row = store.row(connection, _failing, run_id=run_id)
    return None if row is None else FailingStep(row.id, row.last_error or row.error_code)


def _failing(sql: Sql) -> str:
    return f"""
    SELECT id, error_code, last_error FROM {sql.jobs} WHERE error_code IS NOT NULL AND id IN (
        SELECT job_id FROM {sql.report_chunks} WHERE run_id = :run_id
        UNION ALL SELECT job_id FROM {sql.generated_reports} WHERE run_id = :run_id)
    ORDER BY id LIMIT 1"""


def read_step(store: Store, connection: Connection, run_id: str) -> int | None:
    """The live job that a run waits for: one that runs before those that do not; None where none is live."""
    row = store.row(connection, _step, run_id=run_id)
    return None if row is None else int(row.id)


def _step(sql: Sql) -> str:
    return f"""
    SELECT id FROM {sql.jobs} WHERE id IN (
        SELECT job_id FROM {sql.report_chunks} WHERE run_id = :run_id
        UNION ALL SELECT job_id FROM {sql.generated_reports} WHERE run_id = :run_id)
    ORDER BY CASE WHEN status = 'running' THEN 0 ELSE 1 END, id LIMIT 1"""
