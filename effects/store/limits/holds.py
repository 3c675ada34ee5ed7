"""What can keep a live job waiting, read in one transaction. Which of it is the reason: `effects.observation.waits`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
from sqlalchemy import Connection, Row

from effects.limits import whole
from effects.store.db.records import Moment, shown_moment, shown_moment_or_none
from effects.store.db.sql import Sql
from effects.store.db.store import Store
from effects.store.limits.capacity import cap_of, count_running, token_wait_of, tokens_of
from effects.store.limits.queue_pauses import QueuePause, paused_queues
from effects.store.limits.rows import limit_columns


class KeyState(msgspec.Struct, frozen=True, kw_only=True):
    """A limit key of the job, or its parent, as a claim sees it.

    Args:
        paused_seconds: until its pause ends; 0 without one.
        breaker_open: its newest attempts failed; after its pause one attempt at a time may run.
        cap: how many may run at once; None: any number.
        running: how many do, those of its children included.
        token_seconds: until its rate has a token; 0 where it has one.
    """

    limit_key: str
    paused_seconds: float
    paused_until: Moment | None
    pause_reason: str | None
    breaker_open: bool
    cap: int | None
    running: int
    token_seconds: float


class GroupState(msgspec.Struct, frozen=True, kw_only=True):
    """The group of the job: its first live job, and whether an operator has blocked it."""

    group_key: str
    head_id: int
    head_status: str
    blocked: bool


class Holds(msgspec.Struct, frozen=True, kw_only=True):
    """All that can hold up one job that does not run.

    Args:
        due_seconds: until it falls due; negative once it is due.
        queue_pauses: of its queue, and of the one that it was quarantined from.
        keys: its limit key and that one's parent, if they have limits.
        worker_queues: the queues of each worker that is alive and takes new work.
    """

    due_seconds: float
    queue_pauses: Sequence[QueuePause]
    keys: Sequence[KeyState]
    group: GroupState | None
    worker_queues: Sequence[Sequence[str]]


def read_holds(store: Store, connection: Connection, job_id: int, lease_seconds: float) -> Holds | None:
    """Read what can hold up this job; None unless it is live and waiting."""
    job = store.row(connection, _job, id=job_id)
    if job is None:
        return None
    queues = [job.queue] if job.quarantined_from is None else [job.queue, job.quarantined_from]
    return Holds(
        due_seconds=job.due_seconds,
        queue_pauses=[pause for queue in queues for pause in paused_queues(store, connection, queue)],
        keys=_key_states(store, connection, job.limit_key) if job.limit_key is not None else [],
        group=_group_state(store, connection, job.group_key) if job.group_key is not None else None,
        worker_queues=read_worker_queues(store, connection, lease_seconds),
    )


def read_worker_queues(store: Store, connection: Connection, lease_seconds: float) -> list[list[str]]:
    """The queues of each worker that is alive and takes new work."""
    return [worker.queues.split(",") for worker in store.all(connection, _workers, lease=lease_seconds)]


def _key_states(store: Store, connection: Connection, limit_key: str) -> list[KeyState]:
    """The key itself first."""
    rows = store.all(connection, _keys, limit_key=limit_key)
    running = count_running(store, connection, [row.limit_key for row in rows])
    states = [_key_state(row, running.get(row.limit_key, 0)) for row in rows]
    return sorted(states, key=lambda state: state.limit_key != limit_key)


def _key_state(row: Row[Any], running: int) -> KeyState:
    tokens = None if row.rate_tokens is None else tokens_of(row)
    return KeyState(
        limit_key=row.limit_key,
        paused_seconds=max(0.0, row.paused_left or 0.0),
        paused_until=shown_moment_or_none(row.paused_until),
        pause_reason=row.pause_reason,
        breaker_open=row.breaker_state == "open",
        cap=cap_of(row),
        running=running,
        token_seconds=0.0 if tokens is None or whole(tokens) >= 1 else token_wait_of(row, tokens),
    )


def _group_state(store: Store, connection: Connection, group_key: str) -> GroupState | None:
    """Prefers a running job to an older one that waits: that is what holds the group."""
    row = store.row(connection, _group, group_key=group_key)
    if row is None:
        return None
    return GroupState(group_key=group_key, head_id=row.id, head_status=row.status, blocked=bool(row.blocked))


def moment_in(store: Store, connection: Connection, seconds: float) -> Moment:
    """The time so many seconds from now, by the database's clock."""
    return shown_moment(store.now(connection) + seconds)


# -- the statements --------------------------------------------------------------------------------------


def _job(sql: Sql) -> str:
    return f"""
    SELECT queue, quarantined_from, limit_key, group_key, {sql.seconds(sql.now, "run_at")} AS due_seconds
    FROM {sql.jobs} WHERE id = :id AND status <> 'running'"""


def _keys(sql: Sql) -> str:
    parent = f"SELECT parent_key FROM {sql.limits} WHERE limit_key = :limit_key"
    return f"""
    SELECT {limit_columns(sql)}, {sql.epoch("paused_until")} AS paused_until, pause_reason
    FROM {sql.limits}
    WHERE limit_key = :limit_key OR limit_key = ({parent})"""


def _group(sql: Sql) -> str:
    blocked = sql.exists(f"FROM {sql.job_groups} AS g WHERE g.group_key = j.group_key AND g.blocked")
    return f"""
    SELECT id, status, {blocked} AS blocked
    FROM {sql.jobs} AS j WHERE j.group_key = :group_key
    ORDER BY CASE WHEN status = 'running' THEN 0 ELSE 1 END, id LIMIT 1"""


def _workers(sql: Sql) -> str:
    return f"""
    SELECT queues FROM {sql.workers} WHERE {sql.is_alive()} AND drain_requested_at IS NULL ORDER BY id"""
