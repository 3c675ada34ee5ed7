"""An effect by its idempotency key: where it stands, and a new time for its job."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
from sqlalchemy import Connection, Row

from effects.errors import JobNotFound, KeyAmbiguous
from effects.model.job import ENDED
from effects.model.ledger import Ledger, LedgerRow
from effects.moments import moment
from effects.store.audit_log.notes import AuditAction, note
from effects.store.db.records import Moment, shown_moment
from effects.store.db.sql import Sql
from effects.store.db.store import Store, as_json
from effects.store.operator.actions import record_action
from effects.store.queue.table_ledger import CORE_LEDGER, all_ledgers

MEANT_MAX = 3  # keys in an error
RESCHEDULE = "reschedule"  # a word of `effects_job_actions.action`
_RESCHEDULE_JOB = AuditAction("job", RESCHEDULE)


class EffectStatus(msgspec.Struct, frozen=True, kw_only=True):
    """An effect and its newest job, as they were when they were read.

    Attributes:
        state: what became of the effect, over all jobs that tried it: `intended` (nothing yet), `released` (an attempt
            may be making it now), `done`, `refused`, `unknown` (it may or may not have happened) or `abandoned`.
        status: of the newest job: `queued`, `running`, `failed` (it waits for its next try), `succeeded`, `dead` or
            `cancelled`. None once retention has deleted the job; the effect's row is kept for longer.
        attempts: of the newest job, the one under way included.
        run_at: when the job is due; None unless it waits. A text where Python cannot represent the time.
        cancel_requested: the attempt under way was asked to stop, and is not followed by another.
        error_code: of the newest failure.
    """

    key: str
    job_type: str
    state: str
    job_id: int
    status: str | None = None
    attempts: int = 0
    run_at: Moment | None = None
    cancel_requested: bool = False
    error_code: str | None = None

    @property
    def ended(self) -> bool:
        """Nothing more happens by itself."""
        return self.status is None or self.status in ENDED


def find_effect(
    store: Store, connection: Connection, ledgers: Mapping[str, Ledger], key: str, job_type: str | None
) -> EffectStatus:
    """The one effect of this key.

    Args:
        job_type: look among the effects of this type only. Default: of all.

    Raises:
        JobNotFound: no effect has it.
        KeyAmbiguous: effects of several job types have this key.
    """
    chosen = all_ledgers(ledgers) if job_type is None else [ledgers.get(job_type, CORE_LEDGER)]
    rows, jobs = _holders(store, connection, chosen, key)
    effects = [_status(row, jobs.get(row.job_id), job_type) for row in rows]
    effects = [effect for effect in effects if job_type in (None, effect.job_type)]
    if not effects:
        missing = f"no effect with key {key!r}" if job_type is None else f"no {job_type} with key {key!r}"
        raise JobNotFound(f"{missing}{_meant(store, connection, chosen, key)}")
    if len(effects) > 1:
        names = ", ".join(sorted(effect.job_type for effect in effects))
        raise KeyAmbiguous(f"key {key!r} is that of several effects: name one of the job types {names}")
    return effects[0]


def _meant(store: Store, connection: Connection, ledgers: Sequence[Ledger], key: str) -> str:
    """The keys of effects that are also known by this name, such as the event id of a message."""
    rows = [row for ledger in ledgers if not ledger.spans_jobs for row in ledger.find(store, connection, key)]
    shown = ", ".join(repr(row.key) for row in rows[:MEANT_MAX])
    return f"; is it {shown}{', …' if len(rows) > MEANT_MAX else ''}?" if rows else ""


def _holders(
    store: Store, connection: Connection, ledgers: Sequence[Ledger], key: str
) -> tuple[list[LedgerRow], dict[int, Row[Any]]]:
    """The effects of this key, and the jobs of those that still have one, by their ids.

    An end and what it makes of the effect are one commit. It may come between the statements, of which each has a
    snapshot of its own: so beside an ended job the effect is looked at again.
    """
    rows = [row for ledger in ledgers for row in ledger.holders(store, connection, key)]
    while True:
        jobs = {job.id: job for job in store.all(connection, _jobs, ids=as_json([row.job_id for row in rows]))}
        if not any(job.status in ENDED for job in jobs.values()):
            return rows, jobs
        again = [row for ledger in ledgers for row in ledger.holders(store, connection, key)]
        if again == rows:
            return rows, jobs
        rows = again


def _status(row: LedgerRow, job: Row[Any] | None, job_type: str | None) -> EffectStatus:
    if job is None:  # a ledger that serves one type does not name it
        return EffectStatus(key=row.key, job_type=row.job_type or job_type or "", state=row.state, job_id=row.job_id)
    waits = job.status not in ENDED and job.status != "running"
    return EffectStatus(
        key=row.key,
        job_type=job.job_type,
        state=row.state,
        job_id=row.job_id,
        status=job.status,
        attempts=job.attempts,
        run_at=shown_moment(job.run_at) if waits else None,
        cancel_requested=bool(job.cancel_requested),
        error_code=job.error_code,
    )


def lock_live(
    store: Store, connection: Connection, ledgers: Mapping[str, Ledger], key: str, job_type: str | None
) -> tuple[EffectStatus, Row[Any] | None]:
    """The effect of this key with its live job's status, queue and `released`, locked; None where it has none.

    Raises:
        JobNotFound, KeyAmbiguous: as `find_effect`.
    """
    effect = find_effect(store, connection, ledgers, key, job_type)
    while True:
        row = store.row(connection, _lock, id=effect.job_id)
        if row is not None:
            return effect, row
        newer = find_effect(store, connection, ledgers, key, job_type)
        if newer.job_id == effect.job_id:
            return newer, None
        effect = newer  # it was requeued between the two statements


def reschedule(
    store: Store, connection: Connection, job_id: int, run_at: float, *, actor: str, reason: str | None
) -> None:
    """Give a waiting job, which the caller has locked, another time (seconds since 1970).

    Its age counts from there if it has not been tried yet.
    """
    store.write(connection, _reschedule, id=job_id, run_at=run_at)
    record_action(store, connection, job_id, RESCHEDULE, actor, reason)
    detail = {"run_at": moment(run_at).isoformat()}
    note(store, connection, _RESCHEDULE_JOB, job_id, actor=actor, reason=reason, detail=detail)


# -- the statements --------------------------------------------------------------------------------------


def _jobs(sql: Sql) -> str:
    columns = f"id, job_type, status, attempts, {sql.epoch('run_at')} AS run_at, error_code"
    return f"""
    SELECT {columns}, cancel_requested FROM {sql.jobs} WHERE id {sql.any_of("ids", "int")}
    UNION ALL SELECT {columns}, false AS cancel_requested FROM {sql.job_history} WHERE id {sql.any_of("ids", "int")}"""


def _lock(sql: Sql) -> str:
    return f"""
    SELECT status, queue, released_at IS NOT NULL AS released FROM {sql.jobs} WHERE id = :id {sql.lock(skip=False)}"""


def _reschedule(sql: Sql) -> str:
    run_at = sql.time("CAST(:run_at AS double precision)")
    return f"""
    UPDATE {sql.jobs} SET run_at = {run_at}, age_from = CASE WHEN attempts = 0 THEN {run_at} ELSE age_from END,
        updated_at = {sql.now}
    WHERE id = :id"""
