"""What can keep a live job waiting, read in one transaction, and the queues that workers serve.

Which of it is the reason: `effects.operate.evidence`.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any

import msgspec
from sqlalchemy import Connection, Row

from effects.errors import EnqueueError
from effects.kit.moments import moment
from effects.kit.text.unsafe import nearest
from effects.model.limits import whole
from effects.store.db.records import record
from effects.store.db.sql import Sql
from effects.store.db.store import Store
from effects.store.limits.capacity import cap_of, count_running, token_wait_of, tokens_of
from effects.store.limits.key_limits import limit_columns
from effects.store.limits.queue_pauses import QueuePause, paused_queues


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
    paused_until: dt.datetime | None
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


def is_unserved(queue: str, worker_queues: Sequence[Collection[str]], named: Collection[str]) -> bool:
    """Whether none of the workers serves a queue; where none is alive, whether the reader's app does not name it."""
    return all(queue not in queues for queues in worker_queues or [named])


def _key_states(store: Store, connection: Connection, limit_key: str) -> list[KeyState]:
    """The key itself first."""
    rows = store.all(connection, _keys, limit_key=limit_key)
    running = count_running(store, connection, [row.limit_key for row in rows])
    states = [_key_state(row, running.get(row.limit_key, 0)) for row in rows]
    return sorted(states, key=lambda state: state.limit_key != limit_key)


def _key_state(row: Row[Any], running: int) -> KeyState:
    tokens = None if row.rate_tokens is None else tokens_of(row)
    return record(
        KeyState,
        row,
        paused_seconds=max(0.0, row.paused_left or 0.0),
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


def moment_in(store: Store, connection: Connection, seconds: float) -> dt.datetime:
    """The time so many seconds from now, by the database's clock."""
    return moment(store.now(connection) + seconds)


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


KNOWN_MAX = 1_000  # names that are remembered


class KnownQueues:
    """The queues that an Effects names, and those that workers were seen to serve.

    What a worker served once is remembered, so that a call is not refused while that worker is down for a moment.

    Args:
        named: the queues of job types and settings, as they are now.
        lease_seconds: after so long a silence a worker counts no more.
    """

    def __init__(self, store: Store, named: Callable[[], Iterable[str]], lease_seconds: float) -> None:
        self._store, self._named, self._lease_seconds = store, named, lease_seconds
        self._names: frozenset[str] = frozenset()

    def check(self, connection: Connection, queues: Iterable[str]) -> None:
        """Refuse queues that no one serves. Only a name that is new to this process costs a query.

        Raises:
            EnqueueError: names the queue, and a similar one.
        """
        if self._names.issuperset(queues):
            return
        remembered = self._names if len(self._names) < KNOWN_MAX else frozenset()
        names = remembered.union(self._named())
        if not names.issuperset(queues):
            names = names.union(*read_worker_queues(self._store, connection, self._lease_seconds))
        self._names = names
        for queue in queues:
            if queue not in names:
                raise EnqueueError(
                    f"queue {queue!r}: no job type, setting or running worker has it{nearest(queue, names)} "
                    f"(name one that only other apps serve by Effects(queues=[{queue!r}]))"
                )
