"""The unresolved jobs: ended, dead or with an effect that may have happened, and waiting for a person's decision.

Kept in the transaction that ends a job or resolves it, so that to count what is open costs nothing for what is closed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache

from sqlalchemy import Connection

from effects.model.ledger import Ledger
from effects.store.db.sql import Sql
from effects.store.db.store import Statement, Store, as_json
from effects.store.queue.table_ledger import all_ledgers

# Words of `effects_job_actions.action`. By NOT_DONE a worker says that no attempt had its effect: a dead letter is no
# unknown outcome any more. The others resolve either.
NOT_DONE = "not_done"
REQUEUE, IGNORE, MARK_DONE, GIVE_UP = "requeue", "ignore", "mark_done", "give_up"
CLOSING = (REQUEUE, IGNORE, MARK_DONE, GIVE_UP)


def add_unresolved(store: Store, connection: Connection, job_ids: Sequence[int], ledgers: Mapping[str, Ledger]) -> None:
    """Add those of these ended jobs that need a person. Their ledgers have recorded the end before, and may have
    resolved it at once.
    """
    tables = tuple(ledger.table for ledger in all_ledgers(ledgers))
    store.write(connection, _add(tables), ids=as_json(job_ids))


def remove_unresolved(store: Store, connection: Connection, job_ids: Sequence[int]) -> None:
    """Remove these jobs, which a person has resolved."""
    store.write(connection, _remove, ids=as_json(job_ids))


def record_action(
    store: Store, connection: Connection, job_id: int, action: str, actor: str, reason: str | None
) -> None:
    """Write who did what to this job, and why: the record that decides its state, and goes with it.

    A resolution ends the job's wait for a person.
    """
    if action in CLOSING:
        remove_unresolved(store, connection, [job_id])
    store.write(connection, _act, id=job_id, action=action, actor=actor, reason=reason)


def closing_actions(sql: Sql) -> str:
    """The resolutions `a` of the ended job `h`."""
    return f"FROM {sql.job_actions} AS a WHERE a.job_id = h.id AND a.action IN ({closing_words()})"


def closing_words() -> str:
    return ", ".join(f"'{word}'" for word in CLOSING)


def is_unknown(sql: Sql, tables: tuple[str, ...]) -> str:
    """Condition: the effect of the ended job `h` may have happened, by its ledger row or else its attempts."""
    ledgers = " OR ".join(
        sql.exists(f"FROM {getattr(sql, table)} AS l WHERE l.job_id = h.id AND l.state = 'unknown'") for table in tables
    )
    keyless = f"h.idempotency_key IS NULL AND h.unknown_count > 0 AND NOT {is_proved_not_done(sql, 'h.id')}"
    return f"(h.status <> 'succeeded' AND ({keyless} OR {ledgers}))"


def is_proved_not_done(sql: Sql, job_id: str) -> str:
    """Condition: all that was unknown of this job's attempts has turned out not to be done."""
    return sql.exists(f"FROM {sql.job_actions} AS p WHERE p.job_id = {job_id} AND p.action = '{NOT_DONE}'")


def is_resolved(sql: Sql, seconds: str | None = None) -> str:
    """Condition: the ended job `h` was resolved; at least `seconds` ago, if that is given."""
    age = "" if seconds is None else f" AND {sql.seconds('a.created_at')} >= {seconds}"  # a clock may be set back
    return sql.exists(f"{closing_actions(sql)}{age}")


def needs_person(sql: Sql, tables: tuple[str, ...]) -> str:
    """Condition: the ended job `h` is dead or its effect unknown. The first part is that of its index."""
    return f"(h.status <> 'succeeded' AND (h.status = 'dead' OR {is_unknown(sql, tables)}))"


@cache
def _add(tables: tuple[str, ...]) -> Statement:
    def build(sql: Sql) -> str:
        return f"""
        INSERT INTO {sql.unresolved} (job_id, job_type, queue, limit_key, error_code, unknown, finished_at)
        SELECT h.id, h.job_type, h.queue, h.limit_key, h.error_code, {is_unknown(sql, tables)}, h.finished_at
        FROM {sql.job_history} AS h WHERE h.id {sql.any_of("ids", "int")} AND {needs_person(sql, tables)}
            AND NOT {sql.exists(closing_actions(sql))}"""

    return build


def _act(sql: Sql) -> str:
    return f"""
    INSERT INTO {sql.job_actions} (job_id, action, actor, reason, created_at)
    VALUES (:id, :action, :actor, :reason, {sql.now})"""


def _remove(sql: Sql) -> str:
    return f"DELETE FROM {sql.unresolved} WHERE job_id {sql.any_of('ids', 'int')}"
