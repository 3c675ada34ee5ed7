"""Two million rows as a CSV file: from the request to the finished file, beside bare loops over the same table."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from functools import partial

from benchmarks.options import Options
from benchmarks.processes import child
from benchmarks.rounds import Contender, Goal, Report, Row, interleave
from benchmarks.systems import report_orders

ROWS, SMALL_SHARE = 2_000_000, 10
SPEED, MEMORY = "rows/s", "peak MiB"
COPY_SHARE, MAPPED_SHARE = 0.85, 0.8
XLSX_SHARE, PARQUET_SHARE = 3.0, 0.5
GROWTH_MAX, MEMORY_MAX = 1.2, 150.0

BARE_COPY, BARE_CORE = "bare psycopg COPY", "bare SQLAlchemy Core"
COPY, EXCEL, MAPPED = "effects, COPY", "effects, COPY, excel", "effects, mapped"
XLSX, BARE_XLSX = "effects, xlsx", "XlsxWriter, constant memory"
PARQUET, BARE_PARQUET = "effects, parquet", "pyarrow alone"
SMALL = ", a tenth of the rows"


def run(options: Options) -> Report:
    count = options.size(ROWS)
    small = count // SMALL_SHARE
    with options.server.database() as database:
        report_orders.fill(database, count)

        def measured(report: str, rows: int) -> Callable[[], dict[str, float]]:
            return partial(_measure, "report_runs", report, database, rows)

        def bare(how: str, rows: int = count) -> Callable[[], dict[str, float]]:
            return partial(_measure, "report_bare", how, database, rows)

        contenders = [
            Contender(COPY, "dialect raw: quoting, no defence", measured("orders_raw", count)),
            Contender(EXCEL, "the default dialect: defence, CRLF", measured("orders_excel", count)),
            Contender(BARE_COPY, "COPY table TO STDOUT, rows to a file", bare("copy")),
            Contender(MAPPED, "map_row, dialect raw", measured("orders_mapped", count)),
            Contender(BARE_CORE, "partitions(5000), the same mapping, csv.writer", bare("core")),
            Contender(XLSX, f"{small:,} rows", measured("orders_xlsx", small)),
            Contender(BARE_XLSX, f"{small:,} rows, write by type", bare("xlsx", small)),
            Contender(PARQUET, f"{small:,} rows", measured("orders_parquet", small)),
            Contender(BARE_PARQUET, f"{small:,} rows, SQLAlchemy Core, 100,000 a row group", bare("parquet", small)),
            Contender(COPY + SMALL, "", measured("orders_raw", small)),
            Contender(MAPPED + SMALL, "", measured("orders_mapped", small)),
        ]
        rows = interleave(contenders, options.rounds, SPEED, options.say)
    title = f"{count:,} rows of 8 columns from PostgreSQL to a CSV file, one worker process"
    report = Report("reports", title, [SPEED, MEMORY], rows)
    report.goals = [
        Goal(f"{COPY} / {BARE_COPY}", _ratio(report, COPY, BARE_COPY, SPEED), COPY_SHARE),
        Goal(f"{EXCEL} / {BARE_COPY}", _ratio(report, EXCEL, BARE_COPY, SPEED), COPY_SHARE, aim=True),
        Goal(f"{MAPPED} / {BARE_CORE}", _ratio(report, MAPPED, BARE_CORE, SPEED), MAPPED_SHARE),
        Goal(f"{XLSX} / {BARE_XLSX}", _ratio(report, XLSX, BARE_XLSX, SPEED), XLSX_SHARE),
        Goal(f"{XLSX}: peak MiB", report.row(XLSX).median(MEMORY), MEMORY_MAX, at_least=False),
        Goal(f"{PARQUET} / {BARE_PARQUET}", _ratio(report, PARQUET, BARE_PARQUET, SPEED), PARQUET_SHARE),
        Goal(f"{PARQUET}: peak MiB", report.row(PARQUET).median(MEMORY), MEMORY_MAX, at_least=False),
        *(goal for name in (COPY, MAPPED) for goal in _memory_goals(report, name)),
    ]
    report.notes = [
        "effects is timed by the database's clock from the request to `ready`: plan, chunks, SHA-256 of each part and "
        "of the file, its fsync, assembly, 4 chunks at once. The bare loops have one connection and one fsync.",
        "Memory is the highest resident size of the whole process, worker and libraries included.",
    ]
    return report


def _measure(module: str, what: str, database: str, rows: int) -> dict[str, float]:
    folder_of_its_own = tempfile.TemporaryDirectory(prefix="effects-bench-")
    with folder_of_its_own as folder, child(module, what, database, folder, str(rows)) as process:
        process.go()
        seconds, mebibytes = map(float, process.line().split())
    return {SPEED: rows / seconds, MEMORY: mebibytes}


def _ratio(report: Report, name: str, baseline: str, column: str) -> float:
    row: Row = report.row(name)
    return row.median(column) / report.row(baseline).median(column)


def _memory_goals(report: Report, name: str) -> list[Goal]:
    growth = _ratio(report, name, name + SMALL, MEMORY)
    return [
        Goal(f"{name}: peak memory of all rows / of a tenth", growth, GROWTH_MAX, at_least=False),
        Goal(f"{name}: peak MiB", report.row(name).median(MEMORY), MEMORY_MAX, at_least=False),
    ]
