"""How long the jobs of other keys wait while 50,000 due ones stand behind a key that is paused or full."""

from __future__ import annotations

import time
from functools import partial

from sqlalchemy.orm import Session

from benchmarks import beside
from benchmarks.options import Options
from benchmarks.processes import Child, child
from benchmarks.rounds import Report
from benchmarks.systems import ours, waits
from effects import Effects, NewJob, enqueue, enqueue_many
from effects.store.limits import key_limits as limit_rows

BEHIND = 50_000
KEYS = 20
BATCH = 1000
BLOCKED = "blocked"
ALONE, PAUSED, FULL = "alone", "paused", "full"


def run(options: Options) -> Report:
    behind = options.size(BEHIND)
    settings = {
        ALONE: "nothing else in the queue",
        PAUSED: f"{behind:,} due jobs behind a paused key",
        FULL: f"{behind:,} due jobs behind a key with 1 in flight, which runs",
    }
    title = f"commit returned → handler entered, for jobs of {KEYS} other keys, {{samples}} samples a round"
    return beside.compare("fairness", title, settings, options, partial(_measure, behind))


def _measure(behind: int, database: str, kind: str, count: int) -> dict[str, float]:
    ours.install(database).dispose()
    effects = waits.app(database)
    try:
        if kind != ALONE:
            _block(effects, kind, behind)
        with child("waits", database) as worker:
            worker.go()
            return beside.waits(partial(_sample, effects, worker), count)
    finally:
        effects.dispose()


def _block(effects: Effects, kind: str, behind: int) -> None:
    with effects.store.begin() as connection:
        limit_rows.ensure_limit(effects.store, connection, BLOCKED, max_in_flight=1)
        if kind == PAUSED:
            limit_rows.pause(effects.store, connection, BLOCKED, actor="bench")
    for begin in range(0, behind, BATCH):
        size = min(BATCH, behind - begin)
        enqueue_many([NewJob(job_type=waits.HELD, payload={}, limit_key=BLOCKED)] * size, effects=effects)


def _sample(effects: Effects, worker: Child, number: int) -> float:
    """Milliseconds of one pick-up; CLOCK_MONOTONIC is one clock for all processes of a machine."""
    with Session(effects.engine) as session, session.begin():
        enqueue(waits.TOLD, {}, limit_key=f"key-{number % KEYS}", session=session, effects=effects)
    committed = time.monotonic_ns()
    entered = int(worker.line())
    return (entered - committed) / 1e6
