"""Idle pick-up: from the return of a Session's commit to the entry of the handler, in another process."""

from __future__ import annotations

import random
import statistics
import threading
import time
from collections.abc import Callable

import psycopg
from sqlalchemy.orm import Session

from benchmarks import servers
from benchmarks.options import Options
from benchmarks.processes import Child, child
from benchmarks.rounds import Contender, Goal, Report, goal_and_aim, interleave
from benchmarks.systems import bare_pickup, ours, stopwatch
from effects import enqueue

SAMPLES = 200
GAP_SECONDS = (0.02, 0.2)
WARM_UP = 10
P50, P99 = "p50 ms", "p99 ms"
BOUNDS_MS = {  # goal and aim
    ("PostgreSQL", P50): (1.8, 1.0), ("PostgreSQL", P99): (4.0, 2.5),
    ("SQLite", P50): (3.0, 2.0), ("SQLite", P99): (8.0, 5.0),
}  # fmt: skip
BARE = "bare PostgreSQL"


def run(options: Options) -> Report:
    count = max(20, options.size(SAMPLES))

    def on_postgresql() -> dict[str, float]:
        with options.server.database() as database:
            return _measure(database, count)

    def on_sqlite() -> dict[str, float]:
        with servers.sqlite_file() as file:
            return _measure(str(file), count)

    def bare() -> dict[str, float]:
        with options.server.database() as database:
            return _measure_bare(database, count)

    contenders = [
        Contender(BARE, "psycopg: INSERT, COMMIT, NOTIFY; LISTEN, one UPDATE that commits", bare),
        Contender("PostgreSQL", "defaults: LISTEN, hint after the commit", on_postgresql),
        Contender("SQLite", "defaults: WAL, synchronous=FULL, woken by writes to the file", on_sqlite),
    ]
    rows = interleave(contenders, options.rounds, P50, options.say)
    title = f"commit returned → handler entered, idle worker, {count} samples a round"
    report = Report("pickup", title, [P50, P99], rows, decimals=2)
    for (name, column), bounds in BOUNDS_MS.items():
        report.goals += goal_and_aim(f"{name} {column}", report.row(name).median(column), bounds, at_least=False)
    ratio = report.row("PostgreSQL").median(P50) / report.row(BARE).median(P50)
    report.goals.append(Goal(f"PostgreSQL / {BARE}, {P50}", ratio, 2.0, at_least=False, aim=True))
    report.notes = ["Times are absolute: they depend on the machine, and on nothing else using it."]
    return report


def _measure(database: str, count: int) -> dict[str, float]:
    ours.install(database).dispose()
    effects = stopwatch.app(database)

    def commit() -> int:
        with Session(effects.engine) as session, session.begin():
            enqueue(stopwatch.JOB_TYPE, {}, session=session, effects=effects)
        return time.monotonic_ns()

    try:
        with child("stopwatch", database) as worker:
            return _sampled(worker, commit, count)
    finally:
        effects.dispose()


def _measure_bare(database: str, count: int) -> dict[str, float]:
    with psycopg.connect(database) as writing, psycopg.connect(database, autocommit=True) as notifying:
        writing.execute(bare_pickup.TABLE)
        writing.commit()

        def commit() -> int:
            writing.execute("INSERT INTO bench_pickup (payload) VALUES ('{}')")
            writing.commit()
            committed = time.monotonic_ns()
            notifying.execute(f"NOTIFY {bare_pickup.CHANNEL}")
            return committed

        with child("bare_pickup", database) as worker:
            return _sampled(worker, commit, count)


def _sampled(worker: Child, commit: Callable[[], int], count: int) -> dict[str, float]:
    """Milliseconds from a commit to the entry; CLOCK_MONOTONIC is one clock for all processes of a machine."""
    worker.go()
    gaps = random.Random(count)
    samples = []
    for number in range(WARM_UP + count):
        threading.Event().wait(0.01 if number < WARM_UP else gaps.uniform(*GAP_SECONDS))
        committed = commit()
        samples.append((int(worker.line()) - committed) / 1e6)
    return {P50: statistics.median(samples[WARM_UP:]), P99: statistics.quantiles(samples[WARM_UP:], n=100)[98]}
