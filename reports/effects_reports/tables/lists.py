"""Runs, newest first, a page at a time. Each shape of filter has its own statement and index."""

from __future__ import annotations

from functools import cache

import msgspec
from sqlalchemy import Connection

from effects.extend import ANY_TIME, Sql, Statement, Store, Window, and_each, set_filters


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
