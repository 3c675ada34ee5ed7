"""No-op jobs on PostgreSQL, drained by one worker process: ours, PgQueuer, and a bare loop as the floor."""

from __future__ import annotations

from benchmarks.drains import System, drain_postgresql
from benchmarks.options import Options
from benchmarks.rounds import Contender, Goal, Report, goal_and_aim, interleave
from benchmarks.systems import bare, graphile, ours, pgqueuer

JOBS = 30_000
COLUMN = "jobs/s"
OURS, BARE = "effects", "bare psycopg loop"
BARE_BATCHES = (500, 1000)
GRAPHILE, GRAPHILE_SHARES = "graphile-worker", (0.8, 1.0)  # goal and aim, as below
TWO = ", two processes"
BARE_SHARES = (0.75, 0.9)  # of the batch with which the goal was set, and of its best
TWO_SHARES = (0.85, 1.0)  # of what the bare loop gains by a second process


def run(options: Options) -> Report:
    count = options.size(JOBS)
    systems: list[tuple[str, str, System]] = [
        (OURS, "defaults: 10 threads; history and attempt log on", ours.system()),
        (OURS + TWO, "the same", ours.system()),
        *((f"{BARE}, batch {batch}", "claim, insert history, delete", bare.system(batch)) for batch in BARE_BATCHES),
        (BARE + TWO, f"batch {BARE_BATCHES[-1]}", bare.system(BARE_BATCHES[-1])),
    ]
    for driver in ("psycopg", "asyncpg"):
        for batch in (100, 500, 1000):
            setting = f"{'a pool' if driver == 'asyncpg' else 'one connection'}, uvloop, log table on"
            systems.append((f"PgQueuer on {driver}, batch {batch}", setting, pgqueuer.system(driver, batch)))
    if graphile.available():
        systems += [
            (
                f"{GRAPHILE}, {size} at a time",
                f"{threads} at once, completed in batches",
                graphile.system(threads, size),
            )
            for threads, size in ((10, 500), (24, 500))
        ]

    def contender(name: str, setting: str, system: System) -> Contender:
        def measure() -> float:
            with options.server.database() as database:
                return drain_postgresql(system, database, count, processes=2 if name.endswith(TWO) else 1)

        return Contender(name, setting, measure)

    rows = interleave([contender(*system) for system in systems], options.rounds, COLUMN, options.say)
    title = f"{count:,} no-op jobs on PostgreSQL, by one worker process, ours and the floor by two as well"
    report = Report("drain_postgresql", title, [COLUMN], rows)
    floor, best = report.row(f"{BARE}, batch {BARE_BATCHES[0]}"), report.best(f"{BARE}, batch")
    report.baseline = best.name
    rate = report.row(OURS).median(COLUMN)
    gains = _gain(report, OURS, OURS) / _gain(report, BARE, f"{BARE}, batch {BARE_BATCHES[-1]}")
    goal, aim = BARE_SHARES
    report.goals = [
        Goal(f"effects / {floor.name}", rate / floor.median(COLUMN), goal),
        Goal(f"effects / {best.name} (its best)", rate / best.median(COLUMN), aim, aim=True),
        *goal_and_aim("a second process: effects / bare loop", gains, TWO_SHARES),
        _beside(report, rate, "psycopg"),
        _beside(report, rate, "asyncpg", aim=True),
    ]
    if graphile.available():
        best = report.best(GRAPHILE)
        report.goals += goal_and_aim(f"effects / {best.name} (its best)", rate / best.median(COLUMN), GRAPHILE_SHARES)
    return report


def _gain(report: Report, name: str, alone: str) -> float:
    return report.row(name + TWO).median(COLUMN) / report.row(alone).median(COLUMN)


def _beside(report: Report, rate: float, driver: str, *, aim: bool = False) -> Goal:
    best = report.best(f"PgQueuer on {driver}")
    return Goal(f"effects / {best.name} (its best)", rate / best.median(COLUMN), 1.0, aim=aim)
