"""Idle pick-up: from the return of a Session's commit to the entry of the handler, in another process."""

from __future__ import annotations

import random
import statistics
import threading
import time
from collections.abc import Callable

from sqlalchemy.orm import Session

from benchmarks import servers
from benchmarks.options import Options
from benchmarks.processes import Child, child
from benchmarks.rounds import Contender, Goal, Report, interleave
from benchmarks.systems import ours, stopwatch
from effects import Effects, enqueue

SAMPLES = 200
GAP_SECONDS = (0.02, 0.2)
WARM_UP = 10
P50, P99 = "p50 ms", "p99 ms"
BOUNDS_MS = {("PostgreSQL", P50): 4.0, ("PostgreSQL", P99): 15.0, ("SQLite", P50): 10.0}


def run(options: Options) -> Report:
    count = max(20, options.size(SAMPLES))

    def on_postgresql() -> dict[str, float]:
        with options.server.database() as database:
            return _measure(database, count)

    def on_sqlite() -> dict[str, float]:
        with servers.sqlite_file() as file:
            return _measure(str(file), count)

    contenders = [
        Contender("PostgreSQL", "defaults: LISTEN, hint after the commit", on_postgresql),
        Contender("SQLite", "defaults: WAL, synchronous=FULL, data_version every 5 ms", on_sqlite),
    ]
    rows = interleave(contenders, options.rounds, P50, options.say)
    title = f"commit returned → handler entered, idle worker, {count} samples a round"
    report = Report("pickup", title, [P50, P99], rows, decimals=2)
    report.goals = [
        Goal(f"{name} {column}", report.row(name).median(column), bound, at_least=False)
        for (name, column), bound in BOUNDS_MS.items()
    ]
    report.notes = ["Times are absolute: they depend on the machine, and on nothing else using it."]
    return report


def _measure(database: str, count: int) -> dict[str, float]:
    ours.install(database).dispose()
    effects = stopwatch.app(database)
    try:
        with child("stopwatch", database) as worker:
            worker.go()
            for _ in range(WARM_UP):
                _sample(effects, worker, pause=lambda: 0.01)
            gaps = random.Random(count)
            samples = [_sample(effects, worker, lambda: gaps.uniform(*GAP_SECONDS)) for _ in range(count)]
    finally:
        effects.dispose()
    return {P50: statistics.median(samples), P99: statistics.quantiles(samples, n=100)[98]}


def _sample(effects: Effects, worker: Child, pause: Callable[[], float]) -> float:
    """Milliseconds of one pick-up; CLOCK_MONOTONIC is one clock for all processes of a machine."""
    threading.Event().wait(pause())
    with Session(effects.engine) as session, session.begin():
        enqueue(stopwatch.JOB_TYPE, {}, session=session, effects=effects)
    committed = time.monotonic_ns()
    entered = int(worker.line())
    return (entered - committed) / 1e6
