"""What one job writes into PostgreSQL's log from its enqueue to its end, without a key and with one.

Counted in bytes by the server, in batches, with a payload of 12 bytes: the same on a busy machine. The pages' first
images after a checkpoint are left out by a first drain.
"""

from __future__ import annotations

import psycopg

from benchmarks.options import Options
from benchmarks.processes import child
from benchmarks.rounds import Goal, Report, Row
from benchmarks.systems import ours
from effects import NewJob, enqueue_many

JOBS = 20_000
ENQUEUE, WORK, ALL = "enqueue, bytes", "claim to end, bytes", "all, bytes"
BYTES_MAX = {"without a key": 900, "with a key": 1600}
PAYLOAD = {"number": 1}


def run(options: Options) -> Report:
    """Counts, not times: one round says it all."""
    report = Report("wal", "WAL of a job that does nothing", [ENQUEUE, WORK, ALL], [], decimals=0)
    jobs = options.size(JOBS)
    for name, most in BYTES_MAX.items():
        options.say(name)
        with options.server.database() as database:
            row = Row(name, f"{jobs:,} jobs in batches")
            row.add(_measure(database, jobs, keyed=name == "with a key"), ALL)
        report.rows.append(row)
        report.goals.append(Goal(f"{name}, {ALL}", row.median(ALL), most, at_least=False))
    return report


def _measure(database: str, jobs: int, *, keyed: bool) -> dict[str, float]:
    ours.install(database).dispose()
    with psycopg.connect(database, autocommit=True) as admin:
        admin.execute("CHECKPOINT")
        for first in (0, jobs):
            begun = _written(admin)
            _enqueue(database, range(first, first + jobs), keyed=keyed)
            enqueued = _written(admin)
            with child("ours", "", "", database) as worker:
                worker.go()
                worker.line()
            ended = _written(admin)
    return {ENQUEUE: (enqueued - begun) / jobs, WORK: (ended - enqueued) / jobs, ALL: (ended - begun) / jobs}


def _enqueue(database: str, numbers: range, *, keyed: bool) -> None:
    effects = ours.app(database)
    new = [
        NewJob(job_type=ours.JOB_TYPE, payload=PAYLOAD, key=f"order:{number}" if keyed else None) for number in numbers
    ]
    enqueue_many(new, effects=effects)
    effects.dispose()


def _written(admin: psycopg.Connection[tuple[object, ...]]) -> float:
    row = admin.execute("SELECT pg_current_wal_insert_lsn() - '0/0'").fetchone()
    assert row is not None
    return float(str(row[0]))
