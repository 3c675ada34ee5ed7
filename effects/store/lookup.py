"""Reading for people: one job, a list of them, and one effect by its key.

No payload is read here: what a person sees on a screen or in a script's JSON must hold nothing personal.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec
from sqlalchemy import Connection

from effects.errors import JobNotFound
from effects.store.ledger import Ledger, LedgerRow, all_ledgers, states
from effects.store.records import (
    ActionRecord,
    AttemptRecord,
    EffectStory,
    JobRecord,
    JobStory,
    action_record,
    attempt_record,
    job_record,
    moment,
)
from effects.store.sql import Sql
from effects.store.store import Store, as_json

LIST_MAX = 10_000


class Filters(msgspec.Struct, frozen=True, kw_only=True):
    """What `list_jobs` shows; None is no filter."""

    status: str | None = None
    job_type: str | None = None
    queue: str | None = None
    key: str | None = None
    limit: int = 50


# -- jobs ------------------------------------------------------------------------------------------------


_PLAIN = (
    "id, job_type, status, queue, priority, attempts, max_attempts, idempotency_key, group_key, limit_key, error_code, "
    "last_error, requeued_from"
)


def _live(sql: Sql) -> str:
    return f"""
    {_PLAIN}, cancel_requested, locked_by AS worker, {sql.epoch("created_at")} AS created_at,
    {sql.epoch("run_at")} AS run_at, {sql.epoch("expires_at")} AS expires_at, {sql.epoch("started_at")} AS started_at,
    CAST(NULL AS double precision) AS finished_at"""


def _ended(sql: Sql) -> str:
    return f"""
    {_PLAIN}, false AS cancel_requested, CAST(NULL AS text) AS worker, {sql.epoch("created_at")} AS created_at,
    {sql.epoch("run_at")} AS run_at, {sql.epoch("expires_at")} AS expires_at,
    CAST(NULL AS double precision) AS started_at, {sql.epoch("finished_at")} AS finished_at"""


def _jobs_by_id(sql: Sql) -> str:
    wanted = f"WHERE id {sql.any_of('ids', 'int')}"
    return f"""
    SELECT {_live(sql)} FROM {sql.jobs} {wanted}
    UNION ALL SELECT {_ended(sql)} FROM {sql.job_history} {wanted}"""


def _list(sql: Sql) -> str:
    """The newest of both tables, each read down its primary key."""
    pairs = (("status", "status"), ("job_type", "job_type"), ("queue", "queue"), ("idempotency_key", "key"))
    wanted = " AND ".join(
        f"(CAST(:{name} AS text) IS NULL OR {column} = CAST(:{name} AS text))" for column, name in pairs
    )
    newest = f"WHERE {wanted} ORDER BY id DESC LIMIT :limit"
    return f"""
    SELECT * FROM (SELECT {_live(sql)} FROM {sql.jobs} {newest}) AS live
    UNION ALL SELECT * FROM (SELECT {_ended(sql)} FROM {sql.job_history} {newest}) AS ended
    ORDER BY id DESC LIMIT :limit"""


def _attempts(sql: Sql) -> str:
    return f"""
    SELECT job_id, attempt, {sql.epoch("started_at")} AS started_at, {sql.epoch("finished_at")} AS finished_at,
        {sql.seconds("started_at", "finished_at")} AS seconds, worker, outcome, verdict, error_type,
        error_code, message, {sql.json_text("detail")} AS detail
    FROM {sql.job_attempts} WHERE job_id {sql.any_of("ids", "int")} ORDER BY job_id, lease_token"""


def _actions(sql: Sql) -> str:
    return f"""
    SELECT job_id, action, actor, reason, {sql.epoch("created_at")} AS created_at
    FROM {sql.job_actions} WHERE job_id {sql.any_of("ids", "int")} ORDER BY id"""


def get_job(store: Store, ledgers: Mapping[str, Ledger], job_id: int, *, earlier: bool = False) -> JobStory:
    """One job, live or ended, with its attempts and actions.

    Args:
        earlier: with the attempts and actions of the jobs that it was requeued from, too.

    Raises:
        JobNotFound: there is none of this id.
    """
    with store.read() as connection:
        jobs = _read_jobs(store, connection, [job_id])
        if not jobs:
            raise JobNotFound(f"there is no job {job_id}")
        state = None
        for ledger in all_ledgers(ledgers):
            state = state or states(store, connection, ledger.table, [job_id]).get(job_id)
        ids = [found.id for found in store.all(connection, _chain, id=job_id)] if earlier else [job_id]
        attempts, actions = _read_log(store, connection, ids)
    return JobStory(job=jobs[0], state=state, attempts=attempts, actions=actions)


def list_jobs(store: Store, filters: Filters) -> list[JobRecord]:
    """Live and ended jobs that match, newest first, at most `filters.limit` (10,000)."""
    with store.read() as connection:
        found = store.all(
            connection,
            _list,
            status=filters.status,
            job_type=filters.job_type,
            queue=filters.queue,
            key=filters.key,
            limit=min(filters.limit, LIST_MAX),
        )
        return [job_record(row) for row in found]


def _read_jobs(store: Store, connection: Connection, ids: Sequence[int]) -> list[JobRecord]:
    """Newest first."""
    found = {row.id: job_record(row) for row in store.all(connection, _jobs_by_id, ids=as_json(ids))}
    return [found[job_id] for job_id in sorted(found, reverse=True)]


def _read_log(
    store: Store, connection: Connection, ids: Sequence[int]
) -> tuple[list[AttemptRecord], list[ActionRecord]]:
    attempts = [attempt_record(row) for row in store.all(connection, _attempts, ids=as_json(ids))]
    actions = [action_record(row) for row in store.all(connection, _actions, ids=as_json(ids))]
    return attempts, actions


# -- one effect ------------------------------------------------------------------------------------------


def _chain(sql: Sql) -> str:
    """A job and those that it was requeued from."""
    return f"""
    WITH RECURSIVE chain(id, source) AS (
        SELECT id, requeued_from FROM (
            SELECT id, requeued_from FROM {sql.jobs} WHERE id = :id
            UNION ALL SELECT id, requeued_from FROM {sql.job_history} WHERE id = :id) AS first
        UNION ALL
        SELECT h.id, h.requeued_from FROM chain JOIN {sql.job_history} AS h ON h.id = chain.source
    )
    SELECT id FROM chain"""


def _pause(sql: Sql) -> str:
    return f"""
    SELECT {sql.epoch("l.paused_until")} AS paused_until, l.pause_reason FROM {sql.limits} AS own
    JOIN {sql.limits} AS l ON l.limit_key = own.limit_key OR l.limit_key = own.parent_key
    WHERE own.limit_key = :key AND l.paused_until > {sql.now} ORDER BY l.paused_until DESC LIMIT 1"""


def find_effects(store: Store, ledgers: Mapping[str, Ledger], key: str) -> list[EffectStory]:
    """The effects that `key` may mean, over the core's ledger and those of every package.

    Raises:
        JobNotFound: no ledger knows the key.
    """
    with store.read() as connection:
        stories = [
            _story(store, connection, ledger.table, row)
            for ledger in all_ledgers(ledgers)
            for row in ledger.find(store, connection, key)
        ]
        if not stories:
            found = [ledger.why_none(store, connection, key) for ledger in all_ledgers(ledgers)]
            raise JobNotFound(next(filter(None, found), f"no effect has the key {key!r}"))
    return stories


def _story(store: Store, connection: Connection, table: str, row: LedgerRow) -> EffectStory:
    ids = [found.id for found in store.all(connection, _chain, id=row.job_id)]
    jobs = _read_jobs(store, connection, ids)
    attempts, actions = _read_log(store, connection, ids)
    newest = jobs[0] if jobs else None
    pause = None
    if newest is not None and newest.finished_at is None and newest.limit_key is not None:
        pause = store.one(connection, _pause, key=newest.limit_key)
    return EffectStory(
        key=row.key,
        state=row.state,
        ledger=table,
        job_type=newest.job_type if newest else "",
        jobs=jobs,
        attempts=attempts,
        actions=actions,
        paused_until=moment(pause.paused_until) if pause else None,
        pause_reason=pause.pause_reason if pause else None,
    )
