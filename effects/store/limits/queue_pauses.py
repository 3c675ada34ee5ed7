"""The pause of a whole queue: rows of `effects_queues`, one for each queue that was ever paused.

Every claim reads its queue's row in its own statement, so that a pause holds from its commit on, for every worker.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Collection

import msgspec
from sqlalchemy import Connection

from effects.errors import ConfigurationError, QueueNotFound
from effects.kit.moments import FOREVER_SECONDS, moment_or_none
from effects.kit.text.scrub import KEY_CHARS_MAX
from effects.kit.text.unsafe import nearest
from effects.model.limits import ends_by_itself
from effects.store.audit_log import AuditAction, note
from effects.store.db.records import record
from effects.store.db.sql import Sql
from effects.store.db.store import Store, as_json

_PAUSE, _RESUME = AuditAction("queue", "pause"), AuditAction("queue", "resume")


class QueuePause(msgspec.Struct, frozen=True, kw_only=True):
    """A pause under way: until when, who began it, and why. `ends`: whether a time was given for it to end by itself.

    `left_seconds`: until it ends. `waiting`: how many live jobs of the queue do not run.
    """

    queue: str
    until: dt.datetime
    left_seconds: float
    ends: bool
    actor: str
    reason: str | None
    waiting: int

    def __str__(self) -> str:
        until = f"until {self.until:%Y-%m-%d %H:%M:%S}Z" if self.ends else "until it is resumed"
        return f"queue {self.queue} is paused by {self.actor} {until}" + (f" ({self.reason})" if self.reason else "")


class QueueState(msgspec.Struct, frozen=True, kw_only=True):
    """A queue with its live jobs, and its pause, if it is paused."""

    queue: str
    waiting: int
    running: int
    paused_until: dt.datetime | None
    paused_by: str | None
    reason: str | None


# -- in a claim --------------------------------------------------------------------------------------------


def is_paused(sql: Sql, queue: str = ":queue") -> str:
    """Whether a queue (an SQL expression) is paused; one probe of a primary key."""
    return sql.exists(f"FROM {sql.queues} AS q WHERE q.queue = {queue} AND q.paused_until > {sql.now}")


# -- what an operator does ---------------------------------------------------------------------------------


def pause(
    store: Store,
    connection: Connection,
    queue: str,
    *,
    actor: str,
    seconds: float | None = None,
    reason: str | None = None,
    app_queues: Collection[str] = (),
    create: bool = False,
) -> QueuePause:
    """Pause a queue for `seconds`, or until `resume`. Running jobs finish.

    The newest pause holds: it may end earlier than the one before. In the given transaction; repeating it is harmless.

    Args:
        app_queues: queues that the app has, whether they hold jobs or not.
        create: pause a queue that is still unknown, before its first job.

    Raises:
        QueueNotFound: unknown queue (without `create`); the message names the most similar one.
        ConfigurationError: it cannot be a queue's name.
    """
    if not 0 < len(queue) <= KEY_CHARS_MAX:
        raise ConfigurationError(f"a queue's name has 1 to {KEY_CHARS_MAX} characters")
    if not create:
        _refuse_unknown(store, connection, queue, app_queues)
    store.write(
        connection, _pause, queue=queue, actor=actor, reason=reason,
        seconds=FOREVER_SECONDS if seconds is None else seconds,
    )  # fmt: skip
    note(store, connection, _PAUSE, queue, actor=actor, reason=reason, detail={"seconds": seconds})
    [under_way] = paused_queues(store, connection, queue)
    return under_way


def resume(
    store: Store,
    connection: Connection,
    queue: str,
    *,
    actor: str,
    reason: str | None = None,
    app_queues: Collection[str] = (),
) -> bool:
    """End the queue's pause; whether it was paused.

    Raises:
        QueueNotFound: unknown queue; the message names the most similar one.
    """
    _refuse_unknown(store, connection, queue, app_queues)
    was_paused = store.write(connection, _resume, queue=queue) == 1
    if was_paused:
        note(store, connection, _RESUME, queue, actor=actor, reason=reason)
    return was_paused


def paused_queues(store: Store, connection: Connection, queue: str | None = None) -> list[QueuePause]:
    """The pauses under way, by name; of one queue, if it is named."""
    return [
        record(QueuePause, row, ends=ends_by_itself(row.left_seconds), actor=row.paused_by)
        for row in store.all(connection, _paused, queue=queue)
    ]


def list_queues(store: Store, connection: Connection, app_queues: Collection[str] = ()) -> list[QueueState]:
    """Every queue that has live jobs, was ever paused, or is named by the app, by name. Counts every live job."""
    return [
        record(QueueState, row, paused_until=moment_or_none(row.until))
        for row in store.all(connection, _list, app_queues=_rows(app_queues))
    ]


def _refuse_unknown(store: Store, connection: Connection, queue: str, app_queues: Collection[str]) -> None:
    names = [row.queue for row in store.all(connection, _names, app_queues=_rows(app_queues))]
    if queue not in names:
        raise QueueNotFound(f"no job and no job type has the queue {queue!r}{nearest(queue, names)}")


def _rows(app_queues: Collection[str]) -> str:
    return as_json([{"queue": name} for name in sorted(app_queues)])


# -- the statements ----------------------------------------------------------------------------------------


def _pause(sql: Sql) -> str:
    return f"""
    INSERT INTO {sql.queues} (queue, paused_until, paused_by, reason)
    VALUES (:queue, {sql.after(sql.number("seconds"))}, :actor, :reason)
    ON CONFLICT (queue) DO UPDATE SET paused_until = excluded.paused_until, paused_by = excluded.paused_by,
        reason = excluded.reason"""


def _resume(sql: Sql) -> str:
    return f"""
    UPDATE {sql.queues} SET paused_until = NULL, paused_by = NULL, reason = NULL
    WHERE queue = :queue AND paused_until > {sql.now}"""


def _paused(sql: Sql) -> str:
    return f"""
    SELECT q.queue, {sql.epoch("q.paused_until")} AS until, {sql.seconds(sql.now, "q.paused_until")} AS left_seconds,
        q.paused_by, q.reason,
        (SELECT count(*) FROM {sql.jobs} AS j WHERE j.queue = q.queue AND j.status <> 'running') AS waiting
    FROM {sql.queues} AS q WHERE q.paused_until > {sql.now} AND q.queue = COALESCE(CAST(:queue AS text), q.queue)
    ORDER BY q.queue"""


def _names(sql: Sql) -> str:
    return f"""
    SELECT queue FROM {sql.jobs} UNION SELECT queue FROM {sql.queues}
    UNION SELECT queue FROM {sql.rows("app_queues", {"queue": "text"})} AS k"""


def _list(sql: Sql) -> str:
    """The live jobs are read once."""
    paused = f"q.paused_until > {sql.now}"
    return f"""
    WITH c AS (
        SELECT queue, count(CASE WHEN status <> 'running' THEN 1 END) AS waiting,
            count(CASE WHEN status = 'running' THEN 1 END) AS running FROM {sql.jobs} GROUP BY queue
    ), n AS (
        SELECT queue FROM c UNION SELECT queue FROM {sql.queues}
        UNION SELECT queue FROM {sql.rows("app_queues", {"queue": "text"})} AS k
    )
    SELECT n.queue, COALESCE(c.waiting, 0) AS waiting, COALESCE(c.running, 0) AS running,
        CASE WHEN {paused} THEN {sql.epoch("q.paused_until")} END AS until,
        CASE WHEN {paused} THEN q.paused_by END AS paused_by, CASE WHEN {paused} THEN q.reason END AS reason
    FROM n LEFT JOIN c ON c.queue = n.queue LEFT JOIN {sql.queues} AS q ON q.queue = n.queue ORDER BY n.queue"""
