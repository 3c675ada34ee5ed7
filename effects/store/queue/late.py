"""Late outcomes: what a worker learns of an attempt after it has lost its lease.

One is kept with its attempt if that is recorded as lost or unknown, and changes neither the job, nor an attempt that
runs, nor a person's resolution; nothing waits for it. It resolves only what is still held as unknown:

| what came late | the effect that was held as unknown |
|---|---|
| one of its attempts was done | is done: resolved by the worker, recorded by its ledger, with the outcome's `apply` |
| each of its unknown attempts was not done | is not unknown any more; its dead letter waits for a person as before |

It may come before the job is held, which then resolves it at once. The result of what was done is kept in any case.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

from msgspec.structs import replace
from sqlalchemy import Connection, Row

from effects.errors import StoreConflict, StoreUnavailable, WorkerCannotContinue
from effects.kit.logs import own_logger
from effects.kit.text.scrub import class_name
from effects.model.job import Job
from effects.model.ledger import Ledger
from effects.model.settlement import MESSAGE_CHARS_MAX, Settlement
from effects.store.audit_log import AuditAction, note
from effects.store.db.sql import Sql
from effects.store.db.store import Statement, Store, as_json
from effects.store.queue.applies import run_applies
from effects.store.queue.table_ledger import CORE_LEDGER, record_verdicts
from effects.store.queue.unresolved import MARK_DONE, NOT_DONE, record_action

_ACTIONS = {word: AuditAction("job", word) for word in (MARK_DONE, NOT_DONE)}
_log = own_logger("effects.worker")


def keep_late(store: Store, settlements: Sequence[Settlement], ledgers: Mapping[str, Ledger]) -> None:
    """Keep those of these outcomes that say whether the effect happened, each in its own transaction.

    Where resolving fails, as by an `apply` that raises, the outcome is kept without. Repeating it changes nothing.

    Args:
        settlements: which the fence refused.
        ledgers: job type → its ledger.

    Raises:
        StoreUnavailable, StoreConflict: repeat it.
    """
    for settlement in settlements:
        if settlement.outcome and settlement.verdict in ("done", "not_done"):
            try:
                _keep(store, settlement, ledgers)
            except (StoreUnavailable, StoreConflict, WorkerCannotContinue):
                raise
            except Exception as error:
                cause = error.__cause__ or error
                facts = {"job": settlement.job.id, "type": settlement.job.job_type, "error": class_name(cause)}
                _log.error("late.not_resolved", extra=facts)
                _keep(store, settlement, None)


def _keep(store: Store, settlement: Settlement, ledgers: Mapping[str, Ledger] | None) -> None:
    """The locks make whoever ends the job, or resolves it, come before or after."""
    job = settlement.job
    with store.begin() as connection:
        for lock in (_lock_live, _lock_ended):
            store.row(connection, lock, id=job.id)
        message = settlement.message[:MESSAGE_CHARS_MAX] if settlement.message else None
        kept = store.row(
            connection, _add, id=job.id, token=job.lease_token, outcome=settlement.outcome, verdict=settlement.verdict,
            code=settlement.error_code, message=message,
            result=None if settlement.result is None else as_json(settlement.result),
        )  # fmt: skip
        if kept is not None and ledgers is not None:
            _resolve(store, connection, job, ledgers, settlement)


def resolve_kept(
    store: Store, connection: Connection, held: Sequence[Settlement], ledgers: Mapping[str, Ledger]
) -> None:
    """Resolve those of these jobs, just held as unknown, of whose earlier attempts it is known by now what they did."""
    for settlement in held:
        job = settlement.job
        if job.unknown_count or (settlement.verdict == "unknown" and job.has_attempts):
            _resolve(store, connection, job, ledgers, None)


def _resolve(
    store: Store, connection: Connection, job: Job, ledgers: Mapping[str, Ledger], late: Settlement | None
) -> None:
    attempts = store.all(connection, _attempts, id=job.id)  # none unless the job is held as unknown
    done = [attempt for attempt in attempts if attempt.late_verdict == "done"]
    unknown = [attempt for attempt in attempts if attempt.verdict == "unknown"]
    if done:
        _record_action(store, connection, job, MARK_DONE, done[-1])
        settlement = Settlement(job=job, status="succeeded", outcome="", verdict="done")
        if late is not None and late.verdict == "done":
            settlement = replace(late, status="succeeded", outcome="")  # its attempt was counted when it was lost
            run_applies(store, connection, [settlement])
        record_verdicts(store, connection, [settlement], {job.job_type: CORE_LEDGER, **ledgers})
    elif unknown and all(attempt.late_verdict == "not_done" for attempt in unknown):
        _record_action(store, connection, job, NOT_DONE, unknown[-1])
        for statement in (_not_unknown, _needs_no_one):
            store.write(connection, statement, id=job.id)
        ledger = ledgers.get(job.job_type, CORE_LEDGER)
        if job.key is not None and not ledger.spans_jobs:
            store.write(connection, _refuse(ledger.table), id=job.id)


def _record_action(store: Store, connection: Connection, job: Job, action: str, attempt: Row[Any]) -> None:
    actor, reason = f"worker:{attempt.worker}", f"late outcome of attempt {attempt.attempt}"
    record_action(store, connection, job.id, action, actor, reason)
    note(store, connection, _ACTIONS[action], job.id, actor=actor, reason=reason)
    _log.warning("late.resolved", extra={"job": job.id, "type": job.job_type, "attempt": attempt.attempt, "as": action})


# -- the statements --------------------------------------------------------------------------------------


def _lock_live(sql: Sql) -> str:
    return f"SELECT id FROM {sql.jobs} WHERE id = :id {sql.lock(skip=False)}"


def _lock_ended(sql: Sql) -> str:
    return f"SELECT id FROM {sql.job_history} WHERE id = :id {sql.lock(skip=False)}"


def _add(sql: Sql) -> str:
    return f"""
    UPDATE {sql.attempt_log} SET late_outcome = CAST(:outcome AS text), late_verdict = CAST(:verdict AS text),
        late_code = CAST(:code AS text), late_message = CAST(:message AS text), late_at = {sql.now},
        result = {"CAST(:result AS jsonb)" if sql.postgresql else ":result"}
    WHERE job_id = :id AND lease_token = :token AND (outcome = 'lost' OR verdict = 'unknown') AND late_at IS NULL
    RETURNING attempt"""


def _attempts(sql: Sql) -> str:
    """Of a job that is held as unknown. Where an earlier job left its effect unknown, no attempt of this one proves
    that it was not done.
    """
    return f"""
    SELECT a.attempt, a.worker, a.verdict, CASE WHEN h.requeued_from IS NULL OR a.late_verdict = 'done'
        THEN a.late_verdict END AS late_verdict
    FROM {sql.unresolved} AS u JOIN {sql.job_history} AS h ON h.id = u.job_id
    JOIN {sql.attempt_log} AS a ON a.job_id = u.job_id
    WHERE u.job_id = :id AND u.unknown ORDER BY a.lease_token"""


def _not_unknown(sql: Sql) -> str:
    return f"UPDATE {sql.unresolved} SET unknown = false WHERE job_id = :id"


def _needs_no_one(sql: Sql) -> str:
    """A job that was cancelled is no dead letter."""
    dead = f"FROM {sql.job_history} AS h WHERE h.id = :id AND h.status = 'dead'"
    return f"DELETE FROM {sql.unresolved} WHERE job_id = :id AND NOT {sql.exists(dead)}"


@cache
def _refuse(table: str) -> Statement:
    def build(sql: Sql) -> str:
        return f"""
        UPDATE {getattr(sql, table)} SET state = 'refused', updated_at = {sql.now}
        WHERE job_id = :id AND state = 'unknown'"""

    return build
