"""Peak memory of reports over wide rows: of one chunk on one core, shared, and of four chunks at once."""

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
CHUNKS, CHUNKS_PEAK_MAX = 4, 300.0
ROUTES = {
    "wide_csv": "COPY",
    "wide_gzip": "COPY to csv.gz",
    "wide_lines": "COPY to ndjson",
    "wide_zstd": "COPY to ndjson.zst",
    "wide_sheet": "xlsx",
    "wide_parquet": "parquet",
    "wide_arrow": "arrow",
    "wide_mapped": "map_row to csv",
}


def run(options: Options) -> Report:
    """One chunk of 250,000 rows."""
    return _run("report_memory", options, 1, "pinned to one core", PEAK_MAX)


def chunks(options: Options) -> Report:
    """Four chunks at once, of 250,000 rows each."""
    return _run("report_chunks", options, CHUNKS, f"{CHUNKS} chunks at once", CHUNKS_PEAK_MAX)


def _run(name: str, options: Options, parallel: int, how: str, most: float) -> Report:
    count = options.size(ROWS) * parallel
    with options.server.database() as database:
        wide_rows.fill(database, count)
        contenders = [
            Contender(route, setting, partial(_measure, route, database, count, parallel))
            for route, setting in ROUTES.items()
        ]
        rows = interleave(contenders, options.rounds, PEAK, options.say)
    title = f"{count:,} rows of 2 KB to a file: highest resident memory of the worker, {how}"
    report = Report(name, title, [PEAK], rows)
    report.goals = [
        Goal(f"{row.name}: peak MiB in the worst round", max(row.samples[PEAK]), most, at_least=False) for row in rows
    ]
    return report


def _measure(route: str, database: str, rows: int, parallel: int) -> float:
    folder_of_its_own = tempfile.TemporaryDirectory(prefix="effects-bench-")
    with (
        folder_of_its_own as folder,
        child("wide_rows", route, database, folder, str(rows), str(parallel)) as process,
    ):
        process.go()
        return float(process.line())
