"""Deleting what has ended, a page at a time, by walks over primary keys.

Ids rise with time, so old rows come first: a walk ends at the first page without an old row. No index is
kept for it, because one on `finished_at` would cost every settlement. A page is read without locks; what may go is
then locked, skipping what is locked already, and checked once more by the statement that deletes.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

from sqlalchemy import Connection

from effects.kit.crashpoints import point
from effects.store.db.sql import Sql
from effects.store.db.store import Statement, Store, as_json
from effects.store.db.walk import PAGE, Ages, Page, delete_page, may_continue, old_rows
from effects.store.limits.key_limits import LIMIT_COLUMNS
from effects.store.queue.unresolved import is_resolved, is_unknown
from effects.store.schema.tables import ORPHAN, PRUNED_JOBS
from effects.store.workers import needs_person, present_id

# -- ended jobs ------------------------------------------------------------------------------------------


def jobs(
    store: Store, *, tables: tuple[str, ...], ages: Ages, dead_seconds: float, cursor: int | None, dry_run: bool
) -> Page:
    """One page of `job_history` by id, with the attempts and actions of what goes.

    Args:
        tables: the ledgers in which an effect may be unknown.
        dead_seconds: how long a dead or unknown job is kept after it was resolved.
    """
    with store.read() as connection:
        page: Sequence[Any] = store.all(connection, _jobs_page(tables), cursor=cursor or 0, dead=dead_seconds)
    gone = [job_id for job_id, job_type, eligible, age in page if eligible and age >= ages.of(job_type)]
    if gone and not dry_run:
        with store.begin() as connection:
            gone = _delete_jobs(store, connection, tables, gone, dead_seconds)
            point("prune.before_commit")
        point("prune.committed")
    continues = len(page) == PAGE and may_continue((row.age for row in page), ages.least)
    return Page(len(gone), page[-1].id if continues else None)


def _delete_jobs(
    store: Store, connection: Connection, tables: tuple[str, ...], ids: Sequence[int], dead_seconds: float
) -> list[int]:
    locked = [row.id for row in store.all(connection, _lock_jobs, ids=as_json(ids))]
    gone = [row.id for row in store.all(connection, _delete(tables), ids=as_json(locked), dead=dead_seconds)]
    if gone:
        store.write(connection, _delete_attempts, ids=as_json(gone))
        store.write(connection, _delete_actions, ids=as_json(gone))
        store.write(connection, _mark, name=PRUNED_JOBS, job_id=max(gone))
    return gone


def _may_go(sql: Sql, tables: tuple[str, ...]) -> str:
    """Whether the ended job `h` may go once it is old enough, which it stays.

    One that another came from stays as long as that: its verdicts count.
    """
    unknown = is_unknown(sql, tables)
    return f"""
    NOT {sql.exists(f"FROM {sql.jobs} AS j WHERE j.requeued_from = h.id")}
    AND NOT {sql.exists(f"FROM {sql.job_history} AS k WHERE k.requeued_from = h.id")}
    AND NOT {sql.exists(f"FROM {sql.unresolved} AS u WHERE u.job_id = h.id")}
    AND CASE WHEN h.status = 'succeeded' THEN true
        WHEN h.status = 'cancelled' AND NOT {unknown} THEN true
        ELSE {is_resolved(sql, sql.number("dead"))} END"""


@cache
def _jobs_page(tables: tuple[str, ...]) -> Statement:
    def build(sql: Sql) -> str:
        columns = "id, job_type, status, idempotency_key, unknown_count, finished_at"
        return f"""
        SELECT h.id, h.job_type, {_may_go(sql, tables)} AS eligible, {sql.seconds("h.finished_at")} AS age
        FROM (SELECT {columns} FROM {sql.job_history} WHERE id > :cursor ORDER BY id LIMIT {PAGE}) AS h
        ORDER BY h.id"""

    return build


def _lock_jobs(sql: Sql) -> str:
    """A concurrent requeue has locked its job, which stays; a later one does not find it."""
    return f"SELECT id FROM {sql.job_history} WHERE id {sql.any_of('ids', 'int')} ORDER BY id {sql.lock()}"


@cache
def _delete(tables: tuple[str, ...]) -> Statement:
    def build(sql: Sql) -> str:
        return f"""
        DELETE FROM {sql.job_history} AS h WHERE h.id {sql.any_of("ids", "int")} AND {_may_go(sql, tables)}
        RETURNING id"""

    return build


def _delete_attempts(sql: Sql) -> str:
    return f"DELETE FROM {sql.attempt_log} WHERE job_id {sql.any_of('ids', 'int')}"


def _delete_actions(sql: Sql) -> str:
    return f"DELETE FROM {sql.job_actions} WHERE job_id {sql.any_of('ids', 'int')}"


def _mark(sql: Sql) -> str:
    """How far pruning has gone, for the audit: an effect without a job is sound only up to there."""
    return f"""
    INSERT INTO {sql.pruned} (name, job_id, updated_at) VALUES (:name, :job_id, {sql.now})
    ON CONFLICT (name) DO UPDATE SET updated_at = excluded.updated_at,
        job_id = CASE WHEN excluded.job_id > {sql.pruned}.job_id THEN excluded.job_id ELSE {sql.pruned}.job_id END"""


# -- what is left behind ---------------------------------------------------------------------------------


def groups(store: Store, *, cursor: str | None, dry_run: bool) -> Page:
    """One page of groups: those with no live job, unless an operator has blocked them."""
    with store.read() as connection:
        page = store.all(connection, _groups_page, cursor=cursor or "")
    names = [row.group_key for row in page if row.eligible]
    taken = len(names)
    if names and not dry_run:
        with store.begin() as connection:
            locked = [row.group_key for row in store.all(connection, _lock_groups, names=as_json(names))]
            taken = store.write(connection, _delete_groups, names=as_json(locked))
    return Page(taken, None if len(page) < PAGE else page[-1].group_key)


def _unused(sql: Sql) -> str:
    return f"NOT g.blocked AND NOT {sql.exists(f'FROM {sql.jobs} AS j WHERE j.group_key = g.group_key')}"


def _groups_page(sql: Sql) -> str:
    return f"""
    SELECT g.group_key, {_unused(sql)} AS eligible FROM {sql.job_groups} AS g WHERE g.group_key > :cursor
    ORDER BY g.group_key LIMIT {PAGE}"""


def _lock_groups(sql: Sql) -> str:
    """An enqueue under way holds its group's row; it is skipped, and its job is seen by the next walk."""
    return f"""
    SELECT group_key FROM {sql.job_groups} WHERE group_key {sql.any_of("names")} ORDER BY group_key {sql.lock()}"""


def _delete_groups(sql: Sql) -> str:
    return f"DELETE FROM {sql.job_groups} AS g WHERE g.group_key {sql.any_of('names')} AND {_unused(sql)}"


def limits(store: Store, *, seconds: float, cursor: object, dry_run: bool) -> Page:
    """One page of limit keys without limits or a parent whose last pause is long over."""
    return delete_page(store, IDLE_LIMITS, seconds, cursor, dry_run=dry_run)


def _idle(sql: Sql) -> str:
    none = " AND ".join(f"l.{column} IS NULL" for column in LIMIT_COLUMNS)
    return f"""
    SELECT l.limit_key FROM {sql.limits} AS l WHERE {none} AND {sql.seconds("l.paused_until")} >= {sql.number("age")}
    AND NOT EXISTS (SELECT 1 FROM {sql.limits} AS child WHERE child.parent_key = l.limit_key)"""


IDLE_LIMITS = old_rows("limits", "limit_key", _idle, lock=Sql.lock)


def slots(store: Store, *, seconds: float, cursor: object, dry_run: bool) -> Page:
    """One page of old slots, which cannot run again because their schedules have passed them."""
    return delete_page(store, OLD_SLOTS, seconds, cursor, dry_run=dry_run)


def _old_slots(sql: Sql) -> str:
    return f"""
    SELECT r.definition_id, r.slot FROM {sql.definition_runs} AS r
    LEFT JOIN {sql.job_definitions} AS d ON d.id = r.definition_id
    WHERE {sql.seconds("r.created_at")} >= {sql.number("age")} AND (d.id IS NULL OR r.slot < d.last_slot)"""


OLD_SLOTS = old_rows("definition_runs", "definition_id, slot", _old_slots)


def _old_bulks(sql: Sql) -> str:
    """One that was given up counts as well."""
    return f"SELECT id FROM {sql.bulk_actions} WHERE updated_at <= {sql.after('-' + sql.number('age'))}"


OLD_BULKS = old_rows("bulk_actions", "id", _old_bulks)


def bulks(store: Store, *, seconds: float, cursor: object, dry_run: bool) -> Page:
    """One page of bulk actions that nothing has moved for as long as the audit log is kept."""
    return delete_page(store, OLD_BULKS, seconds, cursor, dry_run=dry_run)


def _old_evidence(sql: Sql) -> str:
    """Orphans stay until someone has resolved their failover."""
    unresolved = f"FROM {sql.failovers} AS f WHERE f.id = e.failover_id AND f.resolved_at IS NULL"
    return f"""
    SELECT id FROM {sql.evidence} AS e WHERE {sql.seconds("e.created_at")} >= {sql.number("age")}
    AND NOT (e.fate = '{ORPHAN}' AND {sql.exists(unresolved)})"""


OLD_EVIDENCE = old_rows("evidence", "id", _old_evidence)


def evidence(store: Store, *, seconds: float, cursor: object, dry_run: bool) -> Page:
    """One page of what workers remembered of failovers long ago; orphans that no one has resolved stay."""
    return delete_page(store, OLD_EVIDENCE, seconds, cursor, dry_run=dry_run)


def _old_failovers(sql: Sql) -> str:
    """The newest one is the present history; one that needs a person stays, as does one of which there is evidence."""
    return f"""
    SELECT id FROM {sql.failovers} AS f WHERE {sql.seconds("f.noticed_at")} >= {sql.number("age")}
    AND f.id < {present_id(sql)} AND NOT {needs_person()}
    AND NOT {sql.exists(f"FROM {sql.evidence} AS e WHERE e.failover_id = f.id")}"""


OLD_FAILOVERS = old_rows("failovers", "id", _old_failovers)


def failovers(store: Store, *, seconds: float, cursor: object, dry_run: bool) -> Page:
    """One page of failovers long ago that need no person, without the present history."""
    return delete_page(store, OLD_FAILOVERS, seconds, cursor, dry_run=dry_run)


def _old_entries(sql: Sql) -> str:
    return f"SELECT id FROM {sql.audit_log} WHERE created_at <= {sql.after('-' + sql.number('age'))}"


OLD_ENTRIES = old_rows("audit_log", "id", _old_entries)


def audit_log(store: Store, *, seconds: float, cursor: object, dry_run: bool) -> Page:
    """One page of entries of the audit log that are past their retention."""
    return delete_page(store, OLD_ENTRIES, seconds, cursor, dry_run=dry_run)
