"""Requeue: the only place that carries out an ended job again: it reads its standing, and writes the new job.

`jobs requeue`, `dead requeue`, `dead resolve --as requeue` and the packages' commands all call it. Whether it may be is
`objection` (`effects.model.standing`).
"""

from __future__ import annotations

from functools import cache
from typing import Any

import msgspec
from sqlalchemy import Connection, Row

from effects.errors import JobStateError
from effects.model.advice import Instead
from effects.model.job_type import JobType
from effects.model.ledger import Ledger
from effects.model.registry import Registry
from effects.model.standing import EffectState, Standing, ended_only, objection
from effects.store.audit_log.notes import AuditAction, note, of_bulk
from effects.store.db.sql import Sql
from effects.store.db.store import Statement, Store
from effects.store.enqueue.insert import insert_jobs
from effects.store.enqueue.new_rows import JobRow
from effects.store.operator.actions import record_action, wrong_state
from effects.store.queue.table_ledger import CORE_LEDGER
from effects.store.queue.unresolved import GIVE_UP, IGNORE, MARK_DONE, REQUEUE

# Words of `effects_job_actions.action` at the new job: what let it pass. `even_if_done` starts its effect afresh: the
# ledger's fold looks at no job before it.
EVEN_IF_DONE, EVEN_IF_UNKNOWN, BY_POLICY = "even_if_done", "even_if_unknown", "repeat_policy"

_REQUEUE_JOB = AuditAction("job", REQUEUE)


class Requeued(msgspec.Struct, frozen=True):
    """The new job of a requeue, and the queue whose workers should hear of it."""

    job_id: int
    queue: str


def requeue(
    store: Store,
    job_types: Registry,
    job_id: int,
    *,
    confirm_unknown: bool = False,
    confirm_done: bool = False,
    actor: str,
    reason: str | None = None,
    bulk_id: int | None = None,
    tenant: str | None = None,
    connection: Connection | None = None,
) -> Requeued:
    """Carry out the effect of an ended job again, as a new job; the old row stays as it is.

    The effect's ledger row moves to the new job: refused, abandoned or done becomes intended, unknown stays unknown
    until an attempt is done. `expires_at` is not copied: the operator's decision is newer. Actor and reason are
    recorded at the old job, what let it pass at the new one, and both in the audit log, in the same transaction; a
    crash before its commit leaves nothing. Of several concurrent calls one succeeds.

    Args:
        job_types: the registered job types, for their policies and ledgers.
        confirm_unknown: requeue even if the effect may have happened. Not needed with the policy `repeat`.
        confirm_done: also an effect that is done: it is carried out once more.
        actor: who requeues, such as `cli:ann`.
        bulk_id: the bulk action that this is a part of, for the audit log.
        tenant: whose effect it is, for the audit log.
        connection: the caller's transaction, where it has more to do; default one of our own.

    Raises:
        JobNotFound: there is no such job.
        JobStateError: it has not ended, it was requeued already, another job holds its key by now, or its effect is
            done or unknown without confirmation; the message tells which.
        StoreUnavailable: the database is unavailable (without `connection`). Calling again is safe.
    """
    with store.joined(connection) as joined:
        return _requeue(store, job_types, joined, job_id, confirm_unknown, confirm_done, actor, reason, bulk_id, tenant)


def _requeue(
    store: Store,
    job_types: Registry,
    connection: Connection,
    job_id: int,
    confirm_unknown: bool,
    confirm_done: bool,
    actor: str,
    reason: str | None,
    bulk_id: int | None,
    tenant: str | None,
) -> Requeued:
    row = store.row(connection, _lock_ended, id=job_id)
    if row is None:
        raise wrong_state(store, connection, job_id, ended_only(job_id))
    table = _ledger_of(job_types, row.job_type).table
    store.row(connection, _lock_effect(table), id=job_id)
    standing = read_standing(store, connection, job_types, job_id)
    refusal = objection(standing, confirm_unknown=confirm_unknown, confirm_done=confirm_done)
    if refusal is not None:
        raise JobStateError(refusal.text, code=refusal.code)
    new_id = _insert_copy(store, connection, row)
    if row.idempotency_key is not None:
        store.write(connection, _move(table), old=job_id, new=new_id)
    record_action(store, connection, job_id, REQUEUE, actor, reason)
    passed_by = _passed_by(standing, confirm_unknown)
    if passed_by is not None:
        record_action(store, connection, new_id, passed_by, actor, reason)
    detail = {"new_job": new_id, **({"passed_by": passed_by} if passed_by is not None else {}), **of_bulk(bulk_id)}
    note(store, connection, _REQUEUE_JOB, job_id, actor=actor, reason=reason, detail=detail, tenant=tenant)
    return Requeued(new_id, row.queue)


def _passed_by(standing: Standing, confirm_unknown: bool) -> str | None:
    """The override to record with the new job, by which a done or unknown effect was allowed."""
    if standing.effect == "done":
        return EVEN_IF_DONE
    if standing.effect == "unknown":
        return EVEN_IF_UNKNOWN if confirm_unknown else BY_POLICY
    return None


def newest_job(store: Store, connection: Connection, job_id: int) -> int:
    """The job that a job was requeued as, and that one in turn; the job itself if it was not.

    Only ever a later one: a row that was written from outside may name itself.
    """
    while (successor := store.row(connection, _successor, id=job_id)) is not None and successor.id > job_id:
        job_id = successor.id
    return job_id


def read_standing(store: Store, connection: Connection, job_types: Registry, job_id: int) -> Standing:
    """The current state of a job and its effect.

    Raises:
        JobNotFound: there is no such job.
    """
    row = store.row(connection, _facts, id=job_id)
    if row is None:
        raise wrong_state(store, connection, job_id, "")
    successor = store.row(connection, _successor, id=job_id)
    job_type = job_types.get(row.job_type) if row.job_type in job_types else None
    policy = row.on_unknown or (job_type.on_unknown if job_type is not None else None)
    return Standing(
        job_id=job_id,
        job_type=row.job_type,
        status=row.status,
        effect=_effect(store, connection, row, _ledger_of(job_types, row.job_type)),
        key=row.idempotency_key,
        repeats=policy == "repeat",
        registered=job_type is not None,
        successor=(successor.id, successor.status) if successor is not None else None,
        closed_by=store.value(connection, _closed_by, id=job_id),
        instead=_instead(job_type, row) if job_type is not None else None,
    )


def _instead(job_type: JobType[Any], row: Row[Any]) -> Instead | None:
    """What the package advises. It is advice alone: a package that fails at this row keeps no one from the job."""
    try:
        return job_type.instead_of_requeue(row.idempotency_key, row.error_code)
    except Exception:
        return None


def _effect(store: Store, connection: Connection, row: Row[Any], ledger: Ledger) -> EffectState:
    """The effect's state by its ledger; without a key by the jobs, back to the first of the requeue chain."""
    if ledger.spans_jobs:
        return "shared"
    if row.idempotency_key is None:
        weight = store.value(connection, _keyless_effect, id=row.id)
        states: tuple[EffectState, ...] = ("not_done", "unknown", "done")
        return states[int(weight or 0)]
    state = store.value(connection, _state(ledger.table), id=row.id)
    if state is None:
        return "elsewhere"
    if state == "done" or row.status == "succeeded":
        return "done"
    return "unknown" if state in ("unknown", "released") else "not_done"


def _ledger_of(job_types: Registry, name: str) -> Ledger:
    ledger = job_types.get(name).ledger if name in job_types else None
    return ledger or CORE_LEDGER


def _insert_copy(store: Store, connection: Connection, row: Row[Any]) -> int:
    job = JobRow(
        n=0,
        job_type=row.job_type,
        queue=row.queue,
        priority=row.priority,
        payload=msgspec.Raw(row.payload.encode()),
        run_at=None,
        expires_at=None,
        max_attempts=row.max_attempts,
        group_key=row.group_key,
        limit_key=row.limit_key,
        key=row.idempotency_key,
        digest=None,
        trace_context=row.trace_context,
        on_unknown=row.on_unknown,
        requeued_from=row.id,
    )
    new_id = insert_jobs(store, connection, [job])[job.n]
    if row.definition_id is not None:  # it is still that schedule's job, at that slot
        store.write(connection, _inherit, old=row.id, new=new_id)
    return new_id


# -- the statements --------------------------------------------------------------------------------------


def _lock_ended(sql: Sql) -> str:
    """Two requeues of one job wait here for each other."""
    return f"""
    SELECT id, job_type, {sql.json_text("payload")} AS payload, queue, priority, max_attempts, group_key,
        limit_key, idempotency_key, definition_id, trace_context, on_unknown
    FROM {sql.job_history} WHERE id = :id {sql.lock(skip=False)}"""


def _facts(sql: Sql) -> str:
    columns = "id, job_type, status, idempotency_key, on_unknown, error_code"
    return f"""
    SELECT {columns} FROM {sql.jobs} WHERE id = :id UNION ALL SELECT {columns} FROM {sql.job_history} WHERE id = :id"""


def _successor(sql: Sql) -> str:
    return f"""
    SELECT id, status FROM {sql.jobs} WHERE requeued_from = :id
    UNION ALL SELECT id, status FROM {sql.job_history} WHERE requeued_from = :id ORDER BY id DESC LIMIT 1"""


def _closed_by(sql: Sql) -> str:
    words = ", ".join(f"'{word}'" for word in (IGNORE, MARK_DONE, GIVE_UP))
    return f"SELECT action FROM {sql.job_actions} WHERE job_id = :id AND action IN ({words}) ORDER BY id DESC LIMIT 1"


def _keyless_effect(sql: Sql) -> str:
    """2 done, 1 unknown, 0 not done. A requeued job whose successor left no trace is unknown."""
    said = f"SELECT 1 FROM {sql.job_actions} AS a WHERE a.job_id = chain.id AND a.action"
    return f"""
    WITH RECURSIVE chain(id, source) AS (
        SELECT id, requeued_from FROM {sql.job_history} WHERE id = :id
        UNION
        SELECT h.id, h.requeued_from FROM chain JOIN {sql.job_history} AS h ON h.id = chain.source
        WHERE NOT EXISTS ({said} = '{EVEN_IF_DONE}')
    )
    SELECT max(CASE
        WHEN h.status = 'succeeded' OR EXISTS ({said} = '{MARK_DONE}') THEN 2
        WHEN h.unknown_count > 0 OR h.id = :id AND EXISTS ({said} = '{REQUEUE}') THEN 1
        ELSE 0 END)
    FROM chain JOIN {sql.job_history} AS h ON h.id = chain.id"""


def _inherit(sql: Sql) -> str:
    old = f"FROM {sql.job_history} WHERE id = :old"
    return f"""
    UPDATE {sql.jobs} SET definition_id = (SELECT definition_id {old}), slot = (SELECT slot {old}) WHERE id = :new"""


@cache
def _lock_effect(table: str) -> Statement:
    def build(sql: Sql) -> str:
        return f"SELECT job_id FROM {getattr(sql, table)} WHERE job_id = :id {sql.lock(skip=False)}"

    return build


@cache
def _state(table: str) -> Statement:
    def build(sql: Sql) -> str:
        return f"SELECT state FROM {getattr(sql, table)} WHERE job_id = :id"

    return build


@cache
def _move(table: str) -> Statement:
    def build(sql: Sql) -> str:
        return f"""
        UPDATE {getattr(sql, table)} SET job_id = :new, updated_at = {sql.now},
            state = CASE WHEN state IN ('refused', 'abandoned', 'done') THEN 'intended' ELSE state END
        WHERE job_id = :old"""

    return build
