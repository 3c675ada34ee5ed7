"""Rows about what follows a file: notices, deliveries, and uses of links whose downloads are counted."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any

import msgspec
from sqlalchemy import Connection, Row, select, update

from effects.extend.sql import Sql, Store, as_json
from effects.extend.text import moment_or_none
from effects_reports.routing import DELIVER_TYPE

_RESUME_SECONDS = 3600.0  # within which a later part of the file belongs to the download that has begun


def _insert(sql: Sql) -> str:
    return f"""
    INSERT INTO {sql.report_links} (id, run_id, uses_max, created_at) VALUES (:id, :run_id, :uses_max, {sql.now})"""


def insert_link(store: Store, connection: Connection, link_id: str, run_id: str, uses_max: int) -> None:
    """Begin to count."""
    store.write(connection, _insert, id=link_id, run_id=run_id, uses_max=uses_max)


def _use(sql: Sql) -> str:
    return f"""
    UPDATE {sql.report_links} SET uses = uses + 1, used_at = {sql.now} WHERE id = :id AND uses < uses_max"""


def _resumed(sql: Sql) -> str:
    return f"""
    SELECT id FROM {sql.report_links}
    WHERE id = :id AND {sql.epoch("used_at")} > {sql.epoch(sql.now)} - {_RESUME_SECONDS}"""


def use_link(store: Store, link_id: str, *, resumed: bool) -> bool:
    """Count one download, in its own transaction; False where there have been as many as there may be.

    Args:
        resumed: the bytes asked for begin later than the file does: within an hour of a download's begin, a part of it.
    """
    with store.begin() as connection:
        if resumed and store.row(connection, _resumed, id=link_id) is not None:
            return True
        return store.write(connection, _use, id=link_id) == 1


def write_notices(store: Store, connection: Connection, run_id: str, clear: str | None, sealed: bytes | None) -> None:
    """Keep a run's notices. The bytes are bound as bytes, which no text encoding passes."""
    table = store.tables["report_runs"]
    connection.execute(update(table).where(table.c.id == run_id).values(notify=clear, notify_sealed=sealed))


def read_notices(store: Store, connection: Connection, run_id: str) -> tuple[str | None, bytes | None]:
    """In clear or sealed; neither if there are none."""
    table = store.tables["report_runs"]
    row = connection.execute(select(table.c.notify, table.c.notify_sealed).where(table.c.id == run_id)).one()
    return row.notify, bytes(row.notify_sealed) if row.notify_sealed is not None else None


_LOOKED_AT = 500  # the newest deliveries, of all buckets together


class BucketEffect(msgspec.Struct, frozen=True, kw_only=True):
    """One file into one bucket.

    Attributes:
        state: of the effect: `intended`, `released`, `done`, `refused`, `unknown` or `abandoned`.
        limit_key: which bucket; None, as the status and what follows it, once retention has deleted the job.
        changed_at: when the state was last written.
    """

    key: str
    state: str
    job_id: int
    status: str | None
    limit_key: str | None
    attempts: int | None
    error_code: str | None
    changed_at: datetime | None


def _deliveries(sql: Sql, effects: str) -> str:
    columns = "id, status, limit_key, attempts, error_code"
    only = "WHERE id IN (SELECT job_id FROM chosen)"
    return f"""
    WITH chosen AS ({effects}),
    tried AS (SELECT {columns} FROM {sql.jobs} {only} UNION ALL SELECT {columns} FROM {sql.job_history} {only})
    SELECT c.key, c.state, c.job_id, t.status, t.limit_key, t.attempts, t.error_code,
        {sql.epoch("c.updated_at")} AS changed_at
    FROM chosen AS c LEFT JOIN tried AS t ON t.id = c.job_id ORDER BY c.job_id DESC"""


_OF_TYPE = f"job_type = '{DELIVER_TYPE}'"


def _of_keys(sql: Sql) -> str:
    return _deliveries(sql, f"SELECT * FROM {sql.effect_ledger} WHERE {_OF_TYPE} AND key {sql.any_of('keys')}")


def of_keys(store: Store, connection: Connection, keys: Sequence[str]) -> list[BucketEffect]:
    """Those of these keys that were enqueued, the newest first."""
    return _read(store.all(connection, _of_keys, keys=as_json(list(keys))))


def _newest(sql: Sql) -> str:
    newest = f"SELECT * FROM {sql.effect_ledger} WHERE {_OF_TYPE} ORDER BY key DESC LIMIT {_LOOKED_AT}"
    return _deliveries(sql, newest)


def newest(store: Store, connection: Connection) -> list[BucketEffect]:
    """The newest of all buckets, at most `_LOOKED_AT`: keys begin with the run's id, and these sort by time."""
    return _read(store.all(connection, _newest))


def _read(rows: Sequence[Row[Any]]) -> list[BucketEffect]:
    return [BucketEffect(**{**row._mapping, "changed_at": moment_or_none(row.changed_at)}) for row in rows]
