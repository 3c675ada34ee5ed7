"""Leasing what a statement has picked: the update of the rows, and how they are read.

PostgreSQL: one statement picks, leases and returns. SQLite: three, because each row that its driver fetches lets every
other thread of the process run first, while no other process can write: the ids, the update, and all rows as one value.
"""

from __future__ import annotations

from collections.abc import Sequence
from operator import itemgetter
from typing import Any

import msgspec
from sqlalchemy import Connection
from sqlalchemy.exc import DBAPIError

from effects.model.job import Job
from effects.store.claim.claim_request import ClaimRequest
from effects.store.db.faults import Fault, fault_of
from effects.store.db.sql import Sql
from effects.store.db.store import Statement, Store, as_json
from effects.store.queue.job_rows import job_columns, job_of, job_values

# What a leased row has behind the columns of a job.
_EXPIRED, _DUE_SECONDS, RUN_AT = -3, -2, -1
PRIORITY = Job.__struct_fields__.index("priority")
_BY_PRIORITY = itemgetter(PRIORITY, RUN_AT, Job.__struct_fields__.index("id"))

Rows = Sequence[Sequence[Any]]


def lease_rows(
    store: Store, connection: Connection, pick: Statement, request: ClaimRequest, worker: str, **keyed: str
) -> Rows:
    """Lease the jobs that `pick` finds; their rows, in the order of their priority and time. In a transaction.

    Args:
        pick: ends with `lease`.
    """
    picked = {"queue": request.queue, "types": as_json(list(request.lease_seconds)), **keyed}
    leased = {"worker": worker, "leases": as_json(request.lease_seconds)}
    if store.is_postgresql:
        return sorted(store.tuples(connection, pick, **picked, **leased), key=_BY_PRIORITY)
    ids = store.value(connection, pick, **picked)
    if ids == "[]":
        return []
    store.write(connection, _lease_these, ids=ids, **leased)
    return sorted(_read(store, connection, ids), key=_BY_PRIORITY)


def jobs_of(rows: Rows) -> list[Job]:
    return [job_of(row, expired=row[_EXPIRED], due_seconds=row[_DUE_SECONDS]) for row in rows]


def _read(store: Store, connection: Connection, ids: str) -> Rows:
    """SQLite: a value that no JSON can hold, such as a text that is no UTF-8, has the rows read one by one."""
    try:
        rows: Rows = msgspec.json.decode(store.value(connection, _leased_as_json, ids=ids))
    except (msgspec.DecodeError, UnicodeDecodeError, DBAPIError) as error:
        if isinstance(error, DBAPIError) and fault_of(error) not in (Fault.DATA, Fault.BUG):
            raise  # after which the transaction may be no more, and the rows unleased
        return store.tuples(connection, _leased, ids=ids)
    return rows


def lease(sql: Sql, age_from: str) -> str:
    """The end of a statement that has `picked`: PostgreSQL leases and returns the rows, SQLite gives their ids."""
    if not sql.postgresql:
        return "SELECT json_group_array(id) FROM picked"
    aged = "" if age_from == "age_from" else f", age_from = {age_from}"
    seconds = "CAST(CAST(:leases AS jsonb) ->> jobs.job_type AS double precision)"
    return f"{_update(sql, seconds, sql.among('picked'), aged)} RETURNING {_columns(sql)}"


def _lease_these(sql: Sql) -> str:
    seconds = "(:leases ->> ('$.\"' || jobs.job_type || '\"'))"
    return _update(sql, seconds, sql.any_of("ids", "int"), f", age_from = {younger(sql)}")


def _update(sql: Sql, seconds: str, these: str, aged: str) -> str:
    """`status <> 'running'` is checked again on the row that is locked."""
    return f"""
        UPDATE {sql.jobs} AS jobs SET status = 'running', attempts = attempts + 1, lease_token = {sql.next_token},
            locked_by = :worker, locked_until = {sql.after(seconds)}, started_at = {sql.now}, released_at = NULL,
            updated_at = {sql.now}{aged}
        WHERE id {these} AND status <> 'running'"""


def _leased(sql: Sql) -> str:
    return f"SELECT {_columns(sql)} {_of_these(sql)}"


def _leased_as_json(sql: Sql) -> str:
    """As bytes, which the driver leaves as they are."""
    row = f"json_array({', '.join([*job_values(sql), *_further(sql)])})"
    return f"SELECT CAST(json_group_array({row}) AS BLOB) {_of_these(sql)}"


def _of_these(sql: Sql) -> str:
    return f"FROM {sql.jobs} WHERE id {sql.any_of('ids', 'int')}"


def _columns(sql: Sql) -> str:
    return f"{job_columns(sql)}, {', '.join(_further(sql))}"


def _further(sql: Sql) -> tuple[str, ...]:
    return f"expires_at <= {sql.now}", sql.seconds("run_at"), sql.epoch("run_at")


def younger(sql: Sql) -> str:
    """`age_from`, later by what its key (or the key's parent) was paused since the job's last claim.

    Only the sum of a run of pauses is kept: a job that came in its midst gets at most that sum, and never more
    than it has waited.
    """
    since = sql.greatest(
        "COALESCE(l.paused_from, jobs.age_from)", "jobs.age_from", "COALESCE(jobs.started_at, jobs.age_from)"
    )
    rested = sql.smallest("l.paused_seconds", sql.seconds(since))
    seconds = f"""(
            SELECT COALESCE(max({rested}), 0) FROM {sql.limits} AS l
            WHERE (l.limit_key = jobs.limit_key
                OR l.limit_key = (SELECT parent_key FROM {sql.limits} WHERE limit_key = jobs.limit_key))
            AND l.paused_until > {since})"""
    return f"CASE WHEN jobs.limit_key IS NULL THEN age_from ELSE {sql.after(seconds, 'age_from')} END"
