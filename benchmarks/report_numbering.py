"""What numbering a sheet's rows again costs, and how soon the files of many requests come."""

from __future__ import annotations

import tempfile
from functools import partial

from benchmarks.options import Options
from benchmarks.processes import child
from benchmarks.rounds import Contender, Goal, Report, interleave
from benchmarks.systems import report_orders
from benchmarks.systems.report_queue import CHUNKS, RUN_ROWS

ROWS, REQUESTS = 200_000, 60
CHUNK_US, ASSEMBLY_US, SHARE, SIZE = "chunks µs/row", "assembly µs/row", "numbered again", "MiB"
PLANNED, HALF, ALL = "as planned", "a row less before half of the parts", "a row less before all parts"
FIRST, MEDIAN, LAST = "first s", "median s", "last s"
ONE, MANY = "1 request", f"{REQUESTS} requests"
ASSEMBLY_SHARE, FIRST_SHARE, MEDIAN_SHARE = 1.0, 2.0, 0.6


def run(options: Options) -> Report:
    count = options.size(ROWS)
    contenders = [
        Contender(name, "", partial(_sheet, which, count))
        for name, which in ((PLANNED, "planned"), (HALF, "half"), (ALL, "all"))
    ]
    rows = interleave(contenders, options.rounds, CHUNK_US, options.say)
    report = Report(
        "report_numbering", f"{count:,} rows of 10 columns as XLSX, in 20 parts", [CHUNK_US, ASSEMBLY_US, SHARE, SIZE],
        rows, decimals=2,
    )  # fmt: skip
    worst = report.row(ALL).median(ASSEMBLY_US) / report.row(ALL).median(CHUNK_US)
    report.goals = [Goal("all numbered again: CPU of assembly / of chunks", worst, ASSEMBLY_SHARE, at_least=False)]
    return report


def order(options: Options) -> Report:
    with options.server.database() as database:
        report_orders.fill(database, REQUESTS * RUN_ROWS)
        contenders = [
            Contender(name, f"{CHUNKS} chunks each", partial(_queue, database, requests))
            for name, requests in ((ONE, 1), (MANY, REQUESTS))
        ]
        rows = interleave(contenders, options.rounds, FIRST, options.say)
    title = f"{REQUESTS} requests of one report, made at once, and one alone: seconds to each file"
    report = Report("report_order", title, [FIRST, MEDIAN, LAST], rows, decimals=2)
    alone = [first / single for first, single in zip(_of(report, MANY, FIRST), _of(report, ONE, FIRST), strict=True)]
    spread = [middle / last for middle, last in zip(_of(report, MANY, MEDIAN), _of(report, MANY, LAST), strict=True)]
    report.goals = [
        Goal("first file / one alone in the same round", max(alone), FIRST_SHARE, at_least=False),
        Goal("median / last", max(spread), MEDIAN_SHARE, at_least=False),
    ]
    return report


def _of(report: Report, name: str, column: str) -> list[float]:
    return report.row(name).samples[column]


def _sheet(which: str, rows: int) -> dict[str, float]:
    with child("report_parts", which, str(rows)) as process:
        process.go()
        figures = map(float, process.line().split())
        return dict(zip((CHUNK_US, ASSEMBLY_US, SHARE, SIZE), figures, strict=True))


def _queue(database: str, requests: int) -> dict[str, float]:
    folder_of_its_own = tempfile.TemporaryDirectory(prefix="effects-bench-")
    with folder_of_its_own as folder, child("report_queue", database, folder, str(requests)) as process:
        process.go()
        return dict(zip((FIRST, MEDIAN, LAST), map(float, process.line().split()), strict=True))
