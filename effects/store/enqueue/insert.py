"""Writing jobs and their intents, in the caller's transaction.

A job by itself by the statement of `enqueue_one`; of several a thousand by one on PostgreSQL, and by a few on SQLite.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from sqlalchemy import Connection

from effects.store.db.sql import Sql
from effects.store.db.store import Store, as_json
from effects.store.enqueue.copy import ROWS_MAX, can_copy, copy_jobs
from effects.store.enqueue.insert_one import insert_job, next_id
from effects.store.enqueue.new_rows import JobRow, ReservedJob

BATCH = 1000


INTO = (
    "id, job_type, queue, priority, payload, status, routed, run_at, age_from, expires_at, max_attempts, group_key, "
    "limit_key, idempotency_key, trace_context, on_unknown, requeued_from, created_at, updated_at"
)


def values_from(sql: Sql, identity: str) -> str:
    run_at = f"COALESCE({sql.time('r.run_at')}, {sql.after('r.delay')}, {sql.now})"
    return (
        f"{identity}, r.job_type, r.queue, r.priority, r.payload, 'queued', true, {run_at}, {run_at}, "
        f"{sql.time('r.expires_at')}, r.max_attempts, r.group_key, r.limit_key, r.key, r.trace_context, "
        f"r.on_unknown, r.requeued_from, {sql.now}, {sql.now}"
    )


def _insert(sql: Sql) -> str:
    """PostgreSQL: ids, intents and jobs at once. A row whose key is taken is left out of the answer."""
    return f"""
    WITH r AS MATERIALIZED (
        SELECT COALESCE(given.id, {next_id(sql)}) AS new_id, given.*
        FROM {sql.rows("rows", JobRow)} AS given ORDER BY given.n
    ), intended AS (
        INSERT INTO {sql.effect_ledger} (job_type, key, digest, job_id, created_at, updated_at)
        SELECT job_type, key, digest, new_id, {sql.now}, {sql.now} FROM r WHERE digest IS NOT NULL
        ON CONFLICT DO NOTHING RETURNING job_id
    ), inserted AS (
        INSERT INTO {sql.jobs} ({INTO})
        SELECT {values_from(sql, "r.new_id")} FROM r
        WHERE r.digest IS NULL OR r.new_id IN (SELECT job_id FROM intended) ORDER BY r.n
        RETURNING id
    )
    SELECT r.n, r.new_id FROM r WHERE r.new_id IN (SELECT id FROM inserted) ORDER BY r.n"""


def _intend(sql: Sql) -> str:
    return f"""
    INSERT INTO {sql.effect_ledger} (job_type, key, digest, job_id, created_at, updated_at)
    SELECT r.job_type, r.key, r.digest, r.id, {sql.now}, {sql.now} FROM {sql.rows("rows", JobRow)} AS r
    WHERE r.digest IS NOT NULL ORDER BY r.n ON CONFLICT DO NOTHING RETURNING job_id"""


def insert_with_ids(sql: Sql) -> str:
    return f"""
    INSERT INTO {sql.jobs} ({INTO})
    SELECT {values_from(sql, "r.id")} FROM {sql.rows("rows", JobRow)} AS r WHERE true ORDER BY r.n"""


def insert_jobs(store: Store, connection: Connection, rows: Sequence[JobRow]) -> dict[int, int]:
    """Insert the rows and, for those with a digest, their intents in `effects_effect_ledger`.

    Returns:
        `n` → job id of every row that was inserted. A row that is missing lost to an earlier holder of
        its key; it was not written.
    """
    if len(rows) == 1 and rows[0].id is None:
        return _insert_one(store, connection, rows[0])
    inserted: dict[int, int] = {}
    lock_groups(store, connection, groups_of(row for row in rows if row.id is None))  # those with ids came before them
    insert = _insert_postgresql if store.is_postgresql else _insert_sqlite
    size, insert = (ROWS_MAX, _copy) if can_copy(store, connection, len(rows)) else (BATCH, insert)
    for start in range(0, len(rows), size):
        inserted.update(insert(store, connection, rows[start : start + size]))
    return inserted


def _insert_one(store: Store, connection: Connection, row: JobRow) -> dict[int, int]:
    if row.group_key is not None and not store.is_postgresql:  # there the statement itself does it
        lock_groups(store, connection, [row.group_key])
    job_id = insert_job(store, connection, row)
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
    store.write(connection, insert_with_ids, rows=as_json(rows))
    return {row.n: row.id for row in rows if row.id is not None}


def reserve_rows(store: Store, connection: Connection, rows: Sequence[JobRow]) -> list[ReservedJob]:
    """Give the rows their ids, under the locks of their groups; they are inserted later in the same transaction."""
    ids = reserve_ids(store, connection, len(rows), groups_of(rows))
    for row, job_id in zip(rows, ids, strict=True):
        row.id = job_id
    return [ReservedJob(job_id, row) for row, job_id in zip(rows, ids, strict=True)]


def groups_of(rows: Iterable[JobRow]) -> set[str]:
    return {row.group_key for row in rows if row.group_key is not None}


def _reserve_postgresql(sql: Sql) -> str:
    return f"SELECT {next_id(sql)} AS id FROM generate_series(1, :count)"


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
