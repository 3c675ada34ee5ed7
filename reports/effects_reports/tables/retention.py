"""Runs past their retention, and runs whose jobs were lost. Objects are deleted before their rows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqlalchemy import Connection, Row

from effects.extend.sql import Sql, Store, as_json

BATCH = 100


def _overdue(sql: Sql) -> str:
    return f"""
    SELECT id, prefix FROM {sql.report_runs} WHERE state = 'ready' AND expires_at <= {sql.now} AND id > :after
    ORDER BY id LIMIT {BATCH}"""


def overdue_runs(store: Store, connection: Connection, after: str) -> Sequence[Row[Any]]:
    """Ready runs whose file is past its retention, by id."""
    return store.all(connection, _overdue, after=after)


def _expire(sql: Sql) -> str:
    return f"""
    UPDATE {sql.report_runs} SET state = 'expired', updated_at = {sql.now} WHERE id {sql.any_of("ids")}
    AND state = 'ready'"""


def _forget_artifact(sql: Sql) -> str:
    return f"""
    UPDATE {sql.generated_reports} SET artifact = NULL, updated_at = {sql.now} WHERE run_id {sql.any_of("ids")}"""


def expire(store: Store, connection: Connection, run_ids: Sequence[str]) -> int:
    """ready → expired, after their objects are gone."""
    ids = as_json(list(run_ids))
    store.write(connection, _forget_artifact, ids=ids)
    return store.write(connection, _expire, ids=ids)


def _stale(sql: Sql) -> str:
    return f"""
    SELECT r.id, r.prefix FROM {sql.report_runs} AS r WHERE r.state IN ('failed', 'cancelled') AND r.id > :after
    AND {sql.seconds("r.ended_at")} >= {sql.number("seconds")}
    AND EXISTS (SELECT 1 FROM {sql.report_chunks} AS c WHERE c.run_id = r.id AND c.part IS NOT NULL)
    ORDER BY r.id LIMIT {BATCH}"""


def stale_runs(store: Store, connection: Connection, after: str, seconds: float) -> Sequence[Row[Any]]:
    """Runs that failed or were cancelled so long ago that their parts need not be kept for a resume."""
    return store.all(connection, _stale, after=after, seconds=seconds)


def _forget_parts(sql: Sql) -> str:
    return f"""
    UPDATE {sql.report_chunks} SET state = 'cancelled', part = NULL, sha256 = NULL, rows_done = 0, bytes_done = 0,
        updated_at = {sql.now}
    WHERE run_id {sql.any_of("ids")} AND part IS NOT NULL
    AND EXISTS (SELECT 1 FROM {sql.report_runs} AS r WHERE r.id = run_id AND r.state IN ('failed', 'cancelled'))"""


def forget_parts(store: Store, connection: Connection, run_ids: Sequence[str]) -> int:
    """A resume makes these chunks again."""
    return store.write(connection, _forget_parts, ids=as_json(list(run_ids)))


def _old(sql: Sql) -> str:
    return f"""
    SELECT id, prefix FROM {sql.report_runs} WHERE state IN ('failed', 'cancelled', 'expired') AND id > :after
    AND {sql.seconds("updated_at")} >= {sql.number("seconds")} ORDER BY id LIMIT {BATCH}"""


def old_runs(store: Store, connection: Connection, after: str, seconds: float) -> Sequence[Row[Any]]:
    """Ended runs whose rows are older than that, by id."""
    return store.all(connection, _old, after=after, seconds=seconds)


def _delete(sql: Sql) -> str:
    return f"""
    DELETE FROM {sql.report_runs} WHERE id {sql.any_of("ids")} AND state IN ('failed', 'cancelled', 'expired')"""


def delete_runs(store: Store, connection: Connection, run_ids: Sequence[str]) -> int:
    """Their chunks go with them; the ledger's rows go when the core prunes them."""
    return store.write(connection, _delete, ids=as_json(list(run_ids)))


def _needed(sql: Sql) -> str:
    ids = sql.any_of("ids")
    return f"""
    SELECT r.id, CAST(NULL AS text) AS name FROM {sql.report_runs} AS r
    WHERE r.id {ids} AND r.state NOT IN ('ready', 'failed', 'cancelled', 'expired')
    UNION ALL SELECT g.run_id, g.artifact FROM {sql.generated_reports} AS g
    WHERE g.run_id {ids} AND g.artifact IS NOT NULL
    UNION ALL SELECT c.run_id, c.part FROM {sql.report_runs} AS r JOIN {sql.report_chunks} AS c ON c.run_id = r.id
    WHERE r.id {ids} AND r.state IN ('failed', 'cancelled') AND c.part IS NOT NULL"""


def needed(store: Store, connection: Connection, run_ids: Sequence[str]) -> tuple[set[str], set[str]]:
    """Of these runs, those that are under way (all of whose objects are needed), and the objects that others name."""
    rows = store.all(connection, _needed, ids=as_json(list(run_ids)))
    return {row.id for row in rows if row.name is None}, {row.name for row in rows if row.name is not None}


_REPAIRS = 500


def _live(sql: Sql, job_id: str) -> str:
    return f"EXISTS (SELECT 1 FROM {sql.jobs} AS j WHERE j.id = {job_id})"


def _stranded(sql: Sql) -> str:
    return f"""
    SELECT r.id, r.state, h.status, h.error_code, h.last_error FROM {sql.report_runs} AS r
    JOIN {sql.generated_reports} AS g ON g.run_id = r.id LEFT JOIN {sql.job_history} AS h ON h.id = g.job_id
    WHERE r.state IN ('requested', 'planning', 'assembling') AND NOT {_live(sql, "g.job_id")}
    ORDER BY r.id LIMIT {_REPAIRS}"""


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
    ORDER BY c.run_id, c.ordinal LIMIT {_REPAIRS}"""


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
    ORDER BY r.id LIMIT {_REPAIRS}"""


def complete_runs(store: Store, connection: Connection) -> list[str]:
    """Runs under way of which no chunk is."""
    return [row.id for row in store.all(connection, _complete)]
