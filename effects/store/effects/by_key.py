"""An effect by its idempotency key: where it stands, a new time for its job, and the jobs that followed from it."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec
from sqlalchemy import Connection, Row

from effects.errors import JobNotFound, KeyAmbiguous
from effects.keys.encryption import KeyRing
from effects.keys.sealing import KeptResult, attempt_row, read_result
from effects.kit.moments import moment
from effects.kit.text.unsafe import whole_number
from effects.kit.text.wording import shown_status
from effects.model.job import ENDED
from effects.model.ledger import Ledger, LedgerRow
from effects.store.audit_log import AuditAction, note
from effects.store.db.records import record
from effects.store.db.sql import Sql
from effects.store.db.store import Store, as_json
from effects.store.queue.table_ledger import CORE_LEDGER, all_ledgers
from effects.store.queue.unresolved import record_action

_MEANT_MAX = 3  # keys in an error
_NO_RESULT = "no attempt of its job returned one: a person resolved it, or a failover lost what it returned"
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
        result: what its function returned, once it is done, where its job type keeps that (`JobType.result`).
        result_missing: why there is no result of what is done, although its job type keeps them; else None.
    """

    key: str
    job_type: str
    state: str
    job_id: int
    status: str | None = None
    attempts: int = 0
    run_at: dt.datetime | None = None
    cancel_requested: bool = False
    error_code: str | None = None
    result: Any = None
    result_missing: str | None = None

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
    shown = ", ".join(repr(row.key) for row in rows[:_MEANT_MAX])
    return f"; is it {shown}{', …' if len(rows) > _MEANT_MAX else ''}?" if rows else ""


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
    run_at = moment(job.run_at) if waits else None
    fields = {"key": row.key, "state": row.state, "job_id": row.job_id, "run_at": run_at}
    return record(EffectStatus, job, status=shown_status(job.status), result=None, result_missing=None, **fields)


def with_result(
    store: Store, connection: Connection, keys: KeyRing, effect: EffectStatus, *, is_kept: bool
) -> EffectStatus:
    """The effect with its result, if it is done.

    Args:
        is_kept: its job type keeps results.
    """
    if effect.state != "done" or effect.status is None:
        return effect
    row = store.row(connection, _result, id=effect.job_id)
    if row is not None:
        kept = read_result(keys, row.result, attempt_row(effect.job_id, row.lease_token))
    else:
        kept = KeptResult(missing=_NO_RESULT if is_kept else None)
    return msgspec.structs.replace(effect, result=kept.value, result_missing=kept.missing)


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


def _result(sql: Sql) -> str:
    return f"""
    SELECT lease_token, {sql.json_text("result")} AS result FROM {sql.job_attempts}
    WHERE job_id = :id AND result IS NOT NULL ORDER BY lease_token DESC LIMIT 1"""


def _lock(sql: Sql) -> str:
    return f"""
    SELECT status, queue, released_at IS NOT NULL AS released FROM {sql.jobs} WHERE id = :id {sql.lock(skip=False)}"""


def _reschedule(sql: Sql) -> str:
    run_at = sql.time("CAST(:run_at AS double precision)")
    return f"""
    UPDATE {sql.jobs} SET run_at = {run_at}, age_from = CASE WHEN attempts = 0 THEN {run_at} ELSE age_from END,
        updated_at = {sql.now}
    WHERE id = :id"""


_NAMED_MAX, DEPTH_MAX, _ID_DIGITS_MAX = 50, 6, 18
_LED_TO = "led_to"


class Follower(msgspec.Struct, frozen=True, kw_only=True):
    """A job that followed from another one. `is_unresolved`: it ended dead or unknown, and no one has decided."""

    job_id: int
    job_type: str
    status: str
    error_code: str | None
    error: str | None
    is_unresolved: bool


def record_followers(store: Store, connection: Connection, job_id: int, followers: Sequence[int | str]) -> None:
    """Note which jobs followed from one, in the transaction that writes them; the first 50 are named.

    Args:
        followers: ids of jobs, or names without blanks by which a package's ledger knows effects of many jobs.
    """
    if followers:
        ids = " ".join(map(str, followers[:_NAMED_MAX]))
        store.write(connection, _record, id=job_id, action=_LED_TO, ids=ids)


def read_followers(
    store: Store, connection: Connection, job_ids: Sequence[int], jobs_of: Callable[[str], Sequence[int]]
) -> list[Follower]:
    """What followed from these jobs, and from those in turn: six steps deep, 50 jobs a step, the nearest first.

    Args:
        jobs_of: the newest job of each effect of this name.
    """
    followers: dict[int, Follower] = {}
    level = list(job_ids)
    for _ in range(DEPTH_MAX):
        rows = store.all(connection, _led_to, ids=as_json(level), action=_LED_TO)
        words = [word for row in rows for word in str(row.reason).split()]
        numbers = [(word, whole_number(word, _ID_DIGITS_MAX)) for word in words[:_NAMED_MAX]]
        ids = {job_id for word, number in numbers for job_id in (jobs_of(word) if number is None else [number])}
        level = sorted(ids - {*followers, *job_ids})[:_NAMED_MAX]
        if not level:
            break
        for row in store.all(connection, _followers, ids=as_json(level)):
            followers[row.job_id] = Follower(**{**row._mapping, "is_unresolved": bool(row.is_unresolved)})
    return list(followers.values())


def _record(sql: Sql) -> str:
    return f"""
    INSERT INTO {sql.job_actions} (job_id, action, actor, reason, created_at)
    VALUES (:id, :action, 'effects', :ids, {sql.now})"""


def _led_to(sql: Sql) -> str:
    return f"SELECT reason FROM {sql.job_actions} WHERE job_id {sql.any_of('ids', 'int')} AND action = :action"


def _followers(sql: Sql) -> str:
    unresolved = sql.exists(f"FROM {sql.unresolved} AS u WHERE u.job_id = j.id")
    select = f"SELECT id AS job_id, job_type, status, error_code, last_error AS error, {unresolved} AS is_unresolved"
    named = f"WHERE id {sql.any_of('ids', 'int')}"
    return f"""
    {select} FROM {sql.jobs} AS j {named} UNION ALL {select} FROM {sql.job_history} AS j {named} ORDER BY job_id"""
