"""How long the jobs of other keys wait while 50,000 due ones stand behind a key that is paused or full."""

from __future__ import annotations

import random
import statistics
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from typing import Literal, TypeAlias

from sqlalchemy.orm import Session

from benchmarks import servers
from benchmarks.options import Options
from benchmarks.processes import Child, child
from benchmarks.rounds import Contender, Goal, Report, interleave
from benchmarks.systems import ours, waits
from effects import Effects, NewJob, enqueue, enqueue_many
from effects.store import limits

BEHIND = 50_000
SAMPLES, SAMPLES_MIN, WARM_UP = 200, 40, 10
KEYS = 20
GAP_SECONDS = (0.01, 0.1)
BATCH = 1000
P50, P95 = "p50 ms", "p95 ms"
TIMES, MORE_MS = 2.0, 50.0
BLOCKED = "blocked"
Kind: TypeAlias = Literal["alone", "paused", "full"]
Database: TypeAlias = Callable[[], AbstractContextManager[str]]
KINDS: tuple[Kind, ...] = ("alone", "paused", "full")


def run(options: Options) -> Report:
    samples, behind = max(SAMPLES_MIN, options.size(SAMPLES)), options.size(BEHIND)
    databases: dict[str, Database] = {"PostgreSQL": options.server.database, "SQLite": file_database}
    contenders = [
        Contender(f"{name} {kind}", _setting(kind, behind), partial(_on, database, kind, behind, samples))
        for name, database in databases.items()
        for kind in KINDS
    ]
    rows = interleave(contenders, options.rounds, P95, options.say)
    title = f"commit returned → handler entered, for jobs of {KEYS} other keys, {samples} samples a round"
    report = Report("fairness", title, [P95, P50], rows, decimals=2)
    for name in databases:
        alone = report.row(f"{name} alone").median(P95)
        bound = round(max(TIMES * alone, alone + MORE_MS), 2)
        for kind in KINDS[1:]:
            value = report.row(f"{name} {kind}").median(P95)
            report.goals.append(Goal(f"{name} {kind}, p95 ms", value, bound, at_least=False))
    report.notes = [f"The bound is the greater of {TIMES:g} times the wait alone and {MORE_MS:g} ms more than it."]
    return report


def _setting(kind: Kind, behind: int) -> str:
    return {
        "alone": "nothing else in the queue",
        "paused": f"{behind:,} due jobs behind a paused key",
        "full": f"{behind:,} due jobs behind a key with 1 in flight, which runs",
    }[kind]


@contextmanager
def file_database() -> Iterator[str]:
    with servers.sqlite_file() as file:
        yield str(file)


def _on(database: Database, kind: Kind, behind: int, samples: int) -> dict[str, float]:
    with database() as name:
        return _measure(name, kind, behind, samples)


def _measure(database: str, kind: Kind, behind: int, count: int) -> dict[str, float]:
    ours.install(database).dispose()
    effects = waits.app(database)
    try:
        if kind != "alone":
            _block(effects, kind, behind)
        with child("waits", database) as worker:
            worker.go()
            for number in range(WARM_UP):
                _sample(effects, worker, number, 0.01)
            gaps = random.Random(count)
            samples = [_sample(effects, worker, number, gaps.uniform(*GAP_SECONDS)) for number in range(count)]
    finally:
        effects.dispose()
    return {P50: statistics.median(samples), P95: statistics.quantiles(samples, n=20)[18]}


def _block(effects: Effects, kind: Kind, behind: int) -> None:
    with effects.store.begin() as connection:
        limits.ensure(effects.store, connection, BLOCKED, max_in_flight=1)
        if kind == "paused":
            limits.pause(effects.store, connection, BLOCKED, actor="bench")
    for begin in range(0, behind, BATCH):
        size = min(BATCH, behind - begin)
        enqueue_many([NewJob(job_type=waits.HELD, payload={}, limit_key=BLOCKED)] * size, effects=effects)


def _sample(effects: Effects, worker: Child, number: int, gap_seconds: float) -> float:
    """Milliseconds of one pick-up; CLOCK_MONOTONIC is one clock for all processes of a machine."""
    threading.Event().wait(gap_seconds)
    with Session(effects.engine) as session, session.begin():
        enqueue(waits.TOLD, {}, limit_key=f"key-{number % KEYS}", session=session, effects=effects)
    committed = time.monotonic_ns()
    entered = int(worker.line())
    return (entered - committed) / 1e6
