"""What a person says to a dead letter or an unknown outcome, which closes it. The job's own row never changes."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from functools import cache
from typing import Any, Literal, TypeAlias

import msgspec
from sqlalchemy import Connection, Row

from effects.errors import JobNotFound
from effects.store import actions
from effects.store.actions import GIVE_UP, IGNORE, MARK_DONE, Requeued
from effects.store.dead_letters import closing_words, is_unknown
from effects.store.ledger import Ledger, all_ledgers
from effects.store.sql import Sql
from effects.store.store import Statement, Store

Resolution: TypeAlias = Literal["send-again", "mark-done", "give-up"]
RESOLUTIONS: tuple[Resolution, ...] = ("send-again", "mark-done", "give-up")


def ignore(store: Store, ledgers: Mapping[str, Ledger], job_id: int, *, actor: str, reason: str) -> None:
    """Close it as it is: nothing more happens, and retention may take it.

    Raises:
        JobNotFound: it is not open; says why.
    """
    with store.begin() as connection:
        _lock_open(store, connection, ledgers, job_id)
        actions.note(store, connection, job_id, IGNORE, actor, reason)


def requeue(
    store: Store,
    ledgers: Mapping[str, Ledger],
    job_id: int,
    *,
    actor: str,
    reason: str | None = None,
    repeating: Collection[str] | None = None,
) -> Requeued:
    """Try it again as a new job; the old one stays as it is, and is closed.

    Args:
        repeating: job types whose unknown effects may be repeated; one of any other type is refused, unless the job
            itself was given `repeat`.
            Default: all are taken.

    Raises:
        JobNotFound: it is no dead letter or unknown outcome, or may not be requeued; says why. An ignored one may.
    """
    with store.begin() as connection:
        row = _check_needs_person(store, connection, ledgers, job_id)
        repeats = row.on_unknown == "repeat" if row.on_unknown else repeating is None or row.job_type in repeating
        if repeating is not None and row.unknown and not repeats:
            raise JobNotFound(
                f"the effect of job {job_id} may have happened: decide with `effects dead resolve {job_id}`"
            )
        return actions.requeue_within(store, connection, ledgers, job_id, actor=actor, reason=reason)


def resolve(
    store: Store,
    ledgers: Mapping[str, Ledger],
    job_id: int,
    resolution: Resolution,
    *,
    actor: str,
    reason: str | None = None,
) -> Requeued | None:
    """Decide about an effect that may have happened.

    `send-again` requeues it: the effect stays unknown until an attempt is done. `mark-done` records that it did
    happen: its key is done from now on. `give-up` leaves it unknown, for ever, and closes it.

    Returns:
        The new job of `send-again`.

    Raises:
        JobNotFound: the effect of this job is not unknown, or the matter is closed; says which.
    """
    with store.begin() as connection:
        row = _lock_open(store, connection, ledgers, job_id)
        if not row.unknown:
            raise JobNotFound(f"the effect of job {job_id} is not unknown: requeue it or ignore it")
        if resolution == "send-again":
            return actions.requeue_within(store, connection, ledgers, job_id, actor=actor, reason=reason)
        actions.note(store, connection, job_id, MARK_DONE if resolution == "mark-done" else GIVE_UP, actor, reason)
        if resolution == "mark-done" and row.idempotency_key is not None:
            for ledger in all_ledgers(ledgers):
                store.write(connection, _mark_done(ledger.table), id=job_id)
        return None


class BulkResult(msgspec.Struct, frozen=True):
    """What a bulk action did: job id → the new job of a requeue, else None; and job id → why it was refused."""

    done: dict[int, int | None]
    refused: dict[int, str]


def each(job_ids: Sequence[int], act: Callable[[int], Requeued | None]) -> BulkResult:
    """Act on each, one transaction a job: what has changed meanwhile is refused, and the others go on."""
    done: dict[int, int | None] = {}
    refused: dict[int, str] = {}
    for job_id in job_ids:
        try:
            made = act(job_id)
        except JobNotFound as error:
            refused[job_id] = str(error)
        else:
            done[job_id] = made.job_id if made is not None else None
    return BulkResult(done, refused)


def _lock_open(store: Store, connection: Connection, ledgers: Mapping[str, Ledger], job_id: int) -> Row[Any]:
    """The open job's row, held until the transaction ends: of two people one comes second, and is told so."""
    store.one(connection, _lock, id=job_id)
    row = _check_needs_person(store, connection, ledgers, job_id)
    if row.said is not None:
        raise JobNotFound(f"job {job_id} is closed already ({row.said.replace('_', ' ')})")
    return row


def _check_needs_person(store: Store, connection: Connection, ledgers: Mapping[str, Ledger], job_id: int) -> Row[Any]:
    tables = tuple(ledger.table for ledger in all_ledgers(ledgers))
    row = store.one(connection, _one(tables), id=job_id)
    if row is None:
        raise _absent(store, connection, job_id)
    if row.status != "dead" and not row.unknown:
        raise JobNotFound(f"job {job_id} is {row.status}: it is no dead letter and no unknown outcome")
    return row


def _absent(store: Store, connection: Connection, job_id: int) -> JobNotFound:
    return actions.not_there(store, connection, job_id, "only an ended job can be a dead letter")


# -- the statements --------------------------------------------------------------------------------------


def _lock(sql: Sql) -> str:
    return f"SELECT id FROM {sql.job_history} WHERE id = :id {sql.lock(skip=False)}"


@cache
def _one(tables: tuple[str, ...]) -> Statement:
    def build(sql: Sql) -> str:
        return f"""
        SELECT h.id, h.job_type, h.status, h.idempotency_key, h.on_unknown, {is_unknown(sql, tables)} AS unknown,
            (SELECT max(a.action) FROM {sql.job_actions} AS a
                WHERE a.job_id = h.id AND a.action IN ({closing_words()})) AS said
        FROM {sql.job_history} AS h WHERE h.id = :id"""

    return build


@cache
def _mark_done(table: str) -> Statement:
    def build(sql: Sql) -> str:
        return f"""
        UPDATE {getattr(sql, table)} SET state = 'done', updated_at = {sql.now}
        WHERE job_id = :id AND state = 'unknown'"""

    return build
