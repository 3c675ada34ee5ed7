"""The statements that write settlements, fenced by `(id, lease_token)`, and the rows that they are given.

The predicate names no status: the write goes by the primary key, regardless of the planner's statistics.
"""

from __future__ import annotations

import msgspec

from effects.model.job import QUARANTINE_QUEUE
from effects.model.settlement import MESSAGE_CHARS_MAX, Settlement
from effects.store.db.sql import Sql, columns_of
from effects.store.schema.job_tables import FACTS


class SettlementRow(msgspec.Struct, omit_defaults=True, gc=False):
    """One settlement as a row. What is at its default is left out: to parse it was most of a settlement's cost."""

    id: int
    token: int
    status: str
    outcome: str
    queue: str
    verdict: str | None = None
    delay: float = 0.0
    forgiven: float = 0.0
    refund: int = 0
    lost: int = 0
    unknown: int = 0
    error_code: str | None = None
    message: str | None = None
    error_type: str | None = None
    stack: str | None = None
    detail: object = None
    error_text: object = None
    result: object = None
    took: float = 0.0
    ago: float = 0.0
    priority: int | None = None
    group_key: str | None = None
    limit_key: str | None = None
    routed: bool = False


class DoneRow(msgspec.Struct, omit_defaults=True, gc=False):
    """A success that is one row: its attempt needs none beside its job's."""

    id: int
    token: int
    took: float
    ago: float
    detail: object = None
    result: object = None


def row_of(settlement: Settlement, now: float) -> SettlementRow:
    job, routing = settlement.job, settlement.routing
    return SettlementRow(
        id=job.id,
        token=job.lease_token,
        status=settlement.status,
        outcome=settlement.outcome,
        verdict=settlement.verdict,
        delay=settlement.delay_seconds,
        forgiven=settlement.age_seconds_forgiven,
        refund=int(settlement.refund_attempt),
        lost=int(settlement.lost),
        unknown=int(settlement.verdict == "unknown"),
        error_code=settlement.error_code,
        message=settlement.message[:MESSAGE_CHARS_MAX] if settlement.message else None,
        error_type=settlement.error_type,
        stack=settlement.stack,
        error_text=settlement.error_text,
        detail=settlement.detail,
        result=settlement.result,
        took=settlement.duration_seconds,
        ago=_ago(settlement, now),
        queue=_next_queue(settlement),
        priority=routing.priority if routing else None,
        group_key=routing.group_key if routing else None,
        limit_key=routing.limit_key if routing else None,
        routed=routing is not None,
    )


def done_row(settlement: Settlement, now: float) -> DoneRow:
    job = settlement.job
    took, ago = settlement.duration_seconds, _ago(settlement, now)
    return DoneRow(job.id, job.lease_token, took, ago, settlement.detail, settlement.result)


def _ago(settlement: Settlement, now: float) -> float:
    ended = settlement.ended_at_monotonic
    return now - ended if 0 < ended < now else 0.0


def is_one_row(settlement: Settlement) -> bool:
    """Whether the row of the ended job holds all of its attempts: one that did the effect and has no error."""
    return (
        settlement.status == settlement.outcome == "succeeded"
        and settlement.verdict == "done"
        and not settlement.job.has_attempts
        and settlement.message is None
        and settlement.error_type is None
        and settlement.error_code is None
        and settlement.stack is None
        and settlement.error_text is None
    )


def _next_queue(settlement: Settlement) -> str:
    job, routing = settlement.job, settlement.routing
    if routing is not None:
        return routing.queue
    if settlement.lost:
        return QUARANTINE_QUEUE
    return job.home_queue if settlement.outcome else job.queue  # given back: it stays where it was


_COLUMNS = columns_of(SettlementRow)
# What stands for a number or flag that was left out.
_ZERO = {
    field.name: "false" if field.default is False else "0"
    for field in msgspec.structs.fields(SettlementRow)
    if not field.required and field.default == 0
}


# -- the statements --------------------------------------------------------------------------------------------

_MOVED = ", ".join(
    name for name in FACTS if name not in ("attempts", "lost_count", "unknown_count", "error_code", "last_error")
)
_HISTORY = f"id, {_MOVED}, attempts, lost_count, unknown_count, error_code, last_error, status, finished_at"
_DONE = f"{_HISTORY}, started_at, worker, verdict, detail, result"
_ATTEMPT = (
    "job_id, lease_token, attempt, started_at, finished_at, worker, outcome, verdict, error_type, error_code, message, "
    "stack, detail, error_text, result"
)


def _moved(job: str) -> str:
    moved = ", ".join(f"{job}.{name}" for name in _MOVED.split(", "))
    # What ended in quarantine is remembered with its own queue, where a requeue brings it back to.
    return moved.replace(f"{job}.queue", f"COALESCE({job}.quarantined_from, {job}.queue)")


def _history_values(sql: Sql, job: str) -> str:
    return (
        f"{job}.id, {_moved(job)}, {job}.attempts - r.refund, {job}.lost_count + r.lost, "
        f"{job}.unknown_count + r.unknown, r.error_code, r.message, r.status, {sql.after('-r.ago')}"
    )


def _done_values(sql: Sql, job: str) -> str:
    """Of a job and its attempt in one."""
    finished = sql.after("-r.ago")
    return (
        f"{job}.id, {_moved(job)}, {job}.attempts, {job}.lost_count, {job}.unknown_count, NULL, NULL, 'succeeded', "
        f"{finished}, {sql.after('-r.took', finished)}, {job}.locked_by, 'done', r.detail, r.result"
    )


def _attempt_values(sql: Sql, job: str) -> str:
    """An attempt that was lost with its worker began, as far as anyone knows, when it was claimed."""
    finished = sql.after("-r.ago")
    claimed = f"COALESCE({sql.smallest(f'{job}.started_at', finished)}, {finished})"
    started = f"CASE WHEN r.lost = 1 THEN {claimed} ELSE {sql.after('-r.took', finished)} END"
    return (
        f"{job}.id, r.token, {job}.attempts, {started}, {finished}, {job}.locked_by, r.outcome, "
        f"r.verdict, r.error_type, r.error_code, r.message, r.stack, r.detail, r.error_text, r.result"
    )


_HAS_OWN_ROW = "r.outcome <> ''"


def _rows(sql: Sql) -> str:
    named = ", ".join(
        f"COALESCE({name}, {_ZERO[name]}) AS {name}" if name in _ZERO else name for name in columns_of(SettlementRow)
    )
    return f"(SELECT {named} FROM {sql.rows('rows', SettlementRow)} AS given)"


def end(sql: Sql) -> str:
    """PostgreSQL: delete the live rows, write history and attempts, all in one statement."""
    return f"""
    WITH r AS MATERIALIZED {_rows(sql)},
    gone AS ({_delete_live(sql)}),
    history AS (
        INSERT INTO {sql.job_history} ({_HISTORY})
        SELECT {_history_values(sql, "gone")} FROM gone JOIN r ON r.id = gone.id
    ), attempts AS (
        INSERT INTO {sql.attempt_log} ({_ATTEMPT})
        SELECT {_attempt_values(sql, "gone")} FROM gone JOIN r ON r.id = gone.id WHERE {_HAS_OWN_ROW}
    )
    SELECT id FROM gone"""


def end_done(sql: Sql) -> str:
    """PostgreSQL: `end` for successes that are one row."""
    return f"""
    WITH r AS MATERIALIZED {sql.rows("rows", DoneRow)},
    gone AS ({_delete_live(sql)}),
    history AS (
        INSERT INTO {sql.job_history} ({_DONE})
        SELECT {_done_values(sql, "gone")} FROM gone JOIN r ON r.id = gone.id
    )
    SELECT id FROM gone"""


def _delete_live(sql: Sql) -> str:
    return f"""
        DELETE FROM {sql.jobs} AS j
        WHERE j.id {sql.among("r")} AND (j.id, j.lease_token) IN (SELECT id, token FROM r) RETURNING j.*"""


def end_history(sql: Sql) -> str:
    return f"""
    INSERT INTO {sql.job_history} ({_HISTORY})
    SELECT {_history_values(sql, "j")} FROM {_rows(sql)} AS r JOIN {sql.jobs} AS j
    ON j.id = r.id AND j.lease_token = r.token"""


def end_done_history(sql: Sql) -> str:
    return f"""
    INSERT INTO {sql.job_history} ({_DONE})
    SELECT {_done_values(sql, "j")} FROM {sql.rows("rows", DoneRow)} AS r JOIN {sql.jobs} AS j
    ON j.id = r.id AND j.lease_token = r.token"""


def end_attempts(sql: Sql) -> str:
    return f"""
    INSERT INTO {sql.attempt_log} ({_ATTEMPT})
    SELECT {_attempt_values(sql, "j")} FROM {_rows(sql)} AS r JOIN {sql.jobs} AS j
    ON j.id = r.id AND j.lease_token = r.token WHERE {_HAS_OWN_ROW}"""


def end_delete(sql: Sql) -> str:
    """Takes rows of both kinds."""
    rows = sql.rows("rows", {"id": "int", "token": "int"})
    return f"DELETE FROM {sql.jobs} WHERE (id, lease_token) IN (SELECT r.id, r.token FROM {rows} AS r) RETURNING id"


def end_delete_all(sql: Sql) -> str:
    """Of jobs whose history this transaction has written, behind the fence."""
    return f"DELETE FROM {sql.jobs} WHERE id {sql.any_of('ids', 'int')}"


def again(sql: Sql) -> str:
    """Return a job to the queue. Selects its new token and whether cancellation was requested meanwhile."""
    return f"""
    WITH r AS {_rows(sql)}
    UPDATE {sql.jobs} AS j SET
        status = r.status, attempts = attempts - r.refund, lease_token = {sql.next_token},
        run_at = CASE WHEN r.refund = 1 AND r.delay = 0 THEN run_at ELSE {sql.after("r.delay")} END,
        age_from = {sql.after("r.forgiven", "age_from")},
        lost_count = CASE WHEN r.lost = 1 THEN lost_count + 1 WHEN r.outcome <> '' THEN 0 ELSE lost_count END,
        unknown_count = unknown_count + r.unknown,
        quarantined_from = CASE WHEN r.lost = 1 THEN COALESCE(quarantined_from, j.queue)
            WHEN r.queue = j.queue THEN quarantined_from ELSE NULL END,
        queue = r.queue, priority = COALESCE(r.priority, j.priority), routed = (j.routed OR r.routed),
        group_key = COALESCE(r.group_key, j.group_key), limit_key = COALESCE(r.limit_key, j.limit_key),
        last_error = COALESCE(r.message, last_error), error_code = COALESCE(r.error_code, j.error_code),
        has_attempts = (has_attempts OR r.outcome <> ''),
        locked_until = NULL, released_at = NULL, updated_at = {sql.now}
    FROM r WHERE j.id {sql.among("r")} AND j.id = r.id AND j.lease_token = r.token
    RETURNING {sql.own("j", "id")}, {sql.own("j", "lease_token")}, cancel_requested"""


def again_attempts(sql: Sql) -> str:
    """Of jobs that `again` has just sent back in this transaction: their tokens are new, their rows are ours."""
    return f"""
    WITH r AS {_rows(sql)}
    INSERT INTO {sql.attempt_log} ({_ATTEMPT})
    SELECT {_attempt_values(sql, "j").replace("j.attempts", "j.attempts + r.refund")}
    FROM r JOIN {sql.jobs} AS j ON j.id {sql.among("r")} AND j.id = r.id
    WHERE r.outcome <> ''"""


def recorded(sql: Sql) -> str:
    """From both tables rather than their view, which SQLite would read in full for a join."""
    rows = sql.rows("rows", {"id": "int", "token": "int", "outcome": "text"})
    return f"""
    SELECT a.job_id, a.lease_token, a.outcome FROM {rows} AS r
    JOIN {sql.attempt_log} AS a ON a.job_id = r.id AND a.lease_token = r.token AND a.outcome = r.outcome
    UNION ALL SELECT h.id, h.lease_token, 'succeeded' FROM {rows} AS r
    JOIN {sql.job_history} AS h ON h.id = r.id AND h.lease_token = r.token
    WHERE h.started_at IS NOT NULL AND r.outcome = 'succeeded'"""


def annotate_log(sql: Sql) -> str:
    return f"UPDATE {sql.attempt_log} SET message = :text WHERE job_id = :id AND lease_token = :token"


def annotate_history(sql: Sql) -> str:
    return f"""
    UPDATE {sql.job_history} SET message = :text
    WHERE id = :id AND lease_token = :token AND started_at IS NOT NULL"""
