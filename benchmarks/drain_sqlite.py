"""No-op jobs on SQLite, drained by one worker process: ours and huey's SQLite storage, both with fsync."""

from __future__ import annotations

from benchmarks import servers
from benchmarks.drains import System, drain_sqlite
from benchmarks.options import Options
from benchmarks.rounds import Contender, Report, goal_and_aim, interleave
from benchmarks.systems import huey_sqlite, ours

JOBS = 10_000
COLUMN = "jobs/s"
TIMES_HUEY = (7.0, 10.0)  # goal and aim


def run(options: Options) -> Report:
    count = options.size(JOBS)

    def contender(name: str, setting: str, system: System) -> Contender:
        def measure() -> float:
            with servers.sqlite_file() as file:
                return drain_sqlite(system, file, count)

        return Contender(name, setting, measure)

    contenders = [
        contender("effects", "defaults: 10 threads, WAL, synchronous=FULL; history and attempt log on", ours.system()),
        contender("huey, 1 thread", "WAL, fsync=True, results=False", huey_sqlite.system(1)),
        contender("huey, 2 threads", "WAL, fsync=True, results=False", huey_sqlite.system(2)),
    ]
    rows = interleave(contenders, options.rounds, COLUMN, options.say)
    title = f"{count:,} no-op jobs on SQLite, one worker process"
    report = Report("drain_sqlite", title, [COLUMN], rows, baseline="huey, 1 thread")
    best = report.best("huey")
    ratio = report.row("effects").median(COLUMN) / best.median(COLUMN)
    report.goals = goal_and_aim(f"effects / {best.name} (its best)", ratio, TIMES_HUEY)
    report.notes = ["huey deletes a job when it takes it and keeps no history; a crash loses the job."]
    return report
