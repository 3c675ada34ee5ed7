"""Peak memory of a report over wide rows, by a worker that is slower than the server: it has one core, shared."""

from __future__ import annotations

import tempfile
from functools import partial

from benchmarks.options import Options
from benchmarks.processes import child
from benchmarks.rounds import Contender, Goal, Report, interleave
from benchmarks.systems import wide_rows

ROWS = 250_000
PEAK = "peak MiB"
PEAK_MAX = 150.0
ROUTES = {
    "wide_csv": "COPY, one chunk of all rows",
    "wide_gzip": "COPY to csv.gz, one chunk",
    "wide_lines": "COPY to ndjson, one chunk",
    "wide_zstd": "COPY to ndjson.zst, one chunk",
    "wide_sheet": "xlsx, one chunk",
    "wide_parquet": "parquet, one chunk",
    "wide_arrow": "arrow, one chunk",
    "wide_mapped": "map_row to csv, one chunk",
}


def run(options: Options) -> Report:
    count = options.size(ROWS)
    with options.server.database() as database:
        wide_rows.fill(database, count)
        contenders = [
            Contender(name, setting, partial(_measure, name, database, count)) for name, setting in ROUTES.items()
        ]
        rows = interleave(contenders, options.rounds, PEAK, options.say)
    title = f"{count:,} rows of 2 KB to a file: highest resident memory of the worker, pinned to one core"
    report = Report("report_memory", title, [PEAK], rows)
    report.goals = [
        Goal(f"{row.name}: peak MiB in the worst round", max(row.samples[PEAK]), PEAK_MAX, at_least=False)
        for row in rows
    ]
    return report


def _measure(report: str, database: str, rows: int) -> float:
    folder_of_its_own = tempfile.TemporaryDirectory(prefix="effects-bench-")
    with folder_of_its_own as folder, child("wide_rows", report, database, folder, str(rows)) as process:
        process.go()
        return float(process.line())
