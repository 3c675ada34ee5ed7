"""Deleting what has ended, a page at a time, by walks over primary keys.

Ids rise with time, so the old rows stand first: a walk ends at the first page that holds nothing old. No index is
kept for it, because one on `finished_at` would cost every settlement. A page is read without locks; what may go is
then locked, skipping what is locked already, and checked once more by the statement that deletes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

import msgspec
from sqlalchemy import Connection

from effects.crashpoints import point
from effects.store.dead_letters import closed, is_unknown
from effects.store.sql import Sql
from effects.store.store import Statement, Store, as_json

PAGE = 500
JOBS_MARK = "jobs"


class Page(msgspec.Struct, frozen=True):
    """What one step did. `cursor` is where the next goes on; None at the end of the walk."""

    taken: int
    cursor: Any = None


class Ages(msgspec.Struct, frozen=True):
    """Seconds that rows are kept: by job type, else the default."""

    by_type: Mapping[str, float]
    default: float

    def of(self, job_type: str) -> float:
        return self.by_type.get(job_type, self.default)

    @property
    def least(self) -> float:
        return min([self.default, *self.by_type.values()])

    def parameters(self) -> dict[str, Any]:
        return {"ages": as_json(self.by_type), "age": self.default}


# -- ended jobs ------------------------------------------------------------------------------------------


def jobs(
    store: Store, *, tables: tuple[str, ...], ages: Ages, dead_seconds: float, cursor: int | None, dry_run: bool
) -> Page:
    """One page of `job_history` by id, with the attempts and actions of what goes.

    Args:
        tables: the ledgers in which an effect may be unknown.
        dead_seconds: how long a dead or unknown job is kept after somebody closed it.
    """
    given = {**ages.parameters(), "dead": dead_seconds}
    with store.read() as connection:
        page = store.all(connection, _jobs_page(tables), cursor=cursor or 0, least=ages.least, **given)
    gone = [row.id for row in page if row.eligible]
    if gone and not dry_run:
        with store.begin() as connection:
            gone = _delete_jobs(store, connection, tables, gone, given)
            point("prune.before_commit")
        point("prune.committed")
    ends = len(page) < PAGE or not any(row.old for row in page)
    return Page(len(gone), None if ends else page[-1].id)


def _delete_jobs(
    store: Store, connection: Connection, tables: tuple[str, ...], ids: Sequence[int], given: dict[str, Any]
) -> list[int]:
    locked = [row.id for row in store.all(connection, _lock_jobs, ids=as_json(ids))]
    gone = [row.id for row in store.all(connection, _delete(tables), ids=as_json(locked), **given)]
    if gone:
        store.write(connection, _delete_attempts, ids=as_json(gone))
        store.write(connection, _delete_actions, ids=as_json(gone))
        store.write(connection, _mark, name=JOBS_MARK, job_id=max(gone))
    return gone


def _keep(sql: Sql, job_type: str) -> str:
    """Seconds that a row of this type is kept."""
    if sql.postgresql:
        own = f"CAST(CAST(:ages AS jsonb) ->> {job_type} AS double precision)"
        return f"COALESCE({own}, CAST(:age AS double precision))"
    return f"COALESCE(:ages ->> ('$.\"' || {job_type} || '\"'), :age)"


def _number(sql: Sql, name: str) -> str:
    return f"CAST(:{name} AS double precision)" if sql.postgresql else f":{name}"


def _may_go(sql: Sql, tables: tuple[str, ...]) -> str:
    """Whether the ended job `h` may go. One that another came from stays as long as that: its verdicts count."""
    unknown = is_unknown(sql, tables)
    aged = f"{sql.seconds('h.finished_at')} >= {_keep(sql, 'h.job_type')}"
    return f"""
    NOT {sql.found(f"FROM {sql.jobs} AS j WHERE j.requeued_from = h.id")}
    AND NOT {sql.found(f"FROM {sql.job_history} AS k WHERE k.requeued_from = h.id")}
    AND {aged} AND CASE WHEN h.status = 'succeeded' THEN true
        WHEN h.status = 'cancelled' AND NOT {unknown} THEN true
        ELSE {closed(sql, _number(sql, "dead"))} END"""


@cache
def _jobs_page(tables: tuple[str, ...]) -> Statement:
    def build(sql: Sql) -> str:
        columns = "id, job_type, status, idempotency_key, unknown_count, finished_at"
        return f"""
        SELECT h.id, {_may_go(sql, tables)} AS eligible,
            {sql.seconds("h.finished_at")} >= {_number(sql, "least")} AS old
        FROM (SELECT {columns} FROM {sql.job_history} WHERE id > :cursor ORDER BY id LIMIT {PAGE}) AS h
        ORDER BY h.id"""

    return build


def _lock_jobs(sql: Sql) -> str:
    """Whoever requeues one of them has it locked, and keeps it; whoever comes later finds it gone."""
    return f"SELECT id FROM {sql.job_history} WHERE id {sql.any_of('ids', 'int')} ORDER BY id {sql.lock()}"


@cache
def _delete(tables: tuple[str, ...]) -> Statement:
    def build(sql: Sql) -> str:
        return f"""
        DELETE FROM {sql.job_history} AS h WHERE h.id {sql.any_of("ids", "int")} AND {_may_go(sql, tables)}
        RETURNING id"""

    return build


def _delete_attempts(sql: Sql) -> str:
    return f"DELETE FROM {sql.job_attempts} WHERE job_id {sql.any_of('ids', 'int')}"


def _delete_actions(sql: Sql) -> str:
    return f"DELETE FROM {sql.job_actions} WHERE job_id {sql.any_of('ids', 'int')}"


def _mark(sql: Sql) -> str:
    """How far pruning has gone, for the audit: an effect without a job is sound only up to there."""
    return f"""
    INSERT INTO {sql.pruned} (name, job_id, updated_at) VALUES (:name, :job_id, {sql.now})
    ON CONFLICT (name) DO UPDATE SET updated_at = excluded.updated_at,
        job_id = CASE WHEN excluded.job_id > {sql.pruned}.job_id THEN excluded.job_id ELSE {sql.pruned}.job_id END"""


# -- ledgers ---------------------------------------------------------------------------------------------


def effects(store: Store, *, table: str, ages: Ages, cursor: int | None, dry_run: bool) -> Page:
    """One page of a ledger by job id: settled effects whose job is gone and whose own time has come."""
    given = ages.parameters()
    with store.read() as connection:
        page = store.all(connection, _effects_page(table), cursor=cursor or 0, least=ages.least, **given)
    ids = [row.job_id for row in page if row.eligible]
    taken = len(ids)
    if ids and not dry_run:
        with store.begin() as connection:
            taken = store.write(connection, _delete_effects(table), ids=as_json(ids), **given)
    ends = len(page) < PAGE or not any(row.old for row in page)
    return Page(taken, None if ends else page[-1].job_id)


def _aged(sql: Sql, table: str) -> str:
    keep = _keep(sql, "l.job_type") if _is_typed(sql, table) else _keep(sql, "''")
    aged = f"{sql.seconds('l.updated_at')} >= {keep}"
    return f"""
    l.state NOT IN ('intended', 'released')
    AND CASE WHEN l.expires_at IS NULL THEN {aged} ELSE l.expires_at <= {sql.now} END"""


def _orphaned(sql: Sql) -> str:
    """Asked once, when the page is read: a job that is gone does not come back."""
    return f"""
    NOT {sql.found(f"FROM {sql.jobs} AS j WHERE j.id = l.job_id")}
    AND NOT {sql.found(f"FROM {sql.job_history} AS k WHERE k.id = l.job_id")}"""


def _is_typed(sql: Sql, table: str) -> bool:
    """The core's ledger names each row's job type; a package's is of its own types only."""
    return bool(getattr(sql, table) == sql.effect_ledger)


@cache
def _effects_page(table: str) -> Statement:
    def build(sql: Sql) -> str:
        columns = "job_id, state, created_at, updated_at, expires_at" + (", job_type" if _is_typed(sql, table) else "")
        return f"""
        SELECT l.job_id, {_aged(sql, table)} AND {_orphaned(sql)} AS eligible, (l.expires_at <= {sql.now}
            OR {sql.seconds("l.created_at")} >= {_number(sql, "least")}) AS old
        FROM (SELECT {columns} FROM {getattr(sql, table)} WHERE job_id > :cursor ORDER BY job_id LIMIT {PAGE}) AS l
        ORDER BY l.job_id"""

    return build


@cache
def _delete_effects(table: str) -> Statement:
    def build(sql: Sql) -> str:
        return f"""
        DELETE FROM {getattr(sql, table)} AS l WHERE l.job_id {sql.any_of("ids", "int")}
        AND {_aged(sql, table)}"""

    return build


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
    return f"NOT g.blocked AND NOT {sql.found(f'FROM {sql.jobs} AS j WHERE j.group_key = g.group_key')}"


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
    """One page of limit keys that were paused once, long ago, and that nobody has given limits or a parent."""
    with store.read() if dry_run else store.begin() as connection:
        if dry_run:
            return Page(int(store.value(connection, _count_idle, age=seconds)))
        taken = store.write(connection, _delete_idle, age=seconds)
    return Page(taken, True if taken == PAGE else None)


def _idle(sql: Sql) -> str:
    none = "max_in_flight IS NULL AND rate_tokens IS NULL AND breaker_after IS NULL AND parent_key IS NULL"
    return f"""
    SELECT l.limit_key FROM {sql.limits} AS l WHERE {none} AND {sql.seconds("l.paused_until")} >= {_number(sql, "age")}
    AND NOT EXISTS (SELECT 1 FROM {sql.limits} AS child WHERE child.parent_key = l.limit_key)"""


def _count_idle(sql: Sql) -> str:
    return f"SELECT count(*) FROM ({_idle(sql)}) AS idle"


def _delete_idle(sql: Sql) -> str:
    return f"DELETE FROM {sql.limits} WHERE limit_key IN ({_idle(sql)} LIMIT {PAGE} {sql.lock()})"


def slots(store: Store, *, seconds: float, cursor: object, dry_run: bool) -> Page:
    """One page of old slots. Their schedules have passed them, so that none can run again."""
    build = _count_slots if dry_run else _delete_slots
    with store.read() if dry_run else store.begin() as connection:
        taken = (
            int(store.value(connection, build, age=seconds)) if dry_run else store.write(connection, build, age=seconds)
        )
    return Page(taken, True if taken == PAGE and not dry_run else None)


def _old_slots(sql: Sql) -> str:
    return f"""
    SELECT r.definition_id, r.slot FROM {sql.definition_runs} AS r
    LEFT JOIN {sql.job_definitions} AS d ON d.id = r.definition_id
    WHERE {sql.seconds("r.slot")} >= {_number(sql, "age")} AND (d.id IS NULL OR r.slot < d.last_slot)"""


def _count_slots(sql: Sql) -> str:
    return f"SELECT count(*) FROM ({_old_slots(sql)}) AS old"


def _delete_slots(sql: Sql) -> str:
    return f"""
    DELETE FROM {sql.definition_runs} WHERE (definition_id, slot) IN ({_old_slots(sql)} LIMIT {PAGE})"""
