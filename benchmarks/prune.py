"""Retention beside a live app: how many ended jobs go a second, and how long an enqueue waits meanwhile."""

from __future__ import annotations

import statistics
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

from sqlalchemy import text

from benchmarks import servers
from benchmarks.options import Options
from benchmarks.rounds import Contender, Goal, Report, interleave
from benchmarks.systems import ours
from effects import Effects, enqueue
from effects.app.retention import prune
from effects.store.enqueue.insert import reserve_ids

JOBS = 50_000
ENQUEUE_EVERY_SECONDS = 0.01
ALONE_SECONDS = 2.0
SPEED, WAIT, ALONE = "jobs/s", "enqueue p99, ms", "the same alone, ms"
JOBS_PER_SECOND = 1000
WAIT_MS = 50

_SERIES = {
    "postgresql": "generate_series(1, {n}) AS s(i)",
    "sqlite": "(WITH RECURSIVE s(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM s WHERE i < {n}) SELECT i FROM s) AS s",
}
_OLD = (
    "INSERT INTO effects_job_history (id, job_type, status, idempotency_key, attempts, lease_token, finished_at) "
    "SELECT i, '{type}', 'succeeded', 'k' || i, 1, 1, {then} FROM {s}",
    "INSERT INTO effects_attempt_log (job_id, lease_token, attempt, started_at, finished_at, outcome, verdict) "
    "SELECT i, 1, 1, {then}, {then}, 'succeeded', 'done' FROM {s}",
    "INSERT INTO effects_effect_ledger (job_type, key, digest, state, job_id, created_at, updated_at) "
    "SELECT '{type}', 'k' || i, '', 'done', i, {then}, {then} FROM {s}",
)


def run(options: Options) -> Report:
    count = options.size(JOBS)

    def contender(name: str, opened: Callable[[], AbstractContextManager[Effects]]) -> Contender:
        def once() -> dict[str, float]:
            with opened() as effects:
                _fill(effects, count)
                return _measure(effects, count)

        return Contender(name, f"{count:,} jobs, each with an attempt and a ledger row", once)

    contenders = [contender("PostgreSQL", lambda: _postgresql(options)), contender("SQLite", _sqlite)]
    rows = interleave(contenders, options.rounds, SPEED, options.say)
    report = Report("prune", "retention beside an app that enqueues every 10 ms", [SPEED, WAIT, ALONE], rows)
    for row in rows:
        report.goals.append(Goal(f"{row.name}, {SPEED}", row.median(SPEED), JOBS_PER_SECOND))
        report.goals.append(Goal(f"{row.name}, {WAIT}", row.median(WAIT), WAIT_MS, at_least=False, aim=True))
    report.notes = ["The rests between batches are inside the clock."]
    return report


def _measure(effects: Effects, count: int) -> dict[str, float]:
    with _enqueuing(effects) as alone:
        threading.Event().wait(ALONE_SECONDS)
    with _enqueuing(effects) as waits:
        begun = time.perf_counter()
        pruned = prune(effects)
        seconds = time.perf_counter() - begun
    if (pruned.jobs, pruned.effects) != (count, count):
        raise AssertionError(f"pruned {pruned} of {count}")
    return {SPEED: count / seconds, WAIT: _p99_ms(waits), ALONE: _p99_ms(alone)}


def _p99_ms(seconds: list[float]) -> float:
    return statistics.quantiles(seconds, n=100)[98] * 1000


@contextmanager
def _enqueuing(effects: Effects) -> Iterator[list[float]]:
    """An app beside it; the seconds that each of its enqueues took."""
    waits: list[float] = []
    stop = threading.Event()

    def write() -> None:
        while not stop.wait(ENQUEUE_EVERY_SECONDS):
            begun = time.perf_counter()
            enqueue(ours.JOB_TYPE, {}, effects=effects)
            waits.append(time.perf_counter() - begun)

    thread = threading.Thread(target=write)
    thread.start()
    try:
        yield waits
    finally:
        stop.set()
        thread.join()


def _fill(effects: Effects, count: int) -> None:
    sql = effects.store.sql
    series = _SERIES[effects.engine.dialect.name].format(n=count)
    then = sql.after("-100 * 86400")
    with effects.store.begin() as connection:
        reserve_ids(effects.store, connection, count)  # 1 to `count`, in a fresh database: what comes later is newer
        for statement in _OLD:
            connection.execute(text(statement.format(type=ours.JOB_TYPE, then=then, s=series)))
    with effects.engine.connect() as connection:
        tidy = connection.execution_options(isolation_level="AUTOCOMMIT")
        tidy.execute(text("VACUUM ANALYZE" if sql.postgresql else "ANALYZE"))


@contextmanager
def _postgresql(options: Options) -> Iterator[Effects]:
    with options.server.database() as database:
        effects = ours.install(database)
        try:
            yield effects
        finally:
            effects.dispose()


@contextmanager
def _sqlite() -> Iterator[Effects]:
    with servers.sqlite_file() as path:
        effects = ours.install(str(path))
        try:
            yield effects
        finally:
            effects.dispose()
