"""How long a claim takes beside a large backlog, and while somebody holds a snapshot open.

A snapshot that is held (a long report, a dump, a forgotten transaction) keeps the server from removing the rows and
index entries of the jobs that were done meanwhile: a queue that reads from its first entry reads them all, each time.
"""

from __future__ import annotations

import json
import statistics
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import psycopg

from benchmarks.options import Options
from benchmarks.processes import child
from benchmarks.rounds import Contender, Report, Row, goal_and_aim, interleave
from benchmarks.systems import ours
from effects import NewJob, enqueue_many

LIVE, ENDED = 1_000_000, 10_000_000
RATE, TICK_SECONDS = 2_000, 0.05  # jobs a second
CATCH_UP_SECONDS = 1  # jobs come while the worker starts: its first claims are larger, and are left out
BACKLOG_SECONDS = 30
HELD_SECONDS = 1_800
WINDOW_SECONDS = 30  # at the start and at the end of the held snapshot
P50, P99, RATE_COLUMN = "claim p50 ms", "claim p99 ms", "jobs/s"
BACKLOG_RATIOS, HELD_RATIOS = (1.3, 1.1), (3.0, 1.5)  # goal and aim

Claims = list[tuple[float, float, int]]


def run(options: Options) -> Report:
    """Claims beside 1,000,000 live and 10,000,000 ended jobs, and beside none."""
    live, ended = options.size(LIVE), options.size(ENDED)
    empty, full = "empty tables", f"{live:,} live and {ended:,} ended jobs"
    with options.server.database() as small, options.server.database() as large:
        ours.install(small).dispose()
        _fill(large, live, ended)
        contenders = [
            Contender(name, f"{RATE:,} jobs/s for {BACKLOG_SECONDS} s", lambda database=database: _steady(database))
            for name, database in ((empty, small), (full, large))
        ]
        rows = interleave(contenders, options.rounds, P99, options.say)
    report = Report("backlog", "claims beside a backlog, PostgreSQL", [P50, P99, RATE_COLUMN], rows, decimals=2)
    ratio = report.row(full).median(P99) / report.row(empty).median(P99)
    report.goals = goal_and_aim("p99 beside the backlog / empty", ratio, BACKLOG_RATIOS, at_least=False)
    return report


def held(options: Options) -> Report:
    """Claims at the start and at the end of a held snapshot."""
    seconds = options.size(HELD_SECONDS)
    with options.server.database() as database:
        ours.install(database).dispose()
        options.say(f"{seconds} s")
        with _snapshot(database):
            claims = _claims(database, seconds)
    start, end = Row("at its start", f"the first {WINDOW_SECONDS} s"), Row("at its end", f"the last {WINDOW_SECONDS} s")
    start.add(_figures([claim for claim in claims if claim[0] < WINDOW_SECONDS], WINDOW_SECONDS), P99)
    end.add(_figures([claim for claim in claims if claim[0] >= seconds - WINDOW_SECONDS], WINDOW_SECONDS), P99)
    title = f"a snapshot held for {seconds:,} s at {RATE:,} jobs/s, PostgreSQL"
    report = Report("held_snapshot", title, [P50, P99, RATE_COLUMN], [start, end], decimals=2)
    ratio = end.median(P99) / start.median(P99)
    report.goals = goal_and_aim("p99 at its end / at its start", ratio, HELD_RATIOS, at_least=False)
    return report


def _fill(database: str, live: int, ended: int) -> None:
    """Half of the live jobs are due tomorrow, half wait in a queue that no worker here serves."""
    ours.install(database).dispose()
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute(
            "INSERT INTO effects_jobs (job_type, queue, status, routed, payload, run_at) "
            f"SELECT '{ours.JOB_TYPE}', CASE i % 2 WHEN 0 THEN 'default' ELSE 'elsewhere' END, 'queued', true, '{{}}', "
            f"now() + (1 - i % 2) * interval '1 day' FROM generate_series(1, {live}) AS s(i)"
        )
        connection.execute(
            "INSERT INTO effects_job_history (id, job_type, status, attempts, lease_token, created_at, run_at, "
            "finished_at, started_at, worker, verdict) "
            f"SELECT -i, '{ours.JOB_TYPE}', 'succeeded', 1, 1, t, t, t, t, 'w', 'done' "
            f"FROM generate_series(1, {ended}) AS s(i), LATERAL (SELECT now() - i * interval '3 s' AS t) AS moment"
        )
        connection.execute("VACUUM ANALYZE")


@contextmanager
def _snapshot(database: str) -> Iterator[None]:
    with psycopg.connect(database) as connection:
        connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        connection.execute("SELECT 1 FROM effects_jobs LIMIT 1")
        yield


def _steady(database: str) -> dict[str, float]:
    claims = _claims(database, CATCH_UP_SECONDS + BACKLOG_SECONDS)
    return _figures([claim for claim in claims if claim[0] >= CATCH_UP_SECONDS], BACKLOG_SECONDS)


def _claims(database: str, seconds: float) -> Claims:
    """Of a worker for which jobs are enqueued at a steady rate."""
    stop = threading.Event()
    producer = threading.Thread(target=_produce, args=(database, stop.is_set))
    with child("claims", str(seconds), database) as worker:
        producer.start()
        worker.go()
        claims: Claims = [tuple(claim) for claim in json.loads(worker.line())]
        stop.set()
        producer.join()
    return claims


def _produce(database: str, stopped: Callable[[], bool]) -> None:
    effects = ours.app(database)
    new = [NewJob(job_type=ours.JOB_TYPE, payload={"number": 1}) for _ in range(int(RATE * TICK_SECONDS))]
    next_at = time.monotonic()
    while not stopped():
        enqueue_many(new, effects=effects)
        next_at += TICK_SECONDS
        time.sleep(max(0.0, next_at - time.monotonic()))
    effects.dispose()


def _figures(claims: Claims, seconds: float) -> dict[str, float]:
    milliseconds = sorted(claim[1] for claim in claims)
    return {
        P50: statistics.median(milliseconds),
        P99: milliseconds[int(len(milliseconds) * 0.99)],
        RATE_COLUMN: sum(claim[2] for claim in claims) / seconds,
    }
