"""1,000 jobs that wait 200 ms: with 10 threads, with 400, and on the event loop, with and without `queue=`."""

from __future__ import annotations

from benchmarks.drains import System, drain_postgresql
from benchmarks.options import Options
from benchmarks.processes import Child
from benchmarks.rounds import Contender, Goal, Report, interleave
from benchmarks.systems import waiting

JOBS, JOBS_MIN = 1_000, 1_000
RATE, CPU = "jobs/s", "CPU ms/job"
FEW, MANY, LOOP, UNNAMED = "10 threads", "400 threads", "event loop", "event loop, no queue="
TIMES_FEW, TIMES_MANY, TIMES_NAMED = 20.0, 1.0, 0.8


def run(options: Options) -> Report:
    count = max(JOBS_MIN, options.size(JOBS))

    def contender(name: str, setting: str, system: System) -> Contender:
        def measure() -> dict[str, float]:
            seconds: list[float] = []

            def ended(worker: Child) -> None:
                seconds.append(float(worker.line()))

            with options.server.database() as database:
                rate = drain_postgresql(system, database, count, ended)
            return {RATE: rate, CPU: seconds[0] / count * 1000}

        return Contender(name, setting, measure)

    contenders = [
        contender(FEW, "the default for blocking handlers", waiting.system(waiting.THREADS)),
        contender(MANY, "EFFECTS_QUEUES=waits=400", waiting.system(waiting.THREADS, 400)),
        contender(LOOP, "the default for async handlers: 1,024 in flight", waiting.system(waiting.LOOP)),
        contender(UNNAMED, "in the queue async, beside our own jobs' queue", waiting.system(waiting.UNNAMED)),
    ]
    rows = interleave(contenders, options.rounds, RATE, options.say)
    title = f"{count:,} jobs that wait {waiting.WAIT_SECONDS * 1000:.0f} ms each, on PostgreSQL, one worker process"
    report = Report("in_flight", title, [RATE, CPU], rows, baseline=FEW, decimals=2)
    loop = report.row(LOOP).median(RATE)
    report.goals = [
        Goal(f"{LOOP} / {FEW}", loop / report.row(FEW).median(RATE), TIMES_FEW),
        Goal(f"{LOOP} / {MANY}", loop / report.row(MANY).median(RATE), TIMES_MANY),
        Goal(f"{UNNAMED} / {LOOP}", report.row(UNNAMED).median(RATE) / loop, TIMES_NAMED),
    ]
    report.notes = ["The clock starts with the first claim, so one wait of 200 ms is the least that any can take."]
    return report
