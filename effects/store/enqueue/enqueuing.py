"""From jobs as an app gives them to rows in its transaction: checked, routed, sealed, and known by their keys."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from datetime import timedelta
from operator import methodcaller
from typing import Any, Protocol

import msgspec
from sqlalchemy import Connection

from effects.errors import EnqueueError, KeyUnavailable
from effects.keys.encryption import KeyRing
from effects.keys.sealing import seal_payload
from effects.kit import arguments
from effects.kit.arguments import build_each, check_fields, each_of, require
from effects.model.job import ON_CONFLICT, PRIORITY_MAX, PRIORITY_MIN, Job, NewJob, Receipt
from effects.model.job_type import JobType, routing_of
from effects.model.ledger import Ledger
from effects.model.registry import Registry
from effects.model.settlement import Telemetry
from effects.retry import ON_UNKNOWN
from effects.store.db.sql import Sql
from effects.store.db.store import Store, as_json
from effects.store.enqueue.insert import insert_jobs
from effects.store.enqueue.new_rows import KINDS, NAMES, PROVISIONAL, JobRow
from effects.store.idempotence import IdempotentWriter, KeyHolder, write_once
from effects.store.queue.table_ledger import CORE_LEDGER
from effects.store.sessions.asynchronous import ALONE
from effects.store.sessions.forgotten import note_writing
from effects.store.sessions.joining import AnySession


def _holders(sql: Sql) -> str:
    return f"""
    SELECT l.job_type, l.key, l.digest, l.job_id
    FROM {sql.rows("rows", {"job_type": "text", "key": "text"})} AS r
    JOIN {sql.effect_ledger} AS l ON l.job_type = r.job_type AND l.key = r.key"""


def key_holders(
    store: Store, connection: Connection, keys: Sequence[tuple[str, str]]
) -> Mapping[tuple[str, str], tuple[str, int]]:
    """(job type, key) → (digest, job id) of those that the ledger knows."""
    pairs: list[dict[str, Any]] = [{"job_type": job_type, "key": key} for job_type, key in keys]
    holders = store.all(connection, _holders, rows=as_json(pairs))
    return {(row.job_type, row.key): (row.digest, row.job_id) for row in holders}


def _adopt(sql: Sql) -> str:
    return f"""
    INSERT INTO {sql.effect_ledger} (job_type, key, digest, job_id, created_at, updated_at)
    VALUES (:job_type, :key, :digest, :job_id, {sql.now}, {sql.now})
    ON CONFLICT (job_type, key) DO UPDATE SET digest = excluded.digest
    WHERE {sql.effect_ledger}.job_id = excluded.job_id AND {sql.effect_ledger}.digest LIKE '{PROVISIONAL}%'"""


def _refuse(sql: Sql) -> str:
    return f"""
    UPDATE {sql.effect_ledger} SET state = 'refused', updated_at = {sql.now}
    WHERE job_type = :job_type AND key = :key AND job_id = :job_id"""


def refuse_intent(store: Store, connection: Connection, job: Job) -> None:
    """End an intent of `adopt` whose job is refused, where its type's own ledger would never hear of it."""
    store.write(connection, _refuse, job_type=job.job_type, key=job.key, job_id=job.id)


def adopt(store: Store, connection: Connection, job: Job, digest: str) -> int:
    """Write the intent of a job that came by a plain INSERT; the id of the job that holds its key."""
    assert job.key is not None
    store.write(connection, _adopt, job_type=job.job_type, key=job.key, digest=digest, job_id=job.id)
    return key_holders(store, connection, [(job.job_type, job.key)])[job.job_type, job.key][1]


_RULES = {
    **dict.fromkeys(("key", "group_key", "limit_key", "queue"), arguments.printable()),
    "on_unknown": arguments.one_of(ON_UNKNOWN),
    "on_conflict": arguments.one_of(ON_CONFLICT),
    "max_attempts": arguments.whole(1, 1000),
    "priority": arguments.whole(PRIORITY_MIN, PRIORITY_MAX),
    **dict.fromkeys(("run_at", "expires_at"), arguments.aware),
    "delay": arguments.duration,
    "trace_context": arguments.printable(),
}
_JOB_TYPE = arguments.printable()
_NO_SPAN = nullcontext[Callable[[Sequence[int]], object]](lambda ids: None)
_ROUTED = {"job_type", "payload", "queue", "priority", "group_key", "limit_key"}  # of which a job type has a say
_OF_THE_CALL = {"on_conflict"}
_CONVERSIONS: dict[str, Callable[[Any], float | None]] = {
    **dict.fromkeys(("run_at", "expires_at"), methodcaller("timestamp")),
    "delay": lambda delay: (delay.total_seconds() if isinstance(delay, timedelta) else delay) or None,
}
_OPTIONS = [(name, _CONVERSIONS.get(name)) for name in NewJob.__struct_fields__ if name not in _ROUTED | _OF_THE_CALL]
_NO_OPTIONS = (None,) * (len(NewJob.__struct_fields__) - 2)  # but for the job type and the payload


class EnqueuingApp(Protocol):
    """What an Effects has that enqueuing needs."""

    job_types: Registry
    keys: KeyRing
    store: Store
    telemetry: Telemetry | None

    def current_session(self) -> Any:
        """The session of the caller's transaction that calls without one join."""
        ...

    def writing(self, session: AnySession | None, queues: Iterable[str] = ()) -> AbstractContextManager[Connection]:
        """The connection of the caller's transaction, or of one of our own."""
        ...


def span_of(app: EnqueuingApp, jobs: Sequence[NewJob]) -> AbstractContextManager[Callable[[Sequence[int]], object]]:
    """A span around the writing of these jobs, which is told their ids; nothing of it without telemetry or jobs."""
    return _NO_SPAN if app.telemetry is None or not jobs else app.telemetry.enqueuing(jobs)


def enqueue_job(
    app: EnqueuingApp, job: NewJob, session: AnySession | None, *, slot: tuple[int, float] | None = None
) -> Receipt:
    """Write one job; see `effects.enqueue`. Apps wait for it: nothing that only a batch needs is in its way.

    Args:
        slot: of a schedule, whose job it is: the schedule's id, and the slot's time in seconds since 1970.
    """
    with span_of(app, [job]) as written:
        receipt = _enqueue_job(app, job, session, slot)
        written([receipt.job_id])
        return receipt


def _enqueue_job(app: EnqueuingApp, job: NewJob, session: AnySession | None, slot: tuple[int, float] | None) -> Receipt:
    row = job_row(app, 0, job, with_digest=True)
    row.definition_id, row.slot = slot or (None, None)
    with app.writing(session, (row.queue,)) as connection:
        if row.digest is None:
            return _receipt(row, insert_jobs(app.store, connection, [row])[row.n])
        return write_once(app.keys, connection, [row], _JobWriter(app, connection, [job]))[0]


def enqueue_jobs(app: EnqueuingApp, jobs: Iterable[NewJob], session: AnySession | None) -> list[Receipt]:
    """Write jobs; see `effects.enqueue_many`."""
    jobs = list(each_of(jobs, NewJob, "jobs", EnqueueError))
    with span_of(app, jobs) as written:
        receipts = _enqueue_jobs(app, jobs, session)
        written([receipt.job_id for receipt in receipts])
        return receipts


def _enqueue_jobs(app: EnqueuingApp, jobs: Sequence[NewJob], session: AnySession | None) -> list[Receipt]:
    rows = build_each("jobs", jobs, lambda number, job: job_row(app, number, job, with_digest=True))
    if not rows:
        return []
    with app.writing(session, {row.queue for row in rows}) as connection:
        if session is not None and session is not ALONE:
            note_writing(connection)  # of a COPY, SQLAlchemy's events know nothing
        if all(row.digest is None for row in rows):
            ids = insert_jobs(app.store, connection, rows)
            return [_receipt(row, ids[row.n]) for row in rows]
        return write_once(app.keys, connection, rows, _JobWriter(app, connection, jobs))


def job_row(app: EnqueuingApp, number: int, job: NewJob, *, with_digest: bool) -> JobRow:
    """The row of a job. Its digest makes that its intent, where it has a key, is written to the core's ledger.

    Raises:
        EnqueueError: an argument is wrong; or the job has a key and its type its own ledger, which would never
            hear of it.
    """
    has_options = msgspec.structs.astuple(job)[2:] != _NO_OPTIONS
    if type(job.job_type) is not str or job.job_type not in app.job_types:
        require("job_type", job.job_type, _JOB_TYPE, EnqueueError)
    if has_options:
        _check_options(job, with_digest=with_digest)
    job_type = app.job_types.get(job.job_type)
    if with_digest and job.key is not None and own_ledger(job_type) is not None:
        raise EnqueueError(f"{job.job_type} with a key: {by_its_package(job_type)}")
    typed, text = job_type.checked(job.payload)
    routing = routing_of(job_type, typed)
    row = JobRow(
        n=number,
        job_type=job.job_type,
        queue=job.queue or routing.queue or job_type.queue,
        priority=job_type.priority if job.priority is None else job.priority,
        payload=msgspec.Raw((seal_payload(app.keys, job_type, text) if job_type.sensitive else text).encode()),
        group_key=job.group_key or routing.group_key,
        limit_key=job.limit_key or routing.limit_key,
    )
    if has_options:
        _set_options(row, job)
    if app.telemetry is not None and row.trace_context is None:
        row.trace_context = app.telemetry.trace_context()
    if with_digest and job.key is not None:
        row.digest = _digest(app, job_type, text)
    return row


def _check_options(job: NewJob, *, with_digest: bool) -> None:
    check_fields(job, _RULES, EnqueueError)
    if job.delay is not None and job.run_at is not None:
        raise EnqueueError("delay and run_at are both given; give one of them")
    if job.on_conflict is not None and (job.key is None or not with_digest):
        raise EnqueueError("on_conflict is for a job with a key in the core's ledger; give key, or leave it out")


def _set_options(row: JobRow, job: NewJob) -> None:
    """Those that no job type gives."""
    for name, convert in _OPTIONS:
        value = getattr(job, name)
        if value is not None:
            setattr(row, name, value if convert is None else convert(value))


def own_ledger(job_type: JobType[Any]) -> Ledger | None:
    """The ledger of a job type, unless it is the core's table."""
    ledger = job_type.ledger
    return None if ledger is None or ledger.table == CORE_LEDGER.table else ledger


def by_its_package(job_type: JobType[Any]) -> str:
    """How to request an effect whose intent must be in its type's own ledger."""
    return (
        f"effects of {job_type.name} are in a ledger of its own; request them by the call of its package, which writes "
        "their row there, or enqueue without a key"
    )


def _digest(app: EnqueuingApp, job_type: JobType[Any], payload: str) -> str:
    """Of the payload in clear: a sealed one is another text each time."""
    if job_type.sensitive and not app.keys.digests_are_keyed:
        raise KeyUnavailable(
            f"{job_type.name} has sensitive fields, and a plain digest would let a guess at them be confirmed: "
            "EFFECTS_KEYS needs a key named digest (see `effects keys generate`)"
        )
    return app.keys.digest(job_type.canonical(payload))


class _JobWriter(IdempotentWriter[JobRow, Receipt]):
    """Writes the rows of jobs, some or all of which have a key."""

    def __init__(self, app: EnqueuingApp, connection: Connection, jobs: Sequence[NewJob]) -> None:
        self._app = app
        self._connection = connection
        self._jobs = jobs

    def insert(self, requests: Sequence[JobRow]) -> list[Receipt | None]:
        ids = insert_jobs(self._app.store, self._connection, requests)
        return [_receipt(row, ids[row.n]) if row.n in ids else None for row in requests]

    def holders(self, requests: Sequence[JobRow]) -> list[KeyHolder[Receipt] | None]:
        replacing = [row for row in requests if self._jobs[row.n].on_conflict is not None]
        waiting = replace_waiting(self._app.store, self._connection, replacing) if replacing else {}
        keys = [(row.job_type, row.key) for row in requests if row.key is not None]
        taken = key_holders(self._app.store, self._connection, keys)
        return [
            self._holder(row, *taken[key], waiting) if key in taken else None
            for key, row in zip(keys, requests, strict=True)
        ]

    def _holder(self, row: JobRow, digest: str, job_id: int, waiting: Mapping[int, str | None]) -> KeyHolder[Receipt]:
        """Whose digest is not compared where it could be replaced: then any content is right."""
        replaces = self._jobs[row.n].on_conflict is not None
        return KeyHolder(
            receipt=_receipt(row, job_id, existing=True, replaced=replaces and job_id in waiting),
            digest=None if replaces or digest.startswith(PROVISIONAL) else digest,
            key=f"{row.job_type}: the idempotency key {row.key!r}",
            owner=f"job {job_id}",
            job_id=job_id,
            conflict=waiting.get(job_id) if replaces else None,
        )

    def content(self, request: JobRow) -> str:
        """The payload as the caller gave it: the row's may be sealed."""
        job_type = self._app.job_types.get(request.job_type)
        return job_type.canonical(job_type.encode(self._jobs[request.n].payload))


def _receipt(row: JobRow, job_id: int, *, existing: bool = False, replaced: bool = False) -> Receipt:
    return Receipt(job_id=job_id, job_type=row.job_type, key=row.key, existing=existing, replaced=replaced)


# -- a job that waits, replaced --------------------------------------------------------------------------------------

_REPLACE = "replace"  # a word of `effects_job_actions.action`
_KEPT = {"job_type", "key", "group_key", "definition_id", "slot", "requeued_from"}  # a replaced job stays what it is


def replace_waiting(store: Store, connection: Connection, rows: Sequence[JobRow]) -> dict[int, str | None]:
    """Write these rows over the waiting jobs that hold their keys.

    A job that an attempt has begun, or that carries out an effect again, is left. The locks settle a race with a
    claim: a claim that is first has begun it, and one that comes later skips the job, or leases what it has become.

    Returns:
        The ids of the waiting jobs; with why, where it could not be: in another group it would get before those that
        were there earlier.
    """
    newest = {row.n: row for row in {(row.job_type, row.key): row for row in rows}.values()}
    waiting: dict[int, str | None] = {}
    written = []
    for holder in store.all(connection, _lock_waiting, rows=as_json(list(newest.values()))):
        row = newest[holder.n]
        if row.group_key == holder.group_key:
            written.append(msgspec.structs.replace(row, id=holder.id))
            waiting[holder.id] = None
        else:
            group = f"which is in group {holder.group_key!r}, not {row.group_key!r}"
            waiting[holder.id] = f"{group}, and stays there when it is replaced"
    if written:
        texts = as_json(written)
        for statement in (_replace, _digest_again, _forget_replaced, _note_replaced):
            store.write(connection, statement, rows=texts)
    return waiting


def _lock_waiting(sql: Sql) -> str:
    """In the order of their ids: two of us that replace the same jobs wait for each other, and no longer."""
    return f"""
    SELECT r.n, j.id, j.group_key FROM {sql.rows("rows", {"n": "int", "job_type": "text", "key": "text"})} AS r
    JOIN {sql.effect_ledger} AS l ON l.job_type = r.job_type AND l.key = r.key
    JOIN {sql.jobs} AS j ON j.id = l.job_id
    WHERE j.status = 'queued' AND j.attempts = 0 AND NOT j.has_attempts AND j.requeued_from IS NULL
    ORDER BY j.id {sql.lock(skip=False, of="j")}"""


def _replace(sql: Sql) -> str:
    fields = {field: kind for field, kind in KINDS.items() if field in NAMES and field not in _KEPT}
    values = {NAMES[field]: sql.time(f"r.{field}") if kind == "num" else f"r.{field}" for field, kind in fields.items()}
    values["run_at"] = f"COALESCE({values['run_at']}, {sql.after('r.delay')}, {sql.now})"
    values |= {"age_from": values["run_at"], "updated_at": sql.now, "routed": "true"}
    return f"""
    UPDATE {sql.jobs} AS j SET {", ".join(f"{column} = {value}" for column, value in values.items())}
    FROM {sql.rows("rows", JobRow)} AS r WHERE j.id = r.id"""


def _digest_again(sql: Sql) -> str:
    return f"""
    UPDATE {sql.effect_ledger} AS l SET digest = r.digest, updated_at = {sql.now}
    FROM {sql.rows("rows", JobRow)} AS r WHERE l.job_type = r.job_type AND l.key = r.key"""


def _forget_replaced(sql: Sql) -> str:
    """Of a job that is replaced with each keystroke, the newest replacement is noted."""
    ids = f"SELECT id FROM {sql.rows('rows', {'id': 'int'})} AS r"
    return f"DELETE FROM {sql.job_actions} WHERE job_id IN ({ids}) AND action = '{_REPLACE}'"


def _note_replaced(sql: Sql) -> str:
    return f"""
    INSERT INTO {sql.job_actions} (job_id, action, actor, created_at)
    SELECT r.id, '{_REPLACE}', 'app', {sql.now} FROM {sql.rows("rows", {"id": "int"})} AS r ORDER BY r.id"""
