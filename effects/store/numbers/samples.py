"""Samples: what waited and ran in each queue, once a minute for the whole fleet."""

from __future__ import annotations

import msgspec
from sqlalchemy import Connection

from effects.store.db.sql import Sql
from effects.store.db.store import Store, as_json
from effects.store.limits.capacity import ROUNDING, is_full, joined_limits, not_paused, token_wait, with_parents
from effects.store.numbers.rollups import step_of, within_times
from effects.store.schema.job_tables import GROUPED, LIMITED, PLAIN
from effects.store.schema.tables import HOUR, MINUTE, SAMPLE_COUNTS


class QueueSample(msgspec.Struct, kw_only=True):
    """What waited and ran in a queue at one moment of a minute; of an hour, the most of its minutes.

    The sample of the empty queue is of the whole: it is there for every minute in which a worker was.

    Args:
        due: jobs that could start, pauses and limits apart.
        held: of these, how many wait behind a limit key that is paused, full or without a token.
        unresolved: ended jobs that wait for a person.
        workers: alive; of the whole only.
    """

    begins_at: float
    seconds: int
    queue: str
    due: int = 0
    oldest_due_seconds: float = 0.0
    held: int = 0
    running: int = 0
    retrying: int = 0
    unresolved: int = 0
    workers: int = 0


_NAMES = ("oldest_due_seconds", *SAMPLE_COUNTS)
_COLUMNS = ", ".join(_NAMES)
_NO_KEY = "CAST(NULL AS text)"


# -- writing ---------------------------------------------------------------------------------------------


def take_sample(store: Store, lease_seconds: float) -> bool:
    """Write what waits now, unless a worker has in this minute; whether it did. Nothing is locked meanwhile."""
    with store.read() as connection:
        look = store.row(connection, _look, lease=lease_seconds)
        assert look is not None
        if look.sampled:
            return False
        minute = float(look.now) // MINUTE * MINUTE
        samples = _samples_of_queues(store, connection, minute)
    whole = QueueSample(
        begins_at=minute, seconds=MINUTE, queue="", workers=look.workers,
        oldest_due_seconds=max((sample.oldest_due_seconds for sample in samples), default=0.0),
        **{
            name: sum(getattr(sample, name) for sample in samples)
            for name in ("due", "held", "running", "retrying", "unresolved")
        },
    )  # fmt: skip
    with store.single() as connection:
        return bool(store.write(connection, _write_samples, rows=as_json([whole, *samples])))


def _samples_of_queues(store: Store, connection: Connection, minute: float) -> list[QueueSample]:
    """Of the queues that have jobs which are due, run, wait for another attempt, or are unresolved."""
    return [
        QueueSample(
            begins_at=minute, seconds=MINUTE, queue=row.queue, oldest_due_seconds=row.oldest or 0.0,
            due=int(row.due), held=int(row.held), running=int(row.running), retrying=int(row.retrying),
            unresolved=int(row.unresolved),
        )
        for row in store.all(connection, _by_queue)
    ]  # fmt: skip


def _look(sql: Sql) -> str:
    """Whether this minute, which begins less than a minute ago, has its sample; the time, and who is alive."""
    return f"""
    SELECT {sql.epoch(sql.now)} AS now, EXISTS (SELECT 1 FROM {sql.samples} WHERE seconds = {MINUTE}
        AND begins_at > {sql.after(f"-{MINUTE}")} AND begins_at <= {sql.now} AND queue = '') AS sampled,
        (SELECT count(*) FROM {sql.workers} WHERE {sql.is_alive()}) AS workers"""


def _by_queue(sql: Sql) -> str:
    columns = ", ".join(f"COALESCE(live.{name}, 0) AS {name}" for name in ("due", "running", "retrying", "held"))
    return f"""
    WITH live AS ({_waiting(sql)}), ended AS (SELECT queue, count(*) AS n FROM {sql.unresolved} GROUP BY queue)
    SELECT queues.queue, {columns}, live.oldest, COALESCE(ended.n, 0) AS unresolved
    FROM (SELECT queue FROM live UNION SELECT queue FROM ended) AS queues
    LEFT JOIN live ON live.queue = queues.queue LEFT JOIN ended ON ended.queue = queues.queue
    ORDER BY queues.queue"""


def _waiting(sql: Sql) -> str:
    """By queue and limit key; what holds a key is asked once a key."""
    held = (
        f"NOT ({not_paused(sql)}) OR {is_full('l', 'own.n')} OR {is_full('parent', 'above.n')} "
        f"OR {token_wait(sql)} >= {ROUNDING}"
    )
    return f"""
    WITH by_key AS (
        SELECT queue, limit_key, sum(due) AS due, min(first_due) AS first_due, sum(running) AS running,
            sum(retrying) AS retrying, sum(in_flight) AS in_flight
        FROM ({_counts(sql)}) AS counts GROUP BY queue, limit_key
    ), each_running(k, n) AS (
        SELECT limit_key, sum(in_flight) FROM by_key WHERE limit_key IS NOT NULL AND in_flight > 0 GROUP BY limit_key
    ), running(k, n) AS ({with_parents(sql, "each_running")}
    )
    SELECT by_key.queue, sum(by_key.due) AS due, {sql.seconds("min(by_key.first_due)")} AS oldest,
        sum(by_key.running) AS running, sum(by_key.retrying) AS retrying,
        sum(CASE WHEN by_key.limit_key IS NOT NULL AND ({held}) THEN by_key.due ELSE 0 END) AS held
    FROM by_key {joined_limits(sql, "by_key.limit_key")}
    LEFT JOIN running AS own ON own.k = by_key.limit_key LEFT JOIN running AS above ON above.k = parent.limit_key
    GROUP BY by_key.queue"""


def _counts(sql: Sql) -> str:
    """Each part has an index, in which jobs that are scheduled for later, of which there may be millions, are passed
    over; those that are due without a key are counted there, without their rows.
    """
    due = [
        f"SELECT queue, {key} AS limit_key, count(*) AS due, min(run_at) AS first_due, 0 AS running, 0 AS retrying, "
        f"0 AS in_flight FROM {sql.jobs} WHERE {kind} AND run_at <= {sql.now} GROUP BY {columns}"
        for kind, key, columns in (
            (PLAIN, _NO_KEY, "queue"),
            (LIMITED, "limit_key", "queue, limit_key"),
            (GROUPED, "limit_key", "queue, limit_key"),
        )
    ]
    running = (
        f"SELECT queue, limit_key, 0, NULL, count(*), 0, sum(CASE WHEN {sql.in_flight} THEN 1 ELSE 0 END) "
        f"FROM {sql.jobs} WHERE status = 'running' GROUP BY queue, limit_key"
    )
    retrying = (
        f"SELECT queue, {_NO_KEY}, 0, NULL, 0, count(*), 0 FROM {sql.jobs} WHERE status = 'failed' GROUP BY queue"
    )
    return "\n        UNION ALL ".join([*due, running, retrying])


def _write_samples(sql: Sql) -> str:
    return f"""
    INSERT INTO {sql.samples} (seconds, begins_at, queue, {_COLUMNS})
    SELECT seconds, {sql.time("begins_at")}, queue, {_COLUMNS}
    FROM {sql.rows("rows", QueueSample)} AS r WHERE true
    ON CONFLICT DO NOTHING"""


# -- reading ---------------------------------------------------------------------------------------------


def read_samples(store: Store, connection: Connection, steps: range, *, queue: str | None = None) -> list[QueueSample]:
    """The most that samples found in each step (seconds since 1970), oldest first; with a queue, its own and those of
    the whole.
    """
    bounds = {"since": steps.start, "until": steps.stop, "step": steps.step}
    return [
        QueueSample(
            begins_at=float(row.begins), seconds=steps.step, queue=row.queue,
            **{name: getattr(row, name) for name in _NAMES},
        )
        for row in store.all(connection, _samples, **bounds, queue=queue)
    ]  # fmt: skip


def read_newest_samples(
    store: Store, connection: Connection, steps: range, *, queue: str | None = None
) -> list[QueueSample]:
    """The samples of the last minute within the steps in which a worker was."""
    newest = store.value(connection, _newest, since=steps.start, until=steps.stop)
    if newest is None:
        return []
    return read_samples(store, connection, range(int(newest), int(newest) + MINUTE, MINUTE), queue=queue)


def _newest(sql: Sql) -> str:
    return f"""
    SELECT {sql.epoch("max(begins_at)")} FROM {sql.samples}
    WHERE seconds IN ({MINUTE}, {HOUR}) AND {within_times(sql)} AND queue = ''"""


def _samples(sql: Sql) -> str:
    most = ", ".join(f"max({sql.finite(name)}) AS {name}" for name in _NAMES)
    return f"""
    SELECT {step_of(sql)} AS begins, queue, {most}
    FROM {sql.samples} WHERE seconds IN ({MINUTE}, {HOUR}) AND {within_times(sql)}
    AND (queue = '' OR {sql.matches("queue", "queue")})
    GROUP BY begins, queue ORDER BY begins, queue"""


def seconds_without_worker(store: Store, connection: Connection) -> float | None:
    """How long ago a worker last wrote a sample, to the minute; None if none ever did, or it is long forgotten."""
    ago = store.value(connection, _last_sample)
    return None if ago is None else max(0.0, float(ago))


def _last_sample(sql: Sql) -> str:
    return f"SELECT {sql.seconds('max(begins_at)')} FROM {sql.samples} WHERE queue = ''"
