"""Payloads of a type's jobs, for tests of apps. People are shown no payload: see `effects.store.lookup`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqlalchemy import Row

from effects.store.sql import Sql
from effects.store.store import Store


def _payloads(sql: Sql) -> str:
    columns = f"id, status, idempotency_key, queue, {sql.json_text('payload')} AS payload"
    return f"""
    SELECT {columns} FROM {sql.jobs} WHERE job_type = :job_type
    UNION ALL SELECT {columns} FROM {sql.job_history} WHERE job_type = :job_type ORDER BY id"""


def payloads(store: Store, job_type: str) -> Sequence[Row[Any]]:
    """id, status, idempotency_key, queue and payload (JSON text) of every job of this type, oldest first."""
    with store.read() as connection:
        return store.all(connection, _payloads, job_type=job_type)
