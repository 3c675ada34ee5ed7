"""Writing jobs together with their intents in the ledger of a package, in the caller's transaction."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import cache
from typing import Any

import msgspec
from sqlalchemy import Connection

from effects.store.db.sql import Sql, columns_of
from effects.store.db.store import Statement, Store, as_json
from effects.store.enqueue.insert import INTO, groups_of, insert_with_ids, lock_groups, reserve_ids, values_from
from effects.store.enqueue.insert_one import insert_of, insert_text, next_id, values_of
from effects.store.enqueue.new_rows import JobRow

INTENTS = 500  # with their jobs, by one statement


@cache
def _insert_with(insert: Statement, intent: type[msgspec.Struct]) -> Statement:
    """PostgreSQL: ids, intents and jobs at once."""

    def build(sql: Sql) -> str:
        columns = {"n": "int", **columns_of(intent)}
        return f"""
        WITH r AS MATERIALIZED (
            SELECT {next_id(sql)} AS new_id, given.* FROM {sql.rows("rows", JobRow)} AS given
            ORDER BY given.n
        ), i AS (
            SELECT given.*, r.new_id AS job_id FROM {sql.rows("intents", columns)} AS given JOIN r ON r.n = given.n
        ), intended AS (
            {insert(sql)}
        ), inserted AS (
            INSERT INTO {sql.jobs} ({INTO}) SELECT {values_from(sql, "r.new_id")} FROM r ORDER BY r.n
        )
        SELECT new_id FROM r ORDER BY n"""

    return build


@cache
def _intend_with(insert: Statement, intent: type[msgspec.Struct]) -> Statement:
    """SQLite: the intents of jobs that have their ids."""

    def build(sql: Sql) -> str:
        return f"WITH i AS {sql.rows('intents', {**columns_of(intent), 'job_id': 'int'})} {insert(sql)}"

    return build


def insert_with_intents(
    store: Store, connection: Connection, rows: Sequence[JobRow], intents: Sequence[msgspec.Struct], insert: Statement
) -> list[int]:
    """Insert jobs and, for each, a row of another table that names it; their ids, in the same order.

    Args:
        intents: of one type, one for each row.
        insert: INSERT INTO that table … SELECT … FROM i, which has the intents' fields and `job_id`.
    """
    lock_groups(store, connection, groups_of(rows))
    ids: list[int] = []
    for start in range(0, len(rows), INTENTS):
        batch = slice(start, start + INTENTS)
        both = _both_postgresql if store.is_postgresql else _both_sqlite
        ids += both(store, connection, rows[batch], intents[batch], insert)
    return ids


def _both_postgresql(
    store: Store, connection: Connection, rows: Sequence[JobRow], intents: Sequence[msgspec.Struct], insert: Statement
) -> list[int]:
    numbered = [{"n": row.n, **msgspec.structs.asdict(intent)} for row, intent in zip(rows, intents, strict=True)]
    statement = _insert_with(insert, type(intents[0]))
    inserted = store.all(connection, statement, rows=as_json(rows), intents=as_json(numbered))
    return [row.new_id for row in inserted]


def _both_sqlite(
    store: Store, connection: Connection, rows: Sequence[JobRow], intents: Sequence[msgspec.Struct], insert: Statement
) -> list[int]:
    ids = reserve_ids(store, connection, len(rows))
    named = [{"job_id": job_id, **msgspec.structs.asdict(intent)} for job_id, intent in zip(ids, intents, strict=True)]
    store.write(connection, _intend_with(insert, type(intents[0])), intents=as_json(named))
    for row, job_id in zip(rows, ids, strict=True):
        row.id = job_id
    store.write(connection, insert_with_ids, rows=as_json(rows))
    return ids


# -- one job ---------------------------------------------------------------------------------------------------------


def insert_one_with_intent(
    store: Store,
    connection: Connection,
    row: JobRow,
    intent: msgspec.Struct,
    insert: Statement,
    parameters: Mapping[str, Any],
) -> int | None:
    """Insert one job and its intent, if `insert` writes it: an app waits for it. One statement on PostgreSQL.

    Args:
        intent: its fields are texts, numbers, truth values, bytes or moments.
        insert: as for `insert_with_intents`; may leave the row out, by WHERE or by ON CONFLICT DO NOTHING.
        parameters: what `insert` binds besides.

    Returns:
        The job's id; None if `insert` wrote nothing, and then there is no job.
    """
    lock_groups(store, connection, groups_of([row]))
    job = values_of(row)
    names, kind = frozenset(job), type(intent)
    values = {f"intent_{name}": _value(value) for name, value in msgspec.structs.asdict(intent).items()}
    values.update(parameters)
    if store.is_postgresql:
        job_id: int | None = store.value(connection, _insert_both(names, insert, kind), **job, **values)
        return job_id
    [job_id] = reserve_ids(store, connection, 1)
    if store.value(connection, _intend_one(insert, kind), id=job_id, **values) is None:
        return None
    store.value(connection, insert_of(names | {"id"}), id=job_id, **job)
    return job_id


def _value(value: Any) -> Any:
    return value.timestamp() if isinstance(value, datetime) else value


@cache
def _insert_both(names: frozenset[str], insert: Statement, intent: type[msgspec.Struct]) -> Statement:
    def build(sql: Sql) -> str:
        withs = f"WITH i AS ({_intent_of(sql, intent, next_id(sql))}), intended AS ({insert(sql)} RETURNING job_id) "
        return insert_text(sql, names, withs, "job_id", " FROM intended")

    return build


@cache
def _intend_one(insert: Statement, intent: type[msgspec.Struct]) -> Statement:
    return lambda sql: f"WITH i AS ({_intent_of(sql, intent, ':id')}) {insert(sql)} RETURNING job_id"


def _intent_of(sql: Sql, intent: type[msgspec.Struct], job_id: str) -> str:
    """A relation of one row: the fields of an intent, and its job."""
    fields = [f"{sql.bound(f'intent_{name}', kind)} AS {name}" for name, kind in columns_of(intent).items()]
    return f"SELECT {job_id} AS job_id, {', '.join(fields)}"
