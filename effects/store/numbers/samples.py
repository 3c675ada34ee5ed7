"""Samples: what waited and ran in each queue, once a minute for the whole fleet."""

from __future__ import annotations

import msgspec
from sqlalchemy import Connection

from effects.store.db.sql import Sql
from effects.store.db.store import Store, as_json
from effects.store.limits.conditions import ROUNDING, is_full, limits_of, not_paused, token_wait, with_parents
from effects.store.numbers.rows import finite_seconds, within_times
from effects.store.schema.operator_tables import MINUTE, SAMPLE_COUNTS


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


_COLUMNS = ", ".join(("oldest_due_seconds", *SAMPLE_COUNTS))


# -- writing ---------------------------------------------------------------------------------------------


def take_sample(store: Store, lease_seconds: float) -> bool:
    """Write what waits now, unless a worker has in this minute; whether it did. Nothing is locked meanwhile."""
    with store.read() as connection:
        look = store.one(connection, _sampled)
        assert look is not None
        if look.sampled:
            return False
        minute = float(look.now) // MINUTE * MINUTE
        samples = _samples_of_queues(store, connection, minute)
        workers = int(store.value(connection, _alive, lease=lease_seconds))
    whole = QueueSample(
        begins_at=minute, seconds=MINUTE, queue="", workers=workers,
        oldest_due_seconds=max((sample.oldest_due_seconds for sample in samples), default=0.0),
        **{
            name: sum(getattr(sample, name) for sample in samples)
            for name in ("due", "held", "running", "retrying", "unresolved")
        },
    )  # fmt: skip
    with store.single() as connection:
        return bool(store.write(connection, _write_samples, rows=as_json([whole, *samples])))


def _samples_of_queues(store: Store, connection: Connection, minute: float) -> list[QueueSample]:
    """Of the queues that have live or unresolved jobs."""
    unresolved = {row.queue: row.jobs for row in store.all(connection, _unresolved)}
    live = {row.queue: row for row in store.all(connection, _waiting)}
    samples = []
    for queue in sorted({*live, *unresolved}):
        sample = QueueSample(begins_at=minute, seconds=MINUTE, queue=queue, unresolved=unresolved.get(queue, 0))
        if (row := live.get(queue)) is not None:
            sample.due, sample.held, sample.oldest_due_seconds = int(row.due), int(row.held), row.oldest or 0.0
            sample.running, sample.retrying = int(row.running), int(row.retrying)
        samples.append(sample)
    return samples


def _sampled(sql: Sql) -> str:
    """Whether this minute, which begins less than a minute ago, has its sample; and the time."""
    return f"""
    SELECT {sql.epoch(sql.now)} AS now, EXISTS (SELECT 1 FROM {sql.samples} WHERE seconds = {MINUTE}
        AND begins_at > {sql.after(f"-{MINUTE}")} AND begins_at <= {sql.now} AND queue = '') AS sampled"""


def _unresolved(sql: Sql) -> str:
    return f"SELECT queue, count(*) AS jobs FROM {sql.unresolved} GROUP BY queue"


def _waiting(sql: Sql) -> str:
    """The live jobs are read once, by queue and limit key; what holds a key is asked once a key."""
    due = f"status <> 'running' AND run_at <= {sql.now}"
    held = (
        f"NOT ({not_paused(sql)}) OR {is_full('l', 'own.n')} OR {is_full('parent', 'above.n')} "
        f"OR {token_wait(sql)} >= {ROUNDING}"
    )
    return f"""
    WITH by_key AS (
        SELECT queue, limit_key, sum(CASE WHEN {due} THEN 1 ELSE 0 END) AS due,
            min(CASE WHEN {due} THEN run_at END) AS first_due,
            sum(CASE WHEN status = 'running' THEN 1 ELSE 0 END) AS running,
            sum(CASE WHEN status = 'failed' THEN 1 ELSE 0 END) AS retrying,
            sum(CASE WHEN {sql.in_flight} THEN 1 ELSE 0 END) AS in_flight
        FROM {sql.jobs} GROUP BY queue, limit_key
    ), each_running(k, n) AS (
        SELECT limit_key, sum(in_flight) FROM by_key WHERE limit_key IS NOT NULL AND in_flight > 0 GROUP BY limit_key
    ), running(k, n) AS ({with_parents(sql, "each_running")}
    )
    SELECT by_key.queue, sum(by_key.due) AS due, {sql.seconds("min(by_key.first_due)")} AS oldest,
        sum(by_key.running) AS running, sum(by_key.retrying) AS retrying,
        sum(CASE WHEN by_key.limit_key IS NOT NULL AND ({held}) THEN by_key.due ELSE 0 END) AS held
    FROM by_key {limits_of(sql, "by_key.limit_key")}
    LEFT JOIN running AS own ON own.k = by_key.limit_key LEFT JOIN running AS above ON above.k = parent.limit_key
    GROUP BY by_key.queue"""


def _alive(sql: Sql) -> str:
    return f"SELECT count(*) FROM {sql.workers} WHERE {sql.is_alive()}"


def _write_samples(sql: Sql) -> str:
    return f"""
    INSERT INTO {sql.samples} (seconds, begins_at, queue, {_COLUMNS})
    SELECT seconds, {sql.time("begins_at")}, queue, {_COLUMNS}
    FROM {sql.rows("rows", QueueSample)} AS r WHERE true
    ON CONFLICT DO NOTHING"""


# -- reading ---------------------------------------------------------------------------------------------


def read_samples(
    store: Store, connection: Connection, since: float, until: float, *, queue: str | None = None
) -> list[QueueSample]:
    """The samples that begin within these times, oldest first; with a queue, its own and those of the whole."""
    return [
        QueueSample(
            begins_at=row.begins, seconds=row.seconds, queue=row.queue,
            oldest_due_seconds=finite_seconds(row.oldest_due_seconds),
            **{name: getattr(row, name) for name in SAMPLE_COUNTS},
        )
        for row in store.all(connection, _samples, since=since, until=until, queue=queue)
    ]  # fmt: skip


def _samples(sql: Sql) -> str:
    return f"""
    SELECT {sql.epoch("begins_at")} AS begins, seconds, queue, {_COLUMNS}
    FROM {sql.samples} WHERE {within_times(sql)} AND (queue = '' OR {sql.matches("queue", "queue")})
    ORDER BY begins_at, queue"""


def seconds_without_worker(store: Store, connection: Connection) -> float | None:
    """How long ago a worker last wrote a sample, to the minute; None if none ever did, or it is long forgotten."""
    ago = store.value(connection, _last_sample)
    return None if ago is None else max(0.0, float(ago))


def _last_sample(sql: Sql) -> str:
    return f"SELECT {sql.seconds('max(begins_at)')} FROM {sql.samples} WHERE queue = ''"
