"""What an app calls: enqueue one job or many, in its own transaction."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Any

import msgspec
from sqlalchemy import Connection

from effects.app import AnySession, Effects, default
from effects.errors import EnqueueError, IdempotencyConflict, KeyUnavailable
from effects.job import KEY_CHARS_MAX, NewJob, Receipt
from effects.job_type import JobType
from effects.retry import ON_UNKNOWN, OnUnknown
from effects.sealing import seal_payload
from effects.store.enqueue import JobRow, insert_jobs, key_holders


def enqueue(
    job_type: str,
    payload: Any,
    *,
    key: str | None = None,
    queue: str | None = None,
    priority: int | None = None,
    run_at: datetime | None = None,
    expires_at: datetime | None = None,
    group_key: str | None = None,
    limit_key: str | None = None,
    max_attempts: int | None = None,
    trace_context: str | None = None,
    on_unknown: OnUnknown | None = None,
    session: AnySession | None = None,
    effects: Effects | None = None,
) -> Receipt:
    """Write one job in the caller's transaction. See `NewJob` for the options.

    Args:
        session: a SQLAlchemy Session or Connection, which is never committed by us: rolled back, or rolled
            back to a savepoint, the job was never there. Without one, a transaction of our own.
        effects: the Effects to use; default the process's.

    Returns:
        The receipt; it becomes true with the caller's commit. A crash before that leaves nothing.

    Raises:
        PayloadInvalid: the payload does not fit the job type.
        IdempotencyConflict: the key was used with another payload.
        UnknownJobType: nothing of that name is registered.
        KeyUnavailable: the payload has sensitive fields, and EFFECTS_KEYS holds no key to seal them with.
        StoreUnavailable: the database is away (without `session`). With a key, calling again is safe.
    """
    job = NewJob(
        job_type=job_type, payload=payload, key=key, queue=queue, priority=priority, run_at=run_at,
        expires_at=expires_at, group_key=group_key, limit_key=limit_key, max_attempts=max_attempts,
        trace_context=trace_context, on_unknown=on_unknown,
    )  # fmt: skip
    return enqueue_many([job], session=session, effects=effects)[0]


def enqueue_many(
    jobs: Iterable[NewJob], *, session: AnySession | None = None, effects: Effects | None = None
) -> list[Receipt]:
    """Write many jobs, 1,000 a statement. All are checked before the first is written.

    Raises:
        As `enqueue`. After an IdempotencyConflict the jobs of this call are not written: they were
        rolled back to a savepoint.
    """
    app = effects or default()
    jobs = list(jobs)
    rows = [_row(app, number, job) for number, job in enumerate(jobs)]
    if not rows:
        return []
    with app.writing(session, {row.queue for row in rows}) as connection:
        if len(rows) == 1 or all(row.digest is None for row in rows):
            return _insert(app, connection, rows, jobs)
        with connection.begin_nested():
            return _insert(app, connection, rows, jobs)


def insert_known(app: Effects, connection: Connection, jobs: Sequence[NewJob], ids: Sequence[int]) -> None:
    """Write jobs whose ids are reserved and whose intents the caller has written into its own ledger.

    For packages that bring a ledger; `connection` is from `Effects.writing`.
    """
    rows = [_row(app, number, job) for number, job in enumerate(jobs)]
    for row, job_id in zip(rows, ids, strict=True):
        row.id, row.digest = job_id, None
    insert_jobs(app.store, connection, rows)


def _row(app: Effects, number: int, job: NewJob) -> JobRow:
    job_type = app.job_types.get(job.job_type)
    payload = job_type.encode(job.payload)
    placed = job_type.place(job_type.decode(payload))
    _check(job)
    return JobRow(
        n=number,
        job_type=job.job_type,
        queue=job.queue or placed.queue or job_type.queue,
        priority=job_type.priority if job.priority is None else job.priority,
        payload=msgspec.Raw(seal_payload(app.keys, job_type, payload).encode()),
        run_at=_epoch("run_at", job.run_at),
        expires_at=_epoch("expires_at", job.expires_at),
        max_attempts=job.max_attempts,
        group_key=job.group_key or placed.group_key,
        limit_key=job.limit_key or placed.limit_key,
        key=job.key,
        digest=_digest(app, job_type, payload) if job.key is not None else None,
        trace_context=job.trace_context,
        on_unknown=job.on_unknown,
    )


def _digest(app: Effects, job_type: JobType[Any], payload: str) -> str:
    """Of the payload in clear: a sealed one is another text each time."""
    if job_type.sensitive and not app.keys.digests_are_keyed:
        raise KeyUnavailable(
            f"{job_type.name} has sensitive fields, and a plain digest would let a guess at them be confirmed: "
            "EFFECTS_KEYS needs a key named digest (see `effects keys generate`)"
        )
    return app.keys.digest(job_type.canonical(payload))


def _check(job: NewJob) -> None:
    for name in ("key", "group_key", "limit_key", "queue"):
        value = getattr(job, name)
        if value is not None and not (0 < len(value) <= KEY_CHARS_MAX and value.isprintable()):
            raise EnqueueError(f"{name} must have 1 to {KEY_CHARS_MAX} printable characters")
    if job.on_unknown not in (None, *ON_UNKNOWN):
        raise EnqueueError(f"on_unknown is {job.on_unknown!r}; give one of {', '.join(ON_UNKNOWN)}")
    if job.max_attempts is not None and not 1 <= job.max_attempts <= 1000:
        raise EnqueueError(f"max_attempts is {job.max_attempts}; give 1 to 1000")
    if job.priority is not None and not -32000 <= job.priority <= 32000:
        raise EnqueueError(f"priority is {job.priority}; give -32000 to 32000")


def _epoch(name: str, moment: datetime | None) -> float | None:
    if moment is None:
        return None
    if moment.tzinfo is None:
        raise EnqueueError(f"{name} has no time zone; give an aware datetime, such as datetime.now(UTC)")
    return moment.timestamp()


def _insert(app: Effects, connection: Connection, rows: Sequence[JobRow], jobs: Sequence[NewJob]) -> list[Receipt]:
    inserted = insert_jobs(app.store, connection, rows)
    first: dict[int, Receipt] = {}
    while missing := [row for row in rows if row.n not in inserted and row.n not in first]:
        first.update(_first_receipts(app, connection, missing, jobs))
        forgotten = [row for row in missing if row.n not in first]  # its holder was pruned between the two statements
        inserted.update(insert_jobs(app.store, connection, forgotten))
    return [first.get(row.n) or Receipt(job_id=inserted[row.n], job_type=row.job_type, key=row.key) for row in rows]


def _first_receipts(
    app: Effects, connection: Connection, rows: Sequence[JobRow], jobs: Sequence[NewJob]
) -> dict[int, Receipt]:
    """The receipts of the jobs that hold these keys."""
    keys = [(row.job_type, row.key) for row in rows if row.key is not None]
    holders = key_holders(app.store, connection, keys)
    receipts = {}
    for row in rows:
        assert row.key is not None
        if (row.job_type, row.key) not in holders:
            continue
        digest, job_id = holders[row.job_type, row.key]
        job_type = app.job_types.get(row.job_type)
        canonical = job_type.canonical(job_type.encode(jobs[row.n].payload))  # the row's may be sealed
        if digest != app.keys.digest(canonical, like=digest):
            raise IdempotencyConflict(
                f"{row.job_type}: the idempotency key {row.key!r} belongs to job {job_id}, which has another payload; "
                "use another key for another effect",
                job_id=job_id,
            )
        receipts[row.n] = Receipt(job_id=job_id, job_type=row.job_type, key=row.key, existing=True)
    return receipts
