"""Which job has a key: of those that came by a call, and of those that came by a plain INSERT."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import Connection

from effects.model.job import Job
from effects.store.db.sql import Sql
from effects.store.db.store import Store, as_json
from effects.store.enqueue.function import PROVISIONAL


def _holders(sql: Sql) -> str:
    return f"""
    SELECT l.job_type, l.key, l.digest, l.job_id
    FROM {sql.rows("rows", {"job_type": "text", "key": "text"})} AS r
    JOIN {sql.effect_ledger} AS l ON l.job_type = r.job_type AND l.key = r.key"""


def key_holders(
    store: Store, connection: Connection, keys: Sequence[tuple[str, str]]
) -> Mapping[tuple[str, str], tuple[str, int]]:
    """(job type, key) → (digest, job id) of those that the ledger knows."""
    pairs: list[dict[str, Any]] = [{"job_type": job_type, "key": key} for job_type, key in keys]
    holders = store.all(connection, _holders, rows=as_json(pairs))
    return {(row.job_type, row.key): (row.digest, row.job_id) for row in holders}


def _adopt(sql: Sql) -> str:
    return f"""
    INSERT INTO {sql.effect_ledger} (job_type, key, digest, job_id, created_at, updated_at)
    VALUES (:job_type, :key, :digest, :job_id, {sql.now}, {sql.now})
    ON CONFLICT (job_type, key) DO UPDATE SET digest = excluded.digest
    WHERE {sql.effect_ledger}.job_id = excluded.job_id AND {sql.effect_ledger}.digest LIKE '{PROVISIONAL}%'"""


def _refuse(sql: Sql) -> str:
    return f"""
    UPDATE {sql.effect_ledger} SET state = 'refused', updated_at = {sql.now}
    WHERE job_type = :job_type AND key = :key AND job_id = :job_id"""


def refuse_intent(store: Store, connection: Connection, job: Job) -> None:
    """End an intent of `adopt` whose job is refused, where its type's own ledger would never hear of it."""
    store.write(connection, _refuse, job_type=job.job_type, key=job.key, job_id=job.id)


def adopt(store: Store, connection: Connection, job: Job, digest: str) -> int:
    """Write the intent of a job that came by a plain INSERT; the id of the job that holds its key."""
    assert job.key is not None
    store.write(connection, _adopt, job_type=job.job_type, key=job.key, digest=digest, job_id=job.id)
    return key_holders(store, connection, [(job.job_type, job.key)])[job.job_type, job.key][1]
