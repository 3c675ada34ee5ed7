"""A report of a format, by so many worker processes: the seconds from its request to the file, and the CPU of all."""

from __future__ import annotations

import logging
from contextlib import ExitStack

from benchmarks.processes import await_go, child
from benchmarks.servers import effects_url
from benchmarks.systems.cpu import CpuClock
from benchmarks.systems.report_runs import REPORTS, await_report, requested
from effects import Effects
from effects_reports import ReportStatus

WARM_SHARE = 5  # of the rows: several chunks, so that the resident worker has all of its threads and connections


def work(name: str, file: str, database: str, folder: str, rows: str, processes: str) -> None:
    logging.getLogger("alembic").setLevel(logging.WARNING)
    effects = Effects(effects_url(database), reports=REPORTS, storage_url=folder, log_level="WARNING")
    with ExitStack() as workers:
        fleet = [workers.enter_context(child("report_worker", database, folder)) for _ in range(int(processes))]
        for worker in fleet:
            worker.go()
            worker.line()
        _made(effects, name, file, int(rows) // WARM_SHARE)  # the workers' start is outside of the clock
        await_go()
        clock = CpuClock(database, [worker.pid for worker in fleet])
        status = _made(effects, name, file, int(rows))
        cpu = clock.seconds()
    assert status.ended_at is not None
    print((status.ended_at - status.created_at).total_seconds(), cpu, flush=True)


def _made(effects: Effects, name: str, file: str, rows: int) -> ReportStatus:
    return await_report(effects, requested(effects, name, rows, file), rows)
