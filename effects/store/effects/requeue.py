"""What a person decides about an ended job: requeue it, ignore it, or resolve its unknown effect.

Requeue is the only place that carries out an ended job again: it reads its standing, and writes the new job.

`effects retry`, `effects resolve --as retry`, bulk actions and the packages' calls all come here. Whether it may be is
`objection` (`effects.model.advice`). No resolution changes the job's own row.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any, Literal, TypeAlias

import msgspec
from sqlalchemy import Connection, Row

from effects.errors import JobStateError
from effects.kit.text.wording import shown_status
from effects.model.advice import EffectState, Instead, Standing, ended_only, objection
from effects.model.job_type import JobType
from effects.model.ledger import Ledger
from effects.model.registry import Registry
from effects.store.audit_log import AuditAction, note, of_bulk
from effects.store.db.sql import Sql
from effects.store.db.store import Statement, Store
from effects.store.enqueue.insert import insert_jobs
from effects.store.enqueue.new_rows import copied_columns, copy_of
from effects.store.queue import cancellation
from effects.store.queue.cancellation import wrong_state
from effects.store.queue.table_ledger import CORE_LEDGER, all_ledgers
from effects.store.queue.unresolved import (
    GIVE_UP,
    IGNORE,
    MARK_DONE,
    NOT_DONE,
    REQUEUE,
    closing_actions,
    is_unknown,
    record_action,
)

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
    if row.job_type in job_types:
        is_done = standing.effect == "done"
        job_types.get(row.job_type).before_retry(connection, job_id, standing.key, done=is_done)
    job = copy_of(row)
    new_id = insert_jobs(store, connection, [job])[job.n]
    if job.key is not None:
        store.write(connection, _move(table), old=job_id, new=new_id)
    record_action(store, connection, job_id, REQUEUE, actor, reason)
    passed_by = _passed_by(standing, confirm_unknown)
    if passed_by is not None:
        record_action(store, connection, new_id, passed_by, actor, reason)
    detail = {"new_job": new_id, **({"passed_by": passed_by} if passed_by is not None else {}), **of_bulk(bulk_id)}
    note(store, connection, _REQUEUE_JOB, job_id, actor=actor, reason=reason, detail=detail, tenant=tenant)
    return Requeued(new_id, job.queue)


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
        status=shown_status(row.status),
        effect=_effect(store, connection, row, _ledger_of(job_types, row.job_type)),
        key=row.idempotency_key,
        repeats=policy == "repeat",
        registered=job_type is not None,
        successor=(successor.id, shown_status(successor.status)) if successor is not None else None,
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


# -- the statements --------------------------------------------------------------------------------------


def _lock_ended(sql: Sql) -> str:
    """Two requeues of one job wait here for each other."""
    return f"""
    SELECT id, {copied_columns(sql)} FROM {sql.job_history} WHERE id = :id {sql.lock(skip=False)}"""


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
        WHEN h.unknown_count > 0 AND NOT EXISTS ({said} = '{NOT_DONE}')
            OR h.id = :id AND EXISTS ({said} = '{REQUEUE}') THEN 1
        ELSE 0 END)
    FROM chain JOIN {sql.job_history} AS h ON h.id = chain.id"""


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


Resolution: TypeAlias = Literal["requeue", "mark-done", "give-up"]
RESOLUTIONS: tuple[Resolution, ...] = ("requeue", "mark-done", "give-up")

_IGNORE_JOB, _MARK_JOB_DONE, _GIVE_UP_JOB = (AuditAction("job", word) for word in (IGNORE, MARK_DONE, GIVE_UP))


def ignore(
    store: Store,
    ledgers: Mapping[str, Ledger],
    job_id: int,
    *,
    actor: str,
    reason: str,
    bulk_id: int | None = None,
    connection: Connection | None = None,
) -> None:
    """Resolve without action; retention may delete it.

    Args:
        bulk_id: the bulk action that this is a part of, for the audit log.
        connection: the caller's transaction; default one of our own.

    Raises:
        JobNotFound: there is no such job.
        JobStateError: it is not unresolved; the message tells why.
    """
    with store.joined(connection) as joined:
        _lock_open(store, joined, ledgers, job_id)
        record_action(store, joined, job_id, IGNORE, actor, reason)
        note(store, joined, _IGNORE_JOB, job_id, actor=actor, reason=reason, detail=of_bulk(bulk_id))


def resolve_unknown(
    store: Store,
    job_types: Registry,
    ledgers: Mapping[str, Ledger],
    job_id: int,
    resolution: Resolution,
    *,
    actor: str,
    reason: str | None = None,
    bulk_id: int | None = None,
    connection: Connection | None = None,
) -> Requeued | None:
    """Decide about an effect that may have happened.

    `requeue` carries it out again: the effect stays unknown until an attempt is done. `mark-done` records that it did
    happen: its key is done from now on. `give-up` leaves it unknown, forever, and closes it.

    Args:
        bulk_id, connection: as for `ignore`.

    Returns:
        The new job of `requeue`.

    Raises:
        JobNotFound: there is no such job.
        JobStateError: the effect of this job is not unknown, or it is already resolved.
    """
    with store.joined(connection) as joined:
        _lock_open(store, joined, ledgers, job_id)
        if read_standing(store, joined, job_types, job_id).effect != "unknown":
            text = (
                f"the effect of job {job_id} is not unknown: `effects retry {job_id}` tries it again, and "
                f"`effects resolve {job_id} --as give-up --reason REASON` closes it"
            )
            raise JobStateError(text, code="effect_not_unknown")
        if resolution == "requeue":
            return requeue(
                store, job_types, job_id, confirm_unknown=True, actor=actor, reason=reason, bulk_id=bulk_id,
                connection=joined,
            )  # fmt: skip
        action = _MARK_JOB_DONE if resolution == "mark-done" else _GIVE_UP_JOB
        record_action(store, joined, job_id, action.name, actor, reason)
        note(store, joined, action, job_id, actor=actor, reason=reason, detail=of_bulk(bulk_id))
        if resolution == "mark-done":
            for ledger in all_ledgers(ledgers):
                store.write(joined, _mark_done(ledger.table), id=job_id)
        return None


def _lock_open(store: Store, connection: Connection, ledgers: Mapping[str, Ledger], job_id: int) -> None:
    """Hold the open job's row until the transaction ends: the second of two people is refused."""
    store.row(connection, _lock, id=job_id)
    tables = tuple(ledger.table for ledger in all_ledgers(ledgers))
    row = store.row(connection, _job_to_resolve(tables), id=job_id)
    if row is None:
        raise cancellation.wrong_state(store, connection, job_id, "only an ended job can be a dead letter")
    refusal = _why_not_open(row)
    if refusal is not None:
        raise refusal


def is_open(store: Store, connection: Connection, ledgers: Mapping[str, Ledger], job_id: int) -> bool:
    """Whether `ignore` would accept this job now: a dead letter or an unknown outcome that is not resolved."""
    row = store.row(connection, _job_to_resolve(tuple(ledger.table for ledger in all_ledgers(ledgers))), id=job_id)
    return row is not None and _why_not_open(row) is None


def _why_not_open(row: Row[Any]) -> JobStateError | None:
    if row.status != "dead" and not row.unknown:
        text = f"job {row.id} is {row.status}: it is no dead letter and no unknown outcome"
        return JobStateError(text, code=row.status)
    if row.said is None:
        return None
    text = f"job {row.id} is already resolved ({row.said.replace('_', ' ')})"
    return JobStateError(text, code="resolved_already")


# -- the statements --------------------------------------------------------------------------------------


def _lock(sql: Sql) -> str:
    return f"SELECT id FROM {sql.job_history} WHERE id = :id {sql.lock(skip=False)}"


@cache
def _job_to_resolve(tables: tuple[str, ...]) -> Statement:
    def build(sql: Sql) -> str:
        return f"""
        SELECT h.id, h.status, {is_unknown(sql, tables)} AS unknown,
            (SELECT max(a.action) {closing_actions(sql)}) AS said
        FROM {sql.job_history} AS h WHERE h.id = :id"""

    return build


@cache
def _mark_done(table: str) -> Statement:
    def build(sql: Sql) -> str:
        return f"""
        UPDATE {getattr(sql, table)} SET state = 'done', updated_at = {sql.now}
        WHERE job_id = :id AND state = 'unknown'"""

    return build
