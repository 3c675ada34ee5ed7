"""A live row as the handler's side sees it: one list of columns and one conversion for all who read jobs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqlalchemy import Row

from effects.model.job import Job
from effects.store.db.sql import Sql
from effects.store.db.store import Store

# A job's fields that a row holds as columns, in their order.
_FIELDS = Job.__struct_fields__[: Job.__struct_fields__.index("on_unknown") + 1]
_NAMED = ("payload", "age_seconds")  # expressions that others read by name
_PAYLOAD = _FIELDS.index("payload")
_FLAGS = tuple(_FIELDS.index(name) for name in ("routed", "cancel_requested", "has_attempts"))


def job_values(sql: Sql, alias: str = "") -> list[str]:
    """An expression for each of `_FIELDS`. `alias` ends with its dot.

    On SQLite a payload that is a number, as an UPDATE past the checks may leave it, is a text as well.
    """
    expressions = {
        "payload": sql.json_text(f"{alias}payload") if sql.postgresql else f"CAST({alias}payload AS TEXT)",
        "key": f"{alias}idempotency_key",
        "age_seconds": sql.seconds(f"{alias}age_from"),
    }
    return [expressions.get(name, alias + name) for name in _FIELDS]


def job_columns(sql: Sql, alias: str = "") -> str:
    """What `job_of` reads, in its order; first in a SELECT or RETURNING. `alias` ends with its dot."""
    values = job_values(sql, alias)
    if not sql.postgresql:
        values[_PAYLOAD] = f"CAST({values[_PAYLOAD]} AS BLOB)"
    named = zip(_FIELDS, values, strict=True)
    return ", ".join(f"{value} AS {name}" if name in _NAMED else value for name, value in named)


def job_of(row: Sequence[Any], *, expired: object = False, due_seconds: float = 0.0) -> Job:
    """The job of a row that begins with `job_columns` or `job_values`. By position: names cost four times as much."""
    values = [*row[: len(_FIELDS)], bool(expired), due_seconds]  # a row may have more
    if type(values[_FLAGS[0]]) is not bool:
        _mend_sqlite(values)
    return Job(*values)


def _mend_sqlite(values: list[Any]) -> None:
    """Flags are numbers there, and a payload may be bytes: what is no UTF-8 becomes a text that no decoder takes."""
    if isinstance(values[_PAYLOAD], bytes):
        values[_PAYLOAD] = values[_PAYLOAD].decode(errors="surrogateescape")
    for flag in _FLAGS:
        values[flag] = bool(values[flag])


def _payloads(sql: Sql) -> str:
    columns = f"id, job_type, status, idempotency_key, queue, {sql.json_text('payload')} AS payload"
    return f"SELECT {columns} FROM {sql.jobs} UNION ALL SELECT {columns} FROM {sql.job_history} ORDER BY id"


def payloads(store: Store) -> Sequence[Row[Any]]:
    """id, job_type, status, idempotency_key, queue and payload (JSON text) of every job, oldest first.

    For tests of apps: people are shown no payload.
    """
    with store.read() as connection:
        return store.all(connection, _payloads)
