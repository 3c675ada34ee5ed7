"""Groups, and what a transaction of the app holds: whether a busy one starves, what waiting ones cost, who waits along.

On PostgreSQL alone: on SQLite an open transaction that has written keeps every other writer out.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import psycopg
from sqlalchemy import text
from sqlalchemy.orm import Session

from benchmarks import beside
from benchmarks.options import Options
from benchmarks.processes import Child, child
from benchmarks.rounds import Contender, Goal, Report, Row, interleave
from benchmarks.systems import ours, waits
from effects import Effects, enqueue

PRODUCERS, TRANSACTION_SECONDS, BUSY_SECONDS = 4, 0.03, 10.0
DONE = "% done meanwhile"
GROUPS, IDLE_SECONDS, TICKS = 10_000, 10.0, os.sysconf("SC_CLK_TCK")
REPORTED_SECONDS = 12.0  # a session tells what it wrote up to 10 s later: here, the tables' first pages
CPU, WAL = "% of a core", "WAL KiB/s"
HOLDING = 20  # groups, and as many keys
SAMPLES = 200

# -- a busy group --------------------------------------------------------------------------------------------


def busy(options: Options) -> Report:
    """Of what producers commit into one group, how much is done while they continue."""

    def measure() -> dict[str, float]:
        with options.server.database() as database, _worker(database) as (effects, _):
            return {DONE: _produce(effects, BUSY_SECONDS * max(0.3, options.scale))}

    contender = Contender(
        "one group", f"{PRODUCERS} producers, transactions of {TRANSACTION_SECONDS * 1000:g} ms", measure
    )
    rows = interleave([contender], options.rounds, DONE, options.say)
    report = Report("busy_group", "jobs done of those committed, when the producers stop", [DONE], rows, decimals=1)
    report.goals = [Goal(DONE, rows[0].median(DONE), 80.0)]
    return report


def _produce(effects: Effects, seconds: float) -> float:
    until, committed = time.monotonic() + seconds, [0] * PRODUCERS

    def producer(number: int) -> None:
        while time.monotonic() < until:
            with Session(effects.engine) as session, session.begin():
                enqueue(waits.TOLD, {}, group_key="g", session=session, effects=effects)
                threading.Event().wait(TRANSACTION_SECONDS)
            committed[number] += 1

    threads = [threading.Thread(target=producer, args=(number,)) for number in range(PRODUCERS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    with effects.engine.connect() as connection:
        done = connection.execute(text("SELECT count(*) FROM effects_job_history")).scalar_one()
    return float(100 * done / sum(committed))


# -- groups that wait ----------------------------------------------------------------------------------------

ALONE, HEADS, BEHIND = "no groups", "heads", "heads and a due job behind each"


def waiting(options: Options) -> Report:
    """What groups whose heads wait until tomorrow cost an idle worker's server, and a new group's job."""
    groups = options.size(GROUPS)
    settings = {
        ALONE: "an idle worker with nothing in its queue",
        HEADS: f"{groups:,} groups with a job for tomorrow each",
        BEHIND: "the same, and behind each one that is due",
    }
    contenders = [Contender(kind, setting, partial(_idle, options, groups, kind)) for kind, setting in settings.items()]
    rows = interleave(contenders, options.rounds, CPU, options.say)
    report = Report(
        "waiting_groups", "an idle worker; then jobs of new groups", [CPU, WAL, beside.P95], rows, decimals=2
    )
    bounds = {CPU: 2.0, WAL: 5.0, beside.P95: 100.0}
    report.goals = [
        Goal(f"{kind}, {column}", report.row(kind).median(column), bound, at_least=False)
        for kind in (HEADS, BEHIND)
        for column, bound in bounds.items()
    ]
    return report


_OTHERS = "datname = current_database() AND pid <> pg_backend_pid()"


def _idle(options: Options, groups: int, kind: str) -> dict[str, float]:
    with options.server.database() as database:
        ours.install(database).dispose()
        with psycopg.connect(database, autocommit=True) as admin:
            if kind != ALONE:
                _fill(admin, groups, "now() + interval '1 day'")
            if kind == BEHIND:
                _fill(admin, groups, "now()")
            admin.execute("UPDATE effects_job_definitions SET enabled = false")  # the cleanup is not idle work
            admin.execute("VACUUM ANALYZE")
            admin.execute("CHECKPOINT")
            with _worker(database, install=False) as (effects, worker):
                beside.waits(partial(_sample, effects, worker, "warm"), 2)
                threading.Event().wait(REPORTED_SECONDS)
                cpu, wal, began = _cpu_seconds(admin), _wal_bytes(admin), time.monotonic()
                threading.Event().wait(IDLE_SECONDS)
                seconds = time.monotonic() - began
                used = {
                    CPU: 100 * (_cpu_seconds(admin) - cpu) / seconds,
                    WAL: (_wal_bytes(admin) - wal) / 1024 / seconds,
                }
                samples = max(beside.SAMPLES_MIN, options.size(SAMPLES))
                return {**used, **beside.waits(partial(_sample, effects, worker, "new"), samples)}


def _fill(admin: psycopg.Connection[tuple[object, ...]], groups: int, run_at: str) -> None:
    admin.execute(
        "INSERT INTO effects_jobs (job_type, routed, group_key, run_at) "
        f"SELECT '{waits.TOLD}', true, 'g' || i, {run_at} FROM generate_series(1, {groups}) AS i"
    )


def _cpu_seconds(admin: psycopg.Connection[tuple[object, ...]]) -> float:
    """Of the database's other sessions, which are the worker's; the server is on this machine."""
    total = 0.0
    for (pid,) in admin.execute(f"SELECT pid FROM pg_stat_activity WHERE {_OTHERS}").fetchall():
        fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
        total += (int(fields[11]) + int(fields[12])) / TICKS
    return total


def _wal_bytes(admin: psycopg.Connection[tuple[object, ...]]) -> float:
    """What the same sessions have written; of a server before 18, which cannot tell, what all have."""
    if admin.info.server_version >= 180000:
        written = f"SELECT sum((pg_stat_get_backend_wal(pid)).wal_bytes) FROM pg_stat_activity WHERE {_OTHERS}"
    else:
        written = "SELECT pg_current_wal_insert_lsn() - '0/0'"
    [(size,)] = admin.execute(written.encode()).fetchall()
    return float(str(size))


def _sample(effects: Effects, worker: Child, group: str, number: int) -> float:
    """Milliseconds from the commit of a job of a group of its own to its handler."""
    with Session(effects.engine) as session, session.begin():
        enqueue(waits.TOLD, {}, group_key=f"{group}{number}", session=session, effects=effects)
    committed = time.monotonic_ns()
    return (int(worker.line()) - committed) / 1e6


# -- what a transaction holds --------------------------------------------------------------------------------


def held(options: Options) -> Report:
    """How long jobs wait beside a transaction of the app that holds groups and keys which other jobs name."""
    samples = max(beside.SAMPLES_MIN, options.size(SAMPLES))
    settings = {
        "alone": "nothing else",
        "held": f"an open transaction has enqueued with {HOLDING} groups and keys; plain INSERTs name them, too",
    }
    contenders = [
        Contender(kind, setting, partial(_beside_held, options, kind, samples)) for kind, setting in settings.items()
    ]
    rows: list[Row] = interleave(contenders, options.rounds, beside.P95, options.say)
    title = f"commit returned → handler entered, for jobs of other groups, {samples} samples a round"
    report = Report("held_locks", title, [beside.P95, beside.P50], rows, decimals=2)
    bound = round(2 * report.row("alone").median(beside.P95), 2)
    report.goals = [Goal("held, p95 ms", report.row("held").median(beside.P95), bound, at_least=False)]
    return report


def _beside_held(options: Options, kind: str, samples: int) -> dict[str, float]:
    with options.server.database() as database, _worker(database) as (effects, worker):
        with Session(effects.engine) as session, session.begin():
            for number in range(HOLDING if kind == "held" else 0):
                key, group = f"k{number}", f"g{number}"
                enqueue(waits.HELD, {}, key=key, group_key=group, session=session, effects=effects)
                with effects.engine.begin() as connection:
                    into = (
                        "INSERT INTO effects_jobs (job_type, idempotency_key, group_key) VALUES (:type, :key, :group)"
                    )
                    connection.execute(text(into), {"type": waits.HELD, "key": key, "group": group})
            milliseconds = beside.waits(partial(_sample, effects, worker, "new"), samples)
            session.rollback()
        return milliseconds


@contextmanager
def _worker(database: str, *, install: bool = True) -> Iterator[tuple[Effects, Child]]:
    """A worker in a process of its own that tells of every job, and the app beside it."""
    if install:
        ours.install(database).dispose()
    effects = waits.app(database)
    try:
        with child("waits", database) as worker:
            worker.go()
            yield effects, worker
    finally:
        effects.dispose()
