"""Writing one job, by one small statement: an app waits for it in its own transaction.

A statement of its own for each set of fields that are given, so that the database plans a few values and no more.
"""

from __future__ import annotations

from collections.abc import Collection
from functools import cache
from typing import Any

from sqlalchemy import Connection

from effects.store.db.sql import Sql, columns_of
from effects.store.db.store import Statement, Store
from effects.store.enqueue.new_rows import JobRow

# A field → the column of its value. `run_at` and `delay` are two ways to give one column.
_COLUMNS = {
    "job_type": "job_type", "queue": "queue", "priority": "priority", "payload": "payload", "expires_at": "expires_at",
    "max_attempts": "max_attempts", "group_key": "group_key", "limit_key": "limit_key", "key": "idempotency_key",
    "trace_context": "trace_context", "on_unknown": "on_unknown", "requeued_from": "requeued_from",
}  # fmt: skip
_NOT_COLUMNS = ("n", "id")


def insert_job(store: Store, connection: Connection, row: JobRow) -> int | None:
    """Insert one job and, where it has a digest, its intent in `effects_effect_ledger`.

    One statement, of a job with a key two on SQLite.

    Returns:
        Its id; None if an earlier holder has its key, and nothing was written.
    """
    values = values_of(row)
    names = frozenset(values)
    if store.is_postgresql or row.digest is None:
        job_id: int | None = store.value(connection, insert_of(names), **values)
        return job_id
    job_id = store.value(connection, _intend, job_type=row.job_type, key=row.key, digest=row.digest)
    if job_id is not None:
        del values["digest"]
        store.value(connection, insert_of(names - {"digest"} | {"id"}), id=job_id, **values)
    return job_id


def values_of(row: JobRow) -> dict[str, Any]:
    """The parameters of a statement of `insert_text`."""
    values = {name: value for name in _FIELDS if (value := getattr(row, name)) is not None}
    values["payload"] = bytes(row.payload).decode()
    return values


_FIELDS = tuple(name for name in JobRow.__struct_fields__ if name not in _NOT_COLUMNS)
_KINDS = columns_of(JobRow)


@cache
def insert_of(names: frozenset[str]) -> Statement:
    """Of a job of whose fields just these are given."""
    return lambda sql: insert_text(sql, names, *_identity(sql, names))


def insert_text(sql: Sql, names: Collection[str], withs: str, identity: str, source: str) -> str:
    """INSERT of the job of whose fields just these are given; gives its id.

    Args:
        withs: what goes before. identity: the id, as an expression; empty: the next one. source: FROM, or empty.
    """
    columns = {column: _value(sql, name) for name, column in _COLUMNS.items() if name in names}
    run_at = _run_at(sql, names)
    columns |= {"status": "'queued'", "routed": "true", "run_at": run_at, "age_from": run_at}
    columns |= {"created_at": sql.now, "updated_at": sql.now}
    if identity:
        columns = {"id": identity, **columns}
    return (
        f"{withs}INSERT INTO {sql.jobs} ({', '.join(columns)}) SELECT {', '.join(columns.values())}{source} "
        "RETURNING id"
    )


def _identity(sql: Sql, names: Collection[str]) -> tuple[str, str, str]:
    """What goes before, where a lock or an intent does: WITH, the id, and FROM."""
    if not sql.postgresql:
        return "", ":id" if "id" in names else "", ""
    withs, source = [], ""
    if "group_key" in names:  # its row is there once the lock is held, and no id is taken before
        withs.append(
            f"grouped AS (INSERT INTO {sql.job_groups} (group_key) VALUES (CAST(:group_key AS text)) "
            "ON CONFLICT (group_key) DO UPDATE SET group_key = excluded.group_key RETURNING group_key)"
        )
        source, identity = " FROM grouped", next_id(sql)
    if "digest" in names:
        withs.append(f"intended AS ({_intent(sql, next_id(sql), source)} RETURNING job_id)")
        source, identity = " FROM intended", "job_id"
    return (f"WITH {', '.join(withs)} ", identity, source) if withs else ("", "", "")


def next_id(sql: Sql) -> str:
    """PostgreSQL: the id of a new job."""
    return f"nextval('{sql.jobs}_id_seq')"


def _intent(sql: Sql, job_id: str, source: str) -> str:
    values = ", ".join(_value(sql, name) for name in ("job_type", "key", "digest"))
    where = "" if sql.postgresql else " WHERE true"  # or ON would be read as part of a join
    return (
        f"INSERT INTO {sql.effect_ledger} (job_type, key, digest, job_id, created_at, updated_at) "
        f"SELECT {values}, {job_id}, {sql.now}, {sql.now}{source}{where} ON CONFLICT DO NOTHING"
    )


def _intend(sql: Sql) -> str:
    """SQLite: the id that the job will have. No one else writes meanwhile."""
    return _intent(sql, "seq + 1", " FROM (SELECT seq FROM sqlite_sequence WHERE name = 'effects_jobs')") + (
        " RETURNING job_id"
    )


def _value(sql: Sql, name: str) -> str:
    """A parameter; the numbers of a `JobRow` are moments."""
    if _KINDS[name] == "num":
        return sql.time(sql.number(name))
    return sql.bound(name, _KINDS[name])


def _run_at(sql: Sql, names: Collection[str]) -> str:
    if "run_at" in names:
        return _value(sql, "run_at")
    return sql.after(sql.number("delay")) if "delay" in names else sql.now
