"""Rows of 2 KB, and a report of all of them in one chunk by a worker that is pinned to one core."""

from __future__ import annotations

import os
import sys
import threading
import uuid
from typing import Any

import psycopg
import sqlalchemy as sa

from benchmarks.processes import await_go
from benchmarks.servers import effects_url
from benchmarks.systems.report_orders import NoPandas, peak_mebibytes
from benchmarks.systems.report_runs import await_report
from effects import Effects
from effects.worker import Worker
from effects_reports import report, request_report

WIDE = sa.table("bench_wide", sa.column("id", sa.BigInteger), sa.column("body", sa.Text))
_TABLE = """
CREATE TABLE bench_wide AS SELECT i::bigint AS id, repeat(md5(i::text), 64) AS body FROM generate_series(1, {rows}) AS i
"""


def _all(params: dict[str, Any]) -> sa.Select[Any]:
    return sa.select(WIDE)


FORMATS = {
    "wide_csv": "csv", "wide_gzip": "csv.gz", "wide_lines": "ndjson", "wide_zstd": "ndjson.zst", "wide_sheet": "xlsx",
    "wide_parquet": "parquet", "wide_arrow": "arrow",
}  # fmt: skip
_OPTIONS: dict[str, Any] = {"key": ("id",), "dialect": "raw", "chunk_rows": 10_000_000}
REPORTS = [
    *(report(name, **_OPTIONS)(_all) for name in FORMATS),
    report("wide_mapped", columns=("id", "body"), map_row=tuple, **_OPTIONS)(_all),
]


def fill(database: str, rows: int) -> None:
    """The table and those of effects, in a fresh database."""
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute(_TABLE.format(rows=rows))
        connection.execute("ALTER TABLE bench_wide ADD PRIMARY KEY (id)")
        connection.execute("VACUUM ANALYZE bench_wide")
    effects = Effects(effects_url(database), log_level="WARNING")
    effects.create_tables()
    effects.dispose()


def work(name: str, database: str, folder: str, rows: str) -> None:
    """Make the report once; print the highest resident memory in MiB."""
    sys.meta_path.insert(0, NoPandas())
    if hasattr(os, "sched_setaffinity"):  # Linux
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    effects = Effects(effects_url(database), reports=REPORTS, storage_url=folder, log_level="WARNING")
    worker = Worker(effects)
    working = threading.Thread(target=worker.run, daemon=True)
    working.start()
    await_go()
    run = request_report(name, format=FORMATS.get(name, "csv"), key=uuid.uuid4().hex, effects=effects).run_id
    await_report(effects, run, int(rows))
    worker.stop()
    working.join()
    print(peak_mebibytes(), flush=True)
