"""Five million rows as CSV and csv.gz, from the request to the file, beside psql; reports by two workers; a million
rows of ten columns as XLSX.

Beside the seconds stands the CPU of all who took part, the server's included: on a machine that others use, too, the
seconds tell how busy they were.
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from functools import partial

from benchmarks.options import Options
from benchmarks.processes import child
from benchmarks.rounds import Contender, Goal, Report, interleave
from benchmarks.systems import report_orders

ROWS, MAPPED_ROWS, SHEET_ROWS = 5_000_000, 1_000_000, 1_000_000
SECONDS, CPU = "s", "CPU s"
CSV_SHARE, GZIP_SHARE, WORKERS_SHARE, SHEET_SHARE = 0.8, 2.0, 1.6, 3.0
PSQL, PSQL_GZIP = r"psql \copy", r"psql \copy | gzip -6"
RAW, EXCEL, GZIP = "effects, csv, raw", "effects, csv, excel", "effects, csv.gz, raw"
SEMICOLON = "effects, csv, excel_semicolon"
SHEET, WRITER = "effects, xlsx", "XlsxWriter"
ONE, TWO = "effects, mapped, one worker", "effects, mapped, two workers"


def run(options: Options) -> Report:
    count = options.size(ROWS)
    with options.server.database() as database:
        report_orders.fill(database, count)
        contenders = [
            Contender(PSQL, "the table, no fsync", partial(_psql, "plain", database)),
            Contender(RAW, "quoting, no defence", partial(_worked, "orders_raw", "csv", database, count)),
            Contender(EXCEL, "default: defence, CRLF", partial(_worked, "orders_excel", "csv", database, count)),
            Contender(SEMICOLON, "decimal comma", partial(_worked, "orders_semicolon", "csv", database, count)),
            Contender(PSQL_GZIP, "the table, no fsync", partial(_psql, "gzip", database)),
            Contender(GZIP, "ISA-L", partial(_worked, "orders_raw", "csv.gz", database, count)),
        ]  # fmt: skip
        rows = interleave(contenders, options.rounds, SECONDS, options.say)
    title = f"{count:,} rows of 8 columns from PostgreSQL, request to ready, one worker process"
    report = Report("report_speed", title, [SECONDS, CPU], rows, decimals=2)
    report.goals = [
        Goal(f"{PSQL} / {RAW}", _ratio(report, PSQL, RAW), CSV_SHARE),
        Goal(f"{PSQL} / {EXCEL}", _ratio(report, PSQL, EXCEL), CSV_SHARE, aim=True),
        Goal(f"{PSQL_GZIP} / {GZIP}", _ratio(report, PSQL_GZIP, GZIP), GZIP_SHARE),
    ]
    report.notes = [
        *(f"CPU: {slow} / {fast}: {_ratio(report, slow, fast, CPU):.2f}"
          for slow, fast in ((PSQL, RAW), (PSQL, EXCEL), (PSQL, SEMICOLON), (PSQL_GZIP, GZIP))),
        "CPU is that of client and server together, user and system.",
    ]  # fmt: skip
    return report


def workers(options: Options) -> Report:
    count = options.size(MAPPED_ROWS)
    with options.server.database() as database:
        report_orders.fill(database, count)
        contenders = [
            Contender(
                name, "map_row, dialect raw", partial(_worked, "orders_mapped", "csv", database, count, processes)
            )
            for name, processes in ((ONE, 1), (TWO, 2))
        ]
        rows = interleave(contenders, options.rounds, SECONDS, options.say)
    report = Report("report_workers", f"{count:,} mapped rows by one and by two worker processes", [SECONDS, CPU], rows)
    report.decimals = 2
    report.goals = [Goal(f"{ONE} / {TWO}", _ratio(report, ONE, TWO), WORKERS_SHARE)]
    return report


def sheets(options: Options) -> Report:
    count = options.size(SHEET_ROWS)
    with options.server.database() as database:
        report_orders.fill(database, count)
        contenders = [
            Contender(SHEET, "one worker process", partial(_worked, "ten_columns", "xlsx", database, count)),
            Contender(WRITER, "constant memory, write by type", partial(_bare, "ten", database, count)),
        ]
        rows = interleave(contenders, options.rounds, SECONDS, options.say)
    title = f"{count:,} rows of 10 columns as XLSX from PostgreSQL, request to ready"
    report = Report("report_sheets", title, [SECONDS], rows, decimals=2)
    report.goals = [Goal(f"{WRITER} / {SHEET}", _ratio(report, WRITER, SHEET), SHEET_SHARE)]
    return report


def _bare(how: str, database: str, rows: int) -> dict[str, float]:
    seconds, _ = _figures("report_bare", how, database, rest=[str(rows)])
    return {SECONDS: seconds}


def _psql(how: str, database: str) -> dict[str, float]:
    return _measured(_figures("report_psql", how, database))


def _worked(report: str, file: str, database: str, rows: int, processes: int = 1) -> dict[str, float]:
    return _measured(_figures("report_timed", report, file, database, rest=[str(rows), str(processes)]))


def _figures(module: str, *arguments: str, rest: Sequence[str] = ()) -> list[float]:
    """What this program prints; its folder stands between the arguments and the rest of them."""
    folder_of_its_own = tempfile.TemporaryDirectory(prefix="effects-bench-")
    with folder_of_its_own as folder, child(module, *arguments, folder, *rest) as process:
        process.go()
        return list(map(float, process.line().split()))


def _measured(figures: Sequence[float]) -> dict[str, float]:
    seconds, cpu = figures
    return {SECONDS: seconds, CPU: cpu}


def _ratio(report: Report, slow: str, fast: str, column: str = SECONDS) -> float:
    return report.row(slow).median(column) / report.row(fast).median(column)
