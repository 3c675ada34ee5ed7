"""What an app calls: enqueue one job or many, in its own transaction."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Any

import msgspec
from sqlalchemy import Connection

from effects import arguments
from effects.app import Effects
from effects.arguments import check_arguments, each_of, optional
from effects.default_app import app_of
from effects.errors import EnqueueError, KeyUnavailable
from effects.idempotence import IdempotentWriter, KeyHolder, write_once
from effects.job import NewJob, Receipt
from effects.job_type import JobType, routing_of
from effects.retry import ON_UNKNOWN, OnUnknown
from effects.sealing import seal_payload
from effects.sessions.joining import AnySession
from effects.store.queue.enqueue import JobRow, ReservedJob, insert_jobs, key_holders, reserve_rows
from effects.store.queue.enqueue_function import PROVISIONAL

_RULES = {
    "job_type": arguments.printable(),
    **dict.fromkeys(("key", "group_key", "limit_key", "queue"), optional(arguments.printable())),
    "on_unknown": optional(arguments.one_of(ON_UNKNOWN)),
    "max_attempts": optional(arguments.whole(1, 1000)),
    "priority": optional(arguments.whole(-32000, 32000)),
    **dict.fromkeys(("run_at", "expires_at"), optional(arguments.aware)),
    "trace_context": optional(arguments.printable()),
}


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
        StoreUnavailable: the database is unavailable (without `session`). With a key, calling again is safe.
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
    app = app_of(effects, session)
    jobs = list(each_of(jobs, NewJob, "jobs", EnqueueError))
    rows = [_row(app, number, job, with_digest=True) for number, job in enumerate(jobs)]
    if not rows:
        return []
    with app.writing(session, {row.queue for row in rows}) as connection:
        if all(row.digest is None for row in rows):
            ids = insert_jobs(app.store, connection, rows)
            return [_receipt(row, ids[row.n]) for row in rows]
        return write_once(app.keys, connection, rows, _JobWriter(app, connection, jobs))


def reserve_jobs(app: Effects, connection: Connection, jobs: Sequence[NewJob]) -> list[ReservedJob]:
    """Check jobs and give them their ids; `insert_reserved` writes them, in the same transaction.

    For packages that bring a ledger: they write the intents, which name the jobs, between the two calls. Jobs that are
    not inserted leave nothing but a gap in the ids. The locks of the jobs' groups are taken here.

    Args:
        connection: from `Effects.writing`.

    Raises:
        EnqueueError: as `enqueue`.
    """
    rows = [_row(app, number, job, with_digest=False) for number, job in enumerate(jobs)]
    return reserve_rows(app.store, connection, rows)


def insert_reserved(app: Effects, connection: Connection, reserved: Sequence[ReservedJob]) -> None:
    """Write jobs of `reserve_jobs` whose intents the caller has written into its own ledger."""
    insert_jobs(app.store, connection, [job.row for job in reserved])


def _row(app: Effects, number: int, job: NewJob, *, with_digest: bool) -> JobRow:
    """The row of a job. Its digest makes that its intent, where it has a key, is written to the core's ledger."""
    check_arguments(job, _RULES, EnqueueError)
    job_type = app.job_types.get(job.job_type)
    typed, text = job_type.checked(job.payload)
    routing = routing_of(job_type, typed)
    return JobRow(
        n=number,
        job_type=job.job_type,
        queue=job.queue or routing.queue or job_type.queue,
        priority=job_type.priority if job.priority is None else job.priority,
        payload=msgspec.Raw((seal_payload(app.keys, job_type, text) if job_type.sensitive else text).encode()),
        run_at=_epoch(job.run_at),
        expires_at=_epoch(job.expires_at),
        max_attempts=job.max_attempts,
        group_key=job.group_key or routing.group_key,
        limit_key=job.limit_key or routing.limit_key,
        key=job.key,
        digest=_digest(app, job_type, text) if with_digest and job.key is not None else None,
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


def _epoch(moment: datetime | None) -> float | None:
    return None if moment is None else moment.timestamp()


class _JobWriter(IdempotentWriter[JobRow, Receipt]):
    """Writes the rows of jobs, some or all of which have a key."""

    def __init__(self, app: Effects, connection: Connection, jobs: Sequence[NewJob]) -> None:
        self._app = app
        self._connection = connection
        self._jobs = jobs

    def insert(self, requests: Sequence[JobRow]) -> list[Receipt | None]:
        ids = insert_jobs(self._app.store, self._connection, requests)
        return [_receipt(row, ids[row.n]) if row.n in ids else None for row in requests]

    def holders(self, requests: Sequence[JobRow]) -> list[KeyHolder[Receipt] | None]:
        keys = [(row.job_type, row.key) for row in requests if row.key is not None]
        taken = key_holders(self._app.store, self._connection, keys)
        return [_holder(row, *taken[key]) if key in taken else None for key, row in zip(keys, requests, strict=True)]

    def content(self, request: JobRow) -> str:
        """The payload as the caller gave it: the row's may be sealed."""
        job_type = self._app.job_types.get(request.job_type)
        return job_type.canonical(job_type.encode(self._jobs[request.n].payload))


def _receipt(row: JobRow, job_id: int, *, existing: bool = False) -> Receipt:
    return Receipt(job_id=job_id, job_type=row.job_type, key=row.key, existing=existing)


def _holder(row: JobRow, digest: str, job_id: int) -> KeyHolder[Receipt]:
    return KeyHolder(
        receipt=_receipt(row, job_id, existing=True),
        digest=None if digest.startswith(PROVISIONAL) else digest,
        key=f"{row.job_type}: the idempotency key {row.key!r}",
        owner=f"job {job_id}",
        job_id=job_id,
    )
