"""Dead letters and unknown outcomes: what waits for a person, until somebody closes it.

Open is an ended job that is dead, or whose effect is unknown, and about which nobody has said a closing word in
`effects_job_actions`: requeue, ignore, mark done, give up. The job's own row never changes.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import cache
from typing import Any, Literal, TypeAlias

import msgspec
from sqlalchemy import Connection, Row

from effects.errors import JobNotFound
from effects.store import actions
from effects.store.actions import CLOSING, GIVE_UP, IGNORE, MARK_DONE, Requeued
from effects.store.ledger import Ledger, all_ledgers
from effects.store.records import moment
from effects.store.sql import Sql
from effects.store.store import Statement, Store

LIST_MAX = 10_000
Resolution: TypeAlias = Literal["send-again", "mark-done", "give-up"]
RESOLUTIONS: tuple[Resolution, ...] = ("send-again", "mark-done", "give-up")


class DeadFilters(msgspec.Struct, frozen=True, kw_only=True):
    """Which open ones; None is no filter.

    Args:
        text: part of the last error's text, whatever its case.
        endpoint: the limit key, whole or what follows its first colon (`ep_…` of `webhook:ep_…`).
        older_seconds, newer_seconds: since it ended.
        unknown: only those whose effect may have happened, or only those whose effect did not.
        closed: those that somebody has closed, instead of the open ones.
    """

    job_type: str | None = None
    error_code: str | None = None
    text: str | None = None
    endpoint: str | None = None
    older_seconds: float | None = None
    newer_seconds: float | None = None
    unknown: bool | None = None
    closed: bool = False
    limit: int = 50


class DeadLetter(msgspec.Struct, frozen=True, kw_only=True):
    """One of them. `unknown`: the effect may have happened."""

    id: int
    job_type: str
    status: str
    unknown: bool
    queue: str
    key: str | None
    limit_key: str | None
    attempts: int
    error_code: str | None
    last_error: str | None
    finished_at: dt.datetime


# -- reading ---------------------------------------------------------------------------------------------


def list_dead(store: Store, ledgers: Mapping[str, Ledger], filters: DeadFilters) -> list[DeadLetter]:
    """Those that match, newest end first, at most `filters.limit` (10,000)."""
    tables = tuple(ledger.table for ledger in all_ledgers(ledgers))
    with store.read() as connection:
        found = store.all(
            connection,
            _list(tables),
            job_type=filters.job_type,
            error_code=filters.error_code,
            text=filters.text,
            endpoint=filters.endpoint,
            older=filters.older_seconds,
            newer=filters.newer_seconds,
            unknown=None if filters.unknown is None else int(filters.unknown),
            closed=int(filters.closed),
            limit=min(filters.limit, LIST_MAX),
        )
    return [_letter(row) for row in found]


def count_open(store: Store, connection: Connection, ledgers: Mapping[str, Ledger]) -> int:
    """How many wait for a person."""
    tables = tuple(ledger.table for ledger in all_ledgers(ledgers))
    return int(store.value(connection, _count(tables)))


def _letter(row: Row[Any]) -> DeadLetter:
    return DeadLetter(
        id=row.id,
        job_type=row.job_type,
        status=row.status,
        unknown=bool(row.unknown),
        queue=row.queue,
        key=row.idempotency_key,
        limit_key=row.limit_key,
        attempts=row.attempts,
        error_code=row.error_code,
        last_error=row.last_error,
        finished_at=moment(row.finished_at),
    )


# -- closing ---------------------------------------------------------------------------------------------


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


def closed(sql: Sql, seconds: str = "0") -> str:
    """Whether somebody closed the ended job `h`, at least `seconds` ago."""
    return f"""EXISTS (SELECT 1 FROM {sql.job_actions} AS a WHERE a.job_id = h.id AND a.action IN ({_words()})
        AND {sql.seconds("a.created_at")} >= {seconds})"""


def is_unknown(sql: Sql, tables: tuple[str, ...]) -> str:
    """Whether the effect of the ended job `h` may have happened; without a ledger row its own attempts say so."""
    ledgers = " OR ".join(
        f"EXISTS (SELECT 1 FROM {getattr(sql, table)} AS l WHERE l.job_id = h.id AND l.state = 'unknown')"
        for table in tables
    )
    return f"(h.status <> 'succeeded' AND (h.idempotency_key IS NULL AND h.unknown_count > 0 OR {ledgers}))"


def _words() -> str:
    return ", ".join(f"'{word}'" for word in CLOSING)


def _said(sql: Sql) -> str:
    return f"EXISTS (SELECT 1 FROM {sql.job_actions} AS a WHERE a.job_id = h.id AND a.action IN ({_words()}))"


def _needs_person(sql: Sql, tables: tuple[str, ...]) -> str:
    """The first condition is that of the index on what did not succeed."""
    return f"h.status <> 'succeeded' AND (h.status = 'dead' OR {is_unknown(sql, tables)})"


@cache
def _list(tables: tuple[str, ...]) -> Statement:
    def build(sql: Sql) -> str:
        number, whole = ("double precision", "integer") if sql.postgresql else ("NUMERIC", "INTEGER")
        found = (
            "strpos(lower(h.last_error), lower(CAST(:text AS text)))"
            if sql.postgresql
            else "instr(lower(h.last_error), lower(:text))"
        )
        ended = sql.seconds("h.finished_at")
        unknown = is_unknown(sql, tables)
        return f"""
        SELECT h.id, h.job_type, h.status, {unknown} AS unknown, h.queue, h.idempotency_key, h.limit_key, h.attempts,
            h.error_code, h.last_error, {sql.epoch("h.finished_at")} AS finished_at
        FROM {sql.job_history} AS h WHERE {_needs_person(sql, tables)}
        AND (CAST(:job_type AS text) IS NULL OR h.job_type = CAST(:job_type AS text))
        AND (CAST(:error_code AS text) IS NULL OR h.error_code = CAST(:error_code AS text))
        AND (CAST(:text AS text) IS NULL OR {found} > 0)
        AND (CAST(:endpoint AS text) IS NULL OR h.limit_key = CAST(:endpoint AS text)
            OR h.limit_key LIKE '%:%' AND {_after_colon(sql)} = CAST(:endpoint AS text))
        AND (CAST(:older AS {number}) IS NULL OR {ended} >= CAST(:older AS {number}))
        AND (CAST(:newer AS {number}) IS NULL OR {ended} < CAST(:newer AS {number}))
        AND (CAST(:unknown AS {whole}) IS NULL
            OR CASE WHEN {unknown} THEN 1 ELSE 0 END = CAST(:unknown AS {whole}))
        AND CASE WHEN {_said(sql)} THEN 1 ELSE 0 END = CAST(:closed AS {whole})
        ORDER BY h.finished_at DESC, h.id DESC LIMIT :limit"""

    return build


def _after_colon(sql: Sql) -> str:
    place = "strpos(h.limit_key, ':')" if sql.postgresql else "instr(h.limit_key, ':')"
    return f"substr(h.limit_key, {place} + 1)"


@cache
def _count(tables: tuple[str, ...]) -> Statement:
    def build(sql: Sql) -> str:
        return f"""
        SELECT count(*) FROM {sql.job_history} AS h WHERE {_needs_person(sql, tables)} AND NOT {_said(sql)}"""

    return build


def _lock(sql: Sql) -> str:
    return f"SELECT id FROM {sql.job_history} WHERE id = :id {sql.lock(skip=False)}"


@cache
def _one(tables: tuple[str, ...]) -> Statement:
    def build(sql: Sql) -> str:
        return f"""
        SELECT h.id, h.job_type, h.status, h.idempotency_key, h.on_unknown, {is_unknown(sql, tables)} AS unknown,
            (SELECT max(a.action) FROM {sql.job_actions} AS a
                WHERE a.job_id = h.id AND a.action IN ({_words()})) AS said
        FROM {sql.job_history} AS h WHERE h.id = :id"""

    return build


@cache
def _mark_done(table: str) -> Statement:
    def build(sql: Sql) -> str:
        return f"""
        UPDATE {getattr(sql, table)} SET state = 'done', updated_at = {sql.now}
        WHERE job_id = :id AND state = 'unknown'"""

    return build
