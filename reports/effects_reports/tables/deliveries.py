"""Deliveries into buckets, read for people: each by its effect on the ledger, with the job that had it last."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any

import msgspec
from sqlalchemy import Connection, Row

from effects.extend import Sql, Store, as_json, moment_or_none
from effects_reports.routing import DELIVER_TYPE

LOOKED_AT = 500  # the newest deliveries, of all buckets together


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
    newest = f"SELECT * FROM {sql.effect_ledger} WHERE {_OF_TYPE} ORDER BY key DESC LIMIT {LOOKED_AT}"
    return _deliveries(sql, newest)


def newest(store: Store, connection: Connection) -> list[BucketEffect]:
    """The newest of all buckets, at most `LOOKED_AT`: keys begin with the run's id, and these sort by time."""
    return _read(store.all(connection, _newest))


def _read(rows: Sequence[Row[Any]]) -> list[BucketEffect]:
    return [BucketEffect(**{**row._mapping, "changed_at": moment_or_none(row.changed_at)}) for row in rows]
