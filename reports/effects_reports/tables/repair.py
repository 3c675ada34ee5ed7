"""Finding runs that nothing will move any more: their job is not live, or all their chunks have ended."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqlalchemy import Connection, Row

from effects.extend import Sql, Store, as_json

BATCH = 500


def _live(sql: Sql, job_id: str) -> str:
    return f"EXISTS (SELECT 1 FROM {sql.jobs} AS j WHERE j.id = {job_id})"


def _stranded(sql: Sql) -> str:
    return f"""
    SELECT r.id, r.state, h.status, h.error_code, h.last_error FROM {sql.report_runs} AS r
    JOIN {sql.generated_reports} AS g ON g.run_id = r.id LEFT JOIN {sql.job_history} AS h ON h.id = g.job_id
    WHERE r.state IN ('requested', 'planning', 'assembling') AND NOT {_live(sql, "g.job_id")}
    ORDER BY r.id LIMIT {BATCH}"""


def stranded_runs(store: Store, connection: Connection) -> Sequence[Row[Any]]:
    """Runs to be planned or assembled whose job is not live, with how that ended (NULL if not known)."""
    return store.all(connection, _stranded)


def _is_stranded(sql: Sql) -> str:
    return f"""
    SELECT 1 FROM {sql.generated_reports} AS g WHERE g.run_id = :run_id AND NOT {_live(sql, "g.job_id")}"""


def is_stranded(store: Store, connection: Connection, run_id: str) -> bool:
    """Whether it still is, now that its row is locked: another repair may have been quicker."""
    return store.value(connection, _is_stranded, run_id=run_id) is not None


def _orphaned(sql: Sql) -> str:
    return f"""
    SELECT c.run_id, c.ordinal, c.job_id, h.status, h.error_code, h.last_error FROM {sql.report_runs} AS r
    JOIN {sql.report_chunks} AS c ON c.run_id = r.id LEFT JOIN {sql.job_history} AS h ON h.id = c.job_id
    WHERE r.state IN ('running', 'cancelling') AND c.state IN ('pending', 'running') AND NOT {_live(sql, "c.job_id")}
    ORDER BY c.run_id, c.ordinal LIMIT {BATCH}"""


def orphaned_chunks(store: Store, connection: Connection) -> Sequence[Row[Any]]:
    """Chunks to be made whose job is not live, with how that ended."""
    return store.all(connection, _orphaned)


def _dead(sql: Sql) -> str:
    return f"SELECT id FROM {sql.job_history} WHERE id {sql.any_of('ids', 'int')} AND status = 'dead'"


def dead_jobs(store: Store, connection: Connection, job_ids: Sequence[int]) -> list[int]:
    """Those of them that died."""
    return [row.id for row in store.all(connection, _dead, ids=as_json(list(job_ids)))]


def _complete(sql: Sql) -> str:
    """Of a cancelled run, chunks that wait need not be waited for."""
    return f"""
    SELECT r.id FROM {sql.report_runs} AS r WHERE r.state IN ('running', 'cancelling') AND NOT EXISTS (
        SELECT 1 FROM {sql.report_chunks} AS c WHERE c.run_id = r.id
        AND (c.state = 'running' OR (c.state = 'pending' AND r.state = 'running')))
    ORDER BY r.id LIMIT {BATCH}"""


def complete_runs(store: Store, connection: Connection) -> list[str]:
    """Runs under way of which no chunk is."""
    return [row.id for row in store.all(connection, _complete)]
