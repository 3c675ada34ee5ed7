"""What an app calls: enqueue one job or many, in its own transaction; in async code too."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

import msgspec
from sqlalchemy import Connection

from effects.app.default import app_of, in_async
from effects.app.effects import Effects
from effects.model.job import NewJob, OnConflict, Receipt
from effects.retry import OnUnknown
from effects.store.db.store import Statement
from effects.store.enqueue.enqueuing import enqueue_job, enqueue_jobs, job_row, span_of
from effects.store.enqueue.insert import insert_jobs, insert_one_with_intent, insert_with_intents, reserve_rows
from effects.store.enqueue.new_rows import JobRow, ReservedJob
from effects.store.sessions.joining import AnySession

if TYPE_CHECKING:
    from effects.store.sessions.asynchronous import AnyAsyncSession


def enqueue(
    job_type: str,
    payload: Any,
    *,
    key: str | None = None,
    queue: str | None = None,
    priority: int | None = None,
    run_at: datetime | None = None,
    delay: timedelta | float | None = None,
    expires_at: datetime | None = None,
    group_key: str | None = None,
    limit_key: str | None = None,
    max_attempts: int | None = None,
    trace_context: str | None = None,
    on_unknown: OnUnknown | None = None,
    on_conflict: OnConflict | None = None,
    session: AnySession | None = None,
    effects: Effects | None = None,
) -> Receipt:
    """Write one job in the caller's transaction. See `NewJob` for the options.

    Args:
        session: a SQLAlchemy Session or Connection, a connection of sqlite3, psycopg or psycopg2, or Django's
            (docs/sessions.md). Never committed by us; rolled back, or rolled back to a savepoint, the job was never
            there. Without one, our own transaction.
        effects: the Effects to use; default that of the session's engine, else the process's.

    Returns:
        The receipt; it becomes true with the caller's commit. A crash before that leaves nothing.

    Raises:
        PayloadInvalid: the payload does not fit the job type.
        IdempotencyConflict: the key was used with another payload.
        UnknownJobType: nothing of that name is registered.
        KeyUnavailable: the payload has sensitive fields, and EFFECTS_KEYS holds no key to seal them with.
        StoreUnavailable: the database is unavailable (without `session`). With a key, calling again is safe.
    """
    job = NewJob(
        job_type=job_type, payload=payload, key=key, queue=queue, priority=priority, run_at=run_at, delay=delay,
        expires_at=expires_at, group_key=group_key, limit_key=limit_key, max_attempts=max_attempts,
        trace_context=trace_context, on_unknown=on_unknown, on_conflict=on_conflict,
    )  # fmt: skip
    return enqueue_job(app_of(effects, session), job, session)


def enqueue_many(
    jobs: Iterable[NewJob], *, session: AnySession | None = None, effects: Effects | None = None
) -> list[Receipt]:
    """Write many jobs, 1,000 a statement. All are checked before the first is written.

    Raises:
        As `enqueue`. After an IdempotencyConflict the jobs of this call are not written: they were
        rolled back to a savepoint.
    """
    return enqueue_jobs(app_of(effects, session), jobs, session)


def reserve_jobs(app: Effects, connection: Connection, jobs: Sequence[NewJob]) -> list[ReservedJob]:
    """Check jobs and give them their ids; `insert_reserved` writes them, in the same transaction.

    For packages that bring a ledger: they write the intents, which name the jobs, between the two calls. Jobs that are
    not inserted leave nothing but a gap in the ids. The locks of the jobs' groups are taken here.

    Args:
        connection: from `Effects.writing`.

    Raises:
        EnqueueError: as `enqueue`.
    """
    with span_of(app, jobs) as written:
        reserved = reserve_rows(app.store, connection, _rows(app, jobs))
        written([job.id for job in reserved])
        return reserved


def insert_reserved(app: Effects, connection: Connection, reserved: Sequence[ReservedJob]) -> None:
    """Write jobs of `reserve_jobs` whose intents the caller has written into its own ledger."""
    insert_jobs(app.store, connection, [job.row for job in reserved])


def insert_intended(
    app: Effects, connection: Connection, jobs: Sequence[NewJob], intents: Sequence[msgspec.Struct], insert: Statement
) -> list[int]:
    """Check jobs and write them, each with its intent in the package's own ledger; their ids, in the same order.

    One statement for 500 jobs on PostgreSQL. Where an intent may meet an earlier one: `reserve_jobs`.

    Args:
        connection: from `Effects.writing`.
        intents: one for each job, all of one type.
        insert: `INSERT INTO … SELECT … FROM i`, where `i` has the intents' fields and `job_id`.

    Raises:
        EnqueueError: as `enqueue`.
    """
    with span_of(app, jobs) as written:
        ids = insert_with_intents(app.store, connection, _rows(app, jobs), intents, insert)
        written(ids)
        return ids


def insert_one_intended(
    app: Effects,
    connection: Connection,
    job: NewJob,
    intent: msgspec.Struct,
    insert: Statement,
    parameters: Mapping[str, Any],
) -> int | None:
    """As `insert_intended`, for a job that an app waits for: one statement on PostgreSQL.

    Args:
        intent: its fields are texts, numbers, truth values, bytes or moments.
        insert: as for `insert_intended`. It may leave the intent out, by its WHERE or by ON CONFLICT DO NOTHING, and on
            SQLite it needs a WHERE where it ends in ON CONFLICT.
        parameters: what `insert` binds besides, by names that no field of a job has.

    Returns:
        The job's id; None if the intent was left out: there is no job then, and a gap in the ids.

    Raises:
        EnqueueError: as `enqueue`.
    """
    with span_of(app, [job]) as written:
        row = job_row(app, 0, job, with_digest=False)  # in the span: it is the job's trace
        job_id = insert_one_with_intent(app.store, connection, row, intent, insert, parameters)
        written([] if job_id is None else [job_id])
        return job_id


def _rows(app: Effects, jobs: Sequence[NewJob]) -> list[JobRow]:
    """Of jobs whose intents are in the ledger of a package."""
    return [job_row(app, number, job, with_digest=False) for number, job in enumerate(jobs)]


async def enqueue_async(
    job_type: str,
    payload: Any,
    *,
    key: str | None = None,
    queue: str | None = None,
    priority: int | None = None,
    run_at: datetime | None = None,
    delay: timedelta | float | None = None,
    expires_at: datetime | None = None,
    group_key: str | None = None,
    limit_key: str | None = None,
    max_attempts: int | None = None,
    trace_context: str | None = None,
    on_unknown: OnUnknown | None = None,
    on_conflict: OnConflict | None = None,
    session: AnyAsyncSession | None = None,
    effects: Effects | None = None,
) -> Receipt:
    """Write one job in the caller's asynchronous transaction: `enqueue`, awaited.

    Args:
        session: an AsyncSession or AsyncConnection, which is never committed by us. Without one, a transaction of our
            own, off the event loop's thread: cancelled after it has begun, it may have been committed.

    Raises:
        As `enqueue`.
    """
    return await in_async(enqueue, **locals())


async def enqueue_many_async(
    jobs: Iterable[NewJob], *, session: AnyAsyncSession | None = None, effects: Effects | None = None
) -> list[Receipt]:
    """Write many jobs: `enqueue_many`, awaited. `session` is as for `enqueue_async`.

    Raises:
        As `enqueue_many`.
    """
    return await in_async(enqueue_many, **locals())
