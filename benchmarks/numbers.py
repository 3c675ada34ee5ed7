"""What numbers over time cost a worker: the same drain with them and without, in one run."""

from __future__ import annotations

from functools import partial

from benchmarks.drains import drain_postgresql, drain_sqlite
from benchmarks.options import Options
from benchmarks.rounds import Contender, Goal, Report, interleave
from benchmarks.servers import sqlite_file
from benchmarks.systems import ours

JOBS = 60_000
COLUMN = "jobs/s"
DATABASES = ("PostgreSQL", "SQLite")
SHARE_MIN = 0.97


def run(options: Options) -> Report:
    count = options.size(JOBS)
    contenders = [
        Contender(_name(database, numbers), "defaults: 10 threads", partial(_drain, options, database, numbers, count))
        for database in DATABASES
        for numbers in (True, False)
    ]
    rows = interleave(contenders, options.rounds, COLUMN, options.say)
    report = Report("numbers", f"{count:,} no-op jobs, one worker process, with rollups and without", [COLUMN], rows)
    for database in DATABASES:
        with_numbers, without = (report.row(_name(database, numbers)).median(COLUMN) for numbers in (True, False))
        report.goals.append(Goal(f"{database}: with / without", with_numbers / without, SHARE_MIN))
    return report


def _name(database: str, numbers: bool) -> str:
    return f"{database}, {'with' if numbers else 'without'} numbers"


def _drain(options: Options, database: str, numbers: bool, count: int) -> float:
    system = ours.system(numbers=numbers)
    if database == "SQLite":
        with sqlite_file() as file:
            return drain_sqlite(system, file, count)
    with options.server.database() as url:
        return drain_postgresql(system, url, count)
