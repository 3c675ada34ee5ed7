"""Rows of 2 KB, and a report of all of them: one chunk by a worker pinned to one core, or several at once."""

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
from effects_reports import ReportDefinition, report, request_report
from effects_reports.state import ChunkRoom, state_of

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
MAPPED = "wide_mapped"


def _report(name: str, chunk_rows: int) -> ReportDefinition:
    mapping: dict[str, Any] = {"columns": ("id", "body"), "map_row": tuple} if name == MAPPED else {}
    return report(name, key=("id",), dialect="raw", chunk_rows=chunk_rows, bytes_max=1 << 40, **mapping)(_all)


def fill(database: str, rows: int) -> None:
    """The table and those of effects, in a fresh database."""
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute(_TABLE.format(rows=rows))
        connection.execute("ALTER TABLE bench_wide ADD PRIMARY KEY (id)")
        connection.execute("VACUUM ANALYZE bench_wide")
    effects = Effects(effects_url(database), log_level="WARNING")
    effects.create_tables()
    effects.dispose()


def work(name: str, database: str, folder: str, rows: str, chunks: str) -> None:
    """Make the report once; print the highest resident memory in MiB."""
    sys.meta_path.insert(0, NoPandas())
    if int(chunks) == 1 and hasattr(os, "sched_setaffinity"):  # Linux
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    definition = _report(name, int(rows) // int(chunks))
    effects = Effects(
        effects_url(database), reports=[definition], storage_url=folder, log_level="WARNING", threads=int(chunks)
    )
    if int(chunks) > 1:  # as many cores, whatever this machine has
        state = state_of(effects)
        state.room = ChunkRoom(state.settings.report_memory * 1024 * 1024, int(chunks))
    worker = Worker(effects)
    working = threading.Thread(target=worker.run, daemon=True)
    working.start()
    await_go()
    run = request_report(name, format=FORMATS.get(name, "csv"), key=uuid.uuid4().hex, effects=effects).run_id
    await_report(effects, run, int(rows))
    worker.stop()
    working.join()
    print(peak_mebibytes(), flush=True)
