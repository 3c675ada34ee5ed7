"""Resolutions of dead letters and unknown outcomes. The job's own row never changes."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any, Literal, TypeAlias

from sqlalchemy import Connection, Row

from effects.errors import JobStateError
from effects.model.ledger import Ledger
from effects.model.registry import Registry
from effects.store.audit_log.notes import AuditAction, note, of_bulk
from effects.store.db.sql import Sql
from effects.store.db.store import Statement, Store
from effects.store.operator import actions
from effects.store.operator.requeue import Requeued, read_standing, requeue
from effects.store.queue.table_ledger import all_ledgers
from effects.store.queue.unresolved import GIVE_UP, IGNORE, MARK_DONE, closing_actions, is_unknown

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
        actions.record_action(store, joined, job_id, IGNORE, actor, reason)
        note(store, joined, _IGNORE_JOB, job_id, actor=actor, reason=reason, detail=of_bulk(bulk_id))


def resolve(
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
            text = f"the effect of job {job_id} is not unknown: requeue it or ignore it"
            raise JobStateError(text, code="effect_not_unknown")
        if resolution == "requeue":
            return requeue(
                store, job_types, job_id, confirm_unknown=True, actor=actor, reason=reason, bulk_id=bulk_id,
                connection=joined,
            )  # fmt: skip
        action = _MARK_JOB_DONE if resolution == "mark-done" else _GIVE_UP_JOB
        actions.record_action(store, joined, job_id, action.name, actor, reason)
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
        raise actions.wrong_state(store, connection, job_id, "only an ended job can be a dead letter")
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
