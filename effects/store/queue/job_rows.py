"""Live rows: one list of columns and one conversion for all who read jobs, and counts of them by type and queue."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from typing import Any

import msgspec
from sqlalchemy import Connection, Row

from effects.model.job import Job
from effects.store.db.records import as_text
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


def payload_of(store: Store, connection: Connection, job_id: int) -> str | None:
    """The payload (JSON text, what is sealed in it sealed) of a job, live or ended; for the app that wrote it."""
    payload: str | None = store.value(connection, _payload_of, id=job_id)
    return payload


def _payload_of(sql: Sql) -> str:
    payload = f"SELECT {sql.json_text('payload')} AS payload FROM"
    return f"{payload} {sql.jobs} WHERE id = :id UNION ALL {payload} {sql.job_history} WHERE id = :id LIMIT 1"


def _dead_letters(sql: Sql) -> str:
    return f"""
    SELECT id, job_type, error_code, last_error FROM {sql.job_history}
    WHERE status = 'dead' AND id IN (SELECT job_id FROM {sql.unresolved}) ORDER BY id"""


def dead_letters(store: Store) -> Sequence[Row[Any]]:
    """id, job_type, error_code and last_error of every job that ended dead and is unresolved, oldest first."""
    with store.read() as connection:
        return store.all(connection, _dead_letters)


def replace_payload(store: Store, job: Job, payload: str) -> None:
    """Write another form of this attempt's payload, behind its fence."""
    with store.single() as connection:
        store.write(connection, _replace, id=job.id, token=job.lease_token, payload=payload)


def _replace(sql: Sql) -> str:
    value = "CAST(:payload AS jsonb)" if sql.postgresql else ":payload"
    return f"UPDATE {sql.jobs} SET payload = {value} WHERE id = :id AND lease_token = :token"


UNKNOWN_MAX = 10


class UnknownType(msgspec.Struct, frozen=True):
    """A job type that is not registered here, its live jobs, and how many of them a lost worker left running."""

    job_type: str
    jobs: int
    lost: int


def find_unknown(
    store: Store, connection: Connection, job_types: Collection[str], queues: Collection[str]
) -> tuple[list[UnknownType], set[str]]:
    """Live jobs of types that are not among these, the ten types with the most; and the other queues of live jobs."""
    live = store.all(connection, live_by_type)
    return unknown_types(live, job_types), {as_text(row.queue) for row in live} - set(queues)


def unknown_types(live: Sequence[Row[Any]], job_types: Collection[str]) -> list[UnknownType]:
    jobs, lost = Counter[str](), Counter[str]()
    for row in live:
        jobs[as_text(row.job_type)] += row.jobs
        lost[as_text(row.job_type)] += row.lost
    names = sorted(jobs.keys() - set(job_types), key=lambda name: (-jobs[name], name))
    return [UnknownType(name, jobs[name], lost[name]) for name in names[:UNKNOWN_MAX]]


def live_by_type(sql: Sql) -> str:
    """Also how many run beyond their lease: their worker is lost, and where no one knows the type they return after an
    hour. A name is compared once for a type, here in Python, not once for each of its jobs.
    """
    return f"""
    SELECT job_type, queue, count(*) AS jobs,
        count(CASE WHEN status = 'running' AND locked_until < {sql.now} THEN 1 END) AS lost,
        count(CASE WHEN status <> 'running' AND run_at <= {sql.now} THEN 1 END) AS due
    FROM {sql.jobs} GROUP BY job_type, queue ORDER BY queue"""
