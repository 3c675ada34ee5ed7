"""Reading for people: one job, and one effect by its key. The list of jobs: `job_list`.

No payload is read here: neither a screen nor a script's JSON may contain personal data.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec
from sqlalchemy import Connection

from effects.errors import JobNotFound, KeyAmbiguous, QueueNotFound, UnknownJobType
from effects.kit.text.unsafe import nearest, whole_number
from effects.model.ledger import Ledger, LedgerRow
from effects.store.db.records import (
    ActionRecord,
    AttemptRecord,
    EffectStory,
    JobRecord,
    WorkerSilence,
    action_record,
    attempt_record,
    job_record,
    record,
)
from effects.store.db.sql import Sql
from effects.store.db.store import Store, as_json
from effects.store.queue.table_ledger import all_ledgers, states

# -- jobs ------------------------------------------------------------------------------------------------


_PLAIN = (
    "id, job_type, status, queue, priority, attempts, max_attempts, idempotency_key, group_key, limit_key, error_code, "
    "last_error, requeued_from"
)


def live_columns(sql: Sql) -> str:
    """What a `JobRecord` has of a live job."""
    return f"""
    {_PLAIN}, cancel_requested, locked_by AS worker, {sql.epoch("created_at")} AS created_at,
    {sql.epoch("run_at")} AS run_at, {sql.epoch("expires_at")} AS expires_at, {sql.epoch("started_at")} AS started_at,
    CAST(NULL AS double precision) AS finished_at"""


def ended_columns(sql: Sql) -> str:
    """What a `JobRecord` has of an ended job."""
    return f"""
    {_PLAIN}, false AS cancel_requested, CAST(NULL AS text) AS worker, {sql.epoch("created_at")} AS created_at,
    {sql.epoch("run_at")} AS run_at, {sql.epoch("expires_at")} AS expires_at,
    CAST(NULL AS double precision) AS started_at, {sql.epoch("finished_at")} AS finished_at"""


def _jobs_by_id(sql: Sql) -> str:
    condition = f"WHERE id {sql.any_of('ids', 'int')}"
    return f"""
    SELECT {live_columns(sql)} FROM {sql.jobs} {condition}
    UNION ALL SELECT {ended_columns(sql)} FROM {sql.job_history} {condition}"""


def _attempts(sql: Sql) -> str:
    return f"{_logged(sql)} WHERE a.job_id {sql.any_of('ids', 'int')} ORDER BY a.job_id, a.lease_token"


def _last_attempts(sql: Sql) -> str:
    """Each job's are numbered, newest first, since a look into the view for each of them would walk through it."""
    return f"""
    SELECT * FROM (
        SELECT logged.*, row_number() OVER (PARTITION BY job_id ORDER BY lease_token DESC) AS place
        FROM ({_logged(sql)} WHERE a.job_id {sql.any_of("ids", "int")}) AS logged
    ) AS numbered WHERE place = 1 ORDER BY job_id, lease_token"""


def last_attempts(store: Store, connection: Connection, job_ids: Sequence[int]) -> dict[int, AttemptRecord]:
    """The newest attempt of each of these jobs that was tried."""
    rows = store.all(connection, _last_attempts, ids=as_json(list(job_ids)))
    return {row.job_id: attempt_record(row) for row in rows}


def _logged(sql: Sql) -> str:
    return f"""
    SELECT job_id, lease_token, attempt,
        {sql.epoch("started_at")} AS started_at, {sql.epoch("finished_at")} AS finished_at,
        {sql.seconds("started_at", "finished_at")} AS seconds, worker, outcome, verdict, error_type,
        error_code, message, stack, {sql.json_text("detail")} AS detail,
        {sql.json_text("error_text")} AS error_text, {sql.json_text("result")} AS result,
        late_outcome, late_verdict, late_code, late_message, {sql.epoch("late_at")} AS late_at
    FROM {sql.job_attempts} AS a"""


def _actions(sql: Sql) -> str:
    return f"""
    SELECT job_id, action, actor, reason, {sql.epoch("created_at")} AS created_at
    FROM {sql.job_actions} WHERE job_id {sql.any_of("ids", "int")} ORDER BY id"""


def read_job(
    store: Store, connection: Connection, ledgers: Mapping[str, Ledger], job_id: int, *, earlier: bool = False
) -> EffectStory:
    """One job, live or ended, with its attempts and actions.

    Args:
        earlier: with the jobs that it was requeued from, and their attempts and actions, too.

    Raises:
        JobNotFound: no job has this id.
    """
    ids = chain_ids(store, connection, job_id) if earlier else [job_id]
    jobs = _read_jobs(store, connection, ids)
    if not jobs:
        raise JobNotFound(f"job {job_id} not found")
    attempts, actions = _read_log(store, connection, ids)
    ledger, state = _ledger_word(store, connection, ledgers, job_id)
    key = jobs[0].key
    return EffectStory(
        key=key,
        state=state,
        ledger=ledger.table if ledger is not None else None,
        about=ledger.about(store, connection, key) if ledger is not None and key is not None else {},
        job_type=jobs[0].job_type,
        jobs=jobs,
        attempts=attempts,
        actions=actions,
    )


def read_silence(store: Store, connection: Connection, job_id: int) -> WorkerSilence | None:
    """Since when the worker of a running job has not been heard of; None where it sends its heartbeats."""
    row = store.row(connection, _silence, id=job_id)
    return None if row is None else record(WorkerSilence, row)


def _silence(sql: Sql) -> str:
    lease_end = sql.after("w.lease_seconds", "w.seen_at")
    taken_back_at = sql.smallest(f"COALESCE(j.locked_until, {lease_end})", lease_end)
    return f"""
    SELECT {sql.seconds("w.seen_at")} AS seconds, {sql.epoch("w.seen_at")} AS seen_at,
        {sql.epoch(taken_back_at)} AS taken_back_at
    FROM {sql.jobs} AS j JOIN {sql.workers} AS w ON w.id = j.locked_by
    WHERE j.id = :id AND j.status = 'running' AND {sql.is_silent("w.")}"""


def _has_type(sql: Sql) -> str:
    return _has(sql, "job_type")


def _has_queue(sql: Sql) -> str:
    return _has(sql, "queue")


def _has(sql: Sql, column: str) -> str:
    tables = (sql.jobs, sql.job_history, sql.rollups)
    return f"SELECT {' OR '.join(f'EXISTS (SELECT 1 FROM {table} WHERE {column} = :name)' for table in tables)}"


def refuse_unknown_type(store: Store, connection: Connection, name: str, registered: Sequence[str]) -> None:
    """Refuse a job type that is not registered and that no job has or had: it is probably mistyped.

    Raises:
        UnknownJobType: names the most similar one.
    """
    if name not in registered and not store.value(connection, _has_type, name=name):
        raise UnknownJobType(f"no job type {name!r} is registered here, and no job has it{nearest(name, registered)}")


def refuse_unknown_queue(store: Store, connection: Connection, name: str, app_queues: Sequence[str]) -> None:
    """Refuse a queue that no job type has, and no job has or had: it is probably mistyped.

    Raises:
        QueueNotFound: names the most similar one.
    """
    if name not in app_queues and not store.value(connection, _has_queue, name=name):
        raise QueueNotFound(f"no job and no job type has the queue {name!r}{nearest(name, app_queues)}")


def _ledger_word(
    store: Store, connection: Connection, ledgers: Mapping[str, Ledger], job_id: int
) -> tuple[Ledger | None, str | None]:
    """The ledger that has a row of this job, and its state."""
    for ledger in all_ledgers(ledgers):
        if (state := states(store, connection, ledger.table, [job_id]).get(job_id)) is not None:
            return ledger, state
    return None, None


def _read_jobs(store: Store, connection: Connection, ids: Sequence[int]) -> list[JobRecord]:
    """Newest first."""
    records = {row.id: job_record(row) for row in store.all(connection, _jobs_by_id, ids=as_json(ids))}
    return [records[job_id] for job_id in sorted(records, reverse=True)]


def _read_log(
    store: Store, connection: Connection, ids: Sequence[int]
) -> tuple[list[AttemptRecord], list[ActionRecord]]:
    attempts = [attempt_record(row) for row in store.all(connection, _attempts, ids=as_json(ids))]
    actions = [action_record(row) for row in store.all(connection, _actions, ids=as_json(ids))]
    return attempts, actions


# -- one effect ------------------------------------------------------------------------------------------


def _chain(sql: Sql) -> str:
    """A job and those that it was requeued from. UNION ends it where a row from outside leads back into the chain."""
    return f"""
    WITH RECURSIVE chain(id, source) AS (
        SELECT id, requeued_from FROM (
            SELECT id, requeued_from FROM {sql.jobs} WHERE id = :id
            UNION ALL SELECT id, requeued_from FROM {sql.job_history} WHERE id = :id) AS first
        UNION
        SELECT h.id, h.requeued_from FROM chain JOIN {sql.job_history} AS h ON h.id = chain.source
    )
    SELECT id FROM chain"""


def chain_ids(store: Store, connection: Connection, job_id: int) -> list[int]:
    """A job and those that it was requeued from, newest first."""
    return [row.id for row in store.all(connection, _chain, id=job_id)]


def find_effects(store: Store, connection: Connection, ledgers: Mapping[str, Ledger], key: str) -> list[EffectStory]:
    """The effects that `key` may mean, over the core's ledger and those of every package.

    Raises:
        JobNotFound: no ledger knows the key.
    """
    stories = [
        _story(store, connection, ledger, row)
        for ledger in all_ledgers(ledgers)
        for row in ledger.find(store, connection, key)
    ]
    if not stories:
        reasons = [ledger.why_none(store, connection, key) for ledger in all_ledgers(ledgers)]
        raise JobNotFound(next(filter(None, reasons), f"no effect with key {key!r}"))
    return stories


class Named(msgspec.Struct, frozen=True, kw_only=True):
    """What a person means by a name: some effects, or all jobs of these limit keys.

    Args:
        effects: each by its newest job.
        spanning: the ledger that has them, where many jobs make one of its effects.
        is_group: the name is of something that has these effects, such as an event; acting on it is acting on many.
    """

    name: str
    effects: tuple[LedgerRow, ...] = ()
    spanning: Ledger | None = None
    limit_keys: tuple[str, ...] = ()
    is_group: bool = False


def find_named(
    store: Store,
    connection: Connection,
    ledgers: Mapping[str, Ledger],
    name: str,
    job_type: str | None = None,
    *,
    as_key: bool = False,
) -> Named:
    """What is meant by the id of a job (`4`, or `job:4`), a key, or what a package knows its effects by.

    Args:
        job_type: of the effect, where effects of several have this key.
        as_key: a number is no job's id.

    Raises:
        JobNotFound: nothing has this name.
        KeyAmbiguous: it is a job's id and another effect's key, or the key of effects of several job types.
    """
    job_id = whole_number(name.removeprefix("job:"), 18)
    if as_key or (job_id is not None and not chain_ids(store, connection, job_id)):
        job_id = None
    held = [(ledger, row) for ledger in all_ledgers(ledgers) for row in ledger.holders(store, connection, name)
            if job_type in (None, row.job_type or job_type)]  # fmt: skip
    if job_id is not None and all(row.job_id == job_id for _, row in held):
        return Named(name=name, effects=(LedgerRow("", "", job_id),))
    if job_id is not None or len(held) > 1:
        types = ", ".join(sorted(row.job_type for _, row in held))
        meant = f"job:{name} for the job, --key {name} for the effect" if job_id is not None else f"--type: {types}"
        raise KeyAmbiguous(f"{name!r} may mean several effects: give {meant}")
    if held:
        return Named(name=name, effects=(held[0][1],))
    for ledger in all_ledgers(ledgers):
        if keys := ledger.limit_keys(store, connection, name):
            return Named(name=name, limit_keys=tuple(keys), is_group=True)
        if rows := ledger.parts(store, connection, name):
            spanning = ledger if ledger.spans_jobs else None
            return Named(name=name, effects=tuple(rows), spanning=spanning, is_group=len(rows) > 1)
    if store.value(connection, _has_limit_key, key=name):
        return Named(name=name, limit_keys=(name,), is_group=True)
    reasons = [ledger.why_none(store, connection, name) for ledger in all_ledgers(ledgers)]
    raise JobNotFound(next(filter(None, reasons), f"no job and no effect is named {name!r}"))


def _has_limit_key(sql: Sql) -> str:
    tables = (sql.jobs, sql.unresolved)
    return f"SELECT {' OR '.join(f'EXISTS (SELECT 1 FROM {table} WHERE limit_key = :key)' for table in tables)}"


def newest_jobs(store: Store, connection: Connection, ledgers: Mapping[str, Ledger], key: str) -> list[int]:
    """The newest job of each effect that `key` may mean."""
    return [row.job_id for ledger in all_ledgers(ledgers) for row in ledger.find(store, connection, key)]


def _story(store: Store, connection: Connection, ledger: Ledger, row: LedgerRow) -> EffectStory:
    ids = chain_ids(store, connection, row.job_id)
    jobs = _read_jobs(store, connection, ids)
    attempts, actions = _read_log(store, connection, ids)
    return EffectStory(
        key=row.key,
        state=row.state,
        ledger=ledger.table,
        about=ledger.about(store, connection, row.key),
        job_type=jobs[0].job_type if jobs else "",
        jobs=jobs,
        attempts=attempts,
        actions=actions,
    )
