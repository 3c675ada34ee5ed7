"""Writing jobs and their intents, in the caller's transaction.

A single job has a small statement of its own for each set of fields that are given, because an app waits for it; of
several, a thousand are written by one statement on PostgreSQL, and by a few on SQLite. Intents are rows of the core's
ledger or of a package's.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import datetime
from functools import cache, partial
from typing import Any

import msgspec
from sqlalchemy import Connection

from effects.store.db.sql import Sql, columns_of
from effects.store.db.store import Statement, Store, as_json
from effects.store.enqueue.copy import ROWS_MAX, can_copy, copy_jobs
from effects.store.enqueue.new_rows import FIELDS, KINDS, JobRow, ReservedJob, fields_used, insert_text, kinds_of


def _insert_job(store: Store, connection: Connection, row: JobRow) -> int | None:
    """Insert one job and, where it has a digest, its intent in `effects_effect_ledger`.

    One statement, of a job with a key two on SQLite.

    Returns:
        Its id; None if an earlier holder has its key, and nothing was written.
    """
    values = values_of(row)
    names = frozenset(values)
    if store.is_postgresql or row.digest is None:
        job_id: int | None = store.value(connection, _insert_of(names), **values)
        return job_id
    job_id = store.value(connection, _intend_next, job_type=row.job_type, key=row.key, digest=row.digest)
    if job_id is not None:
        del values["digest"]
        store.value(connection, _insert_of(names - {"digest"} | {"id"}), id=job_id, **values)
    return job_id


def values_of(row: JobRow) -> dict[str, Any]:
    """The parameters of a statement of `_insert_one_text`."""
    values = {name: value for name in _FIELDS if (value := getattr(row, name)) is not None}
    values["payload"] = bytes(row.payload).decode()
    return values


_FIELDS = tuple(name for name in FIELDS if name not in ("n", "id"))


@cache
def _insert_of(names: frozenset[str]) -> Statement:
    """Of a job of whose fields just these are given."""
    return lambda sql: _insert_one_text(sql, names, *_identity(sql, names))


def _insert_one_text(sql: Sql, names: Collection[str], withs: str, identity: str, source: str) -> str:
    """INSERT of the job of whose fields just these are given; gives its id.

    Args:
        withs: what goes before. identity, source: as for `insert_text`.
    """
    insert = insert_text(sql, names, partial(_value, sql), identity=identity, source=source)
    return f"{withs}{insert} RETURNING id"


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
        source, identity = "FROM grouped", _next_id(sql)
    if "digest" in names:
        withs.append(f"intended AS ({_intent(sql, _next_id(sql), source)} RETURNING job_id)")
        source, identity = "FROM intended", "job_id"
    return (f"WITH {', '.join(withs)} ", identity, source) if withs else ("", "", "")


def _next_id(sql: Sql) -> str:
    """PostgreSQL: the id of a new job."""
    return f"nextval('{sql.jobs}_id_seq')"


def _intent(sql: Sql, job_id: str, source: str) -> str:
    values = ", ".join(_value(sql, name) for name in ("job_type", "key", "digest"))
    where = "" if sql.postgresql else " WHERE true"  # or ON would be read as part of a join
    return (
        f"INSERT INTO {sql.effect_ledger} (job_type, key, digest, job_id, created_at, updated_at) "
        f"SELECT {values}, {job_id}, {sql.now}, {sql.now} {source}{where} ON CONFLICT DO NOTHING"
    )


def _intend_next(sql: Sql) -> str:
    """SQLite: the id that the job will have. No one else writes meanwhile."""
    return _intent(sql, "seq + 1", "FROM (SELECT seq FROM sqlite_sequence WHERE name = 'effects_jobs')") + (
        " RETURNING job_id"
    )


def _value(sql: Sql, name: str) -> str:
    return sql.bound(name, KINDS[name])


BATCH = 1000
_INTENT = kinds_of({"n", "id", "job_type", "key", "digest"})


def _insert(sql: Sql) -> str:
    """PostgreSQL: ids, intents and jobs at once. A row whose key is taken is left out of the answer."""
    return f"""
    WITH r AS MATERIALIZED (
        SELECT COALESCE(given.id, {_next_id(sql)}) AS new_id, given.*
        FROM {sql.rows("rows", JobRow)} AS given ORDER BY given.n
    ), intended AS (
        INSERT INTO {sql.effect_ledger} (job_type, key, digest, job_id, created_at, updated_at)
        SELECT job_type, key, digest, new_id, {sql.now}, {sql.now} FROM r WHERE digest IS NOT NULL
        ON CONFLICT DO NOTHING RETURNING job_id
    ), inserted AS (
        {insert_text(sql, FIELDS, "r.{}".format, identity="r.new_id", source="FROM r")}
        WHERE r.digest IS NULL OR r.new_id IN (SELECT job_id FROM intended) ORDER BY r.n
        RETURNING id
    )
    SELECT r.n, r.new_id FROM r WHERE r.new_id IN (SELECT id FROM inserted) ORDER BY r.n"""


def _intend(sql: Sql) -> str:
    return f"""
    INSERT INTO {sql.effect_ledger} (job_type, key, digest, job_id, created_at, updated_at)
    SELECT r.job_type, r.key, r.digest, r.id, {sql.now}, {sql.now} FROM {sql.rows("rows", _INTENT)} AS r
    WHERE r.digest IS NOT NULL ORDER BY r.n ON CONFLICT DO NOTHING RETURNING job_id"""


@cache
def _insert_with_ids(fields: frozenset[str]) -> Statement:
    return lambda sql: insert_text(
        sql,
        fields,
        "r.{}".format,
        identity="r.id",
        source=f"FROM {sql.rows('rows', kinds_of(fields))} AS r ORDER BY r.n",
    )


def insert_jobs(store: Store, connection: Connection, rows: Sequence[JobRow]) -> dict[int, int]:
    """Insert the rows and, for those with a digest, their intents in `effects_effect_ledger`.

    Returns:
        `n` → job id of every row that was inserted. A row that is missing lost to an earlier holder of
        its key; it was not written.
    """
    if len(rows) == 1 and rows[0].id is None:
        return _insert_one(store, connection, rows[0])
    inserted: dict[int, int] = {}
    lock_groups(store, connection, _groups_of(row for row in rows if row.id is None))  # those with ids came before them
    insert = _insert_postgresql if store.is_postgresql else _insert_sqlite
    size, insert = (ROWS_MAX, _copy) if can_copy(store, connection, len(rows)) else (BATCH, insert)
    for start in range(0, len(rows), size):
        inserted.update(insert(store, connection, rows[start : start + size]))
    return inserted


def _insert_one(store: Store, connection: Connection, row: JobRow) -> dict[int, int]:
    if row.group_key is not None and not store.is_postgresql:  # there the statement itself does it
        lock_groups(store, connection, [row.group_key])
    job_id = _insert_job(store, connection, row)
    return {} if job_id is None else {row.n: job_id}


def _copy(store: Store, connection: Connection, rows: Sequence[JobRow]) -> dict[int, int]:
    def intend(keyed: Sequence[JobRow]) -> set[int]:
        return _intended(store, connection, keyed)

    copied = copy_jobs(store, connection, rows, intend)
    if copied is not None:
        return copied
    copied = {}
    for start in range(0, len(rows), BATCH):
        copied.update(_insert_postgresql(store, connection, rows[start : start + BATCH]))
    return copied


def _intended(store: Store, connection: Connection, keyed: Sequence[JobRow]) -> set[int]:
    """Write the intents of these rows, which have their ids; the ids of those whose keys were free."""
    free: set[int] = set()
    for start in range(0, len(keyed), BATCH):
        rows = as_json(keyed[start : start + BATCH])
        free.update(row.job_id for row in store.all(connection, _intend, rows=rows))
    return free


def _insert_postgresql(store: Store, connection: Connection, rows: Sequence[JobRow]) -> dict[int, int]:
    inserted = store.all(connection, _insert, rows=as_json(rows))
    return {row.n: row.new_id for row in inserted}


def _insert_sqlite(store: Store, connection: Connection, rows: Sequence[JobRow]) -> dict[int, int]:
    fresh = iter(reserve_ids(store, connection, sum(row.id is None for row in rows)))
    for row in rows:
        if row.id is None:
            row.id = next(fresh)
    keyed = [row for row in rows if row.digest is not None]
    if keyed:
        won = _intended(store, connection, keyed)
        rows = [row for row in rows if row.digest is None or row.id in won]
    insert_with_ids(store, connection, rows)
    return {row.n: row.id for row in rows if row.id is not None}


def insert_with_ids(store: Store, connection: Connection, rows: Sequence[JobRow]) -> None:
    """SQLite: insert jobs that have their ids. It reads each row once for each field: only for those in use."""
    store.write(connection, _insert_with_ids(fields_used(rows)), rows=as_json(rows))


def reserve_rows(store: Store, connection: Connection, rows: Sequence[JobRow]) -> list[ReservedJob]:
    """Give the rows their ids, under the locks of their groups; they are inserted later in the same transaction."""
    ids = reserve_ids(store, connection, len(rows), _groups_of(rows))
    for row, job_id in zip(rows, ids, strict=True):
        row.id = job_id
    return [ReservedJob(job_id, row) for row, job_id in zip(rows, ids, strict=True)]


def _groups_of(rows: Iterable[JobRow]) -> set[str]:
    return {row.group_key for row in rows if row.group_key is not None}


def _reserve_postgresql(sql: Sql) -> str:
    return f"SELECT {_next_id(sql)} AS id FROM generate_series(1, :count)"


def _reserve_sqlite(sql: Sql) -> str:
    return "UPDATE sqlite_sequence SET seq = seq + :count WHERE name = 'effects_jobs' RETURNING seq"


def reserve_ids(store: Store, connection: Connection, count: int, groups: Collection[str] = ()) -> list[int]:
    """Reserve ids for jobs whose rows follow in the same transaction.

    `groups` are the group keys of those jobs: their locks come first, so that ids rise in the order of commit.
    """
    lock_groups(store, connection, groups)
    if count == 0:
        return []
    if store.is_postgresql:
        if count == 1:
            return [int(store.value(connection, _reserve_postgresql, count=1))]
        return [row.id for row in store.all(connection, _reserve_postgresql, count=count)]
    last = int(store.value(connection, _reserve_sqlite, count=count))
    return list(range(last - count + 1, last + 1))


def _lock_groups(sql: Sql) -> str:
    return f"""
    INSERT INTO {sql.job_groups} (group_key)
    SELECT group_key FROM {sql.rows("rows", {"group_key": "text"})} AS r WHERE true ORDER BY group_key
    ON CONFLICT (group_key) DO UPDATE SET group_key = excluded.group_key"""


def lock_groups(store: Store, connection: Connection, groups: Collection[str]) -> None:
    """Take the rows of these groups until the transaction ends.

    This makes the order strict: an enqueuer into a group waits for the previous one, and ids are
    given after the wait, so that they rise in the order of commit.
    """
    if groups:
        store.write(connection, _lock_groups, rows=as_json([{"group_key": group} for group in sorted(set(groups))]))


INTENTS = 500  # with their jobs, by one statement


@cache
def _insert_with(insert: Statement, intent: type[msgspec.Struct]) -> Statement:
    """PostgreSQL: ids, intents and jobs at once."""

    def build(sql: Sql) -> str:
        columns = {"n": "int", **columns_of(intent)}
        return f"""
        WITH r AS MATERIALIZED (
            SELECT {_next_id(sql)} AS new_id, given.* FROM {sql.rows("rows", JobRow)} AS given
            ORDER BY given.n
        ), i AS (
            SELECT given.*, r.new_id AS job_id FROM {sql.rows("intents", columns)} AS given JOIN r ON r.n = given.n
        ), intended AS (
            {insert(sql)}
        ), inserted AS (
            {insert_text(sql, FIELDS, "r.{}".format, identity="r.new_id", source="FROM r ORDER BY r.n")}
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
    lock_groups(store, connection, _groups_of(rows))
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
    insert_with_ids(store, connection, rows)
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
    lock_groups(store, connection, _groups_of([row]))
    job = values_of(row)
    names, kind = frozenset(job), type(intent)
    values = {f"intent_{name}": _bindable(value) for name, value in msgspec.structs.asdict(intent).items()}
    values.update(parameters)
    if store.is_postgresql:
        job_id: int | None = store.value(connection, _insert_both(names, insert, kind), **job, **values)
        return job_id
    [job_id] = reserve_ids(store, connection, 1)
    if store.value(connection, _intend_one_with(insert, kind), id=job_id, **values) is None:
        return None
    store.value(connection, _insert_of(names | {"id"}), id=job_id, **job)
    return job_id


def _bindable(value: Any) -> Any:
    return value.timestamp() if isinstance(value, datetime) else value


@cache
def _insert_both(names: frozenset[str], insert: Statement, intent: type[msgspec.Struct]) -> Statement:
    def build(sql: Sql) -> str:
        withs = f"WITH i AS ({_intent_of(sql, intent, _next_id(sql))}), intended AS ({insert(sql)} RETURNING job_id) "
        return _insert_one_text(sql, names, withs, "job_id", "FROM intended")

    return build


@cache
def _intend_one_with(insert: Statement, intent: type[msgspec.Struct]) -> Statement:
    return lambda sql: f"WITH i AS ({_intent_of(sql, intent, ':id')}) {insert(sql)} RETURNING job_id"


def _intent_of(sql: Sql, intent: type[msgspec.Struct], job_id: str) -> str:
    """A relation of one row: the fields of an intent, and its job."""
    fields = [f"{sql.bound(f'intent_{name}', kind)} AS {name}" for name, kind in columns_of(intent).items()]
    return f"SELECT {job_id} AS job_id, {', '.join(fields)}"
