"""effects making a report: requested, planned, written in chunks, assembled, by one worker with default settings."""

from __future__ import annotations

import logging
import sys
import threading
import time
import uuid
from typing import Any

import msgspec
from sqlalchemy import Numeric, Select

from benchmarks.processes import WORK_SECONDS, await_go
from benchmarks.servers import effects_url
from benchmarks.systems.report_orders import (
    COLUMNS,
    NoPandas,
    forget,
    map_order,
    orders,
    peak_mebibytes,
    ten_columns,
)
from effects import Effects
from effects.worker import Worker
from effects_reports import ReportStatus, report, report_status, request_report

LOOK_SECONDS = 0.2


class Params(msgspec.Struct, frozen=True):
    rows: int = 1


def _orders(params: Params) -> Select[Any]:
    return orders(params.rows)


def _ten_columns(params: Params) -> Select[Any]:
    return ten_columns(params.rows)


REPORTS = [
    report("orders_raw", key=("id",), params=Params, dialect="raw")(_orders),
    report("orders_excel", key=("id",), params=Params)(_orders),
    report("orders_semicolon", key=("id",), params=Params, dialect="excel_semicolon")(_orders),
    report("orders_xlsx", key=("id",), params=Params, formats=("xlsx",))(_orders),
    report("ten_columns", key=("id",), params=Params, formats=("xlsx",))(_ten_columns),
    report("orders_parquet", key=("id",), params=Params, types={"amount": Numeric(12, 2)}, formats=("parquet",))(
        _orders
    ),
    report("orders_mapped", key=("id",), params=Params, dialect="raw", columns=COLUMNS, map_row=map_order)(_orders),
]


def work(name: str, database: str, folder: str, rows: str) -> None:
    sys.meta_path.insert(0, NoPandas())
    logging.getLogger("alembic").setLevel(logging.WARNING)
    effects = Effects(effects_url(database), reports=REPORTS, storage_url=folder, log_level="WARNING")
    worker = Worker(effects)
    working = threading.Thread(target=worker.run, daemon=True)
    working.start()
    _made(effects, name, int(rows))  # imports, connections and the worker's start are outside of the clock
    forget(folder)
    await_go()
    status = _made(effects, name, int(rows))
    worker.stop()
    working.join()
    assert status.ended_at is not None
    print((status.ended_at - status.created_at).total_seconds(), peak_mebibytes(), flush=True)


def _made(effects: Effects, name: str, rows: int) -> ReportStatus:
    return await_report(effects, requested(effects, name, rows), rows)


def requested(effects: Effects, name: str, rows: int, file: str | None = None) -> str:
    """A run of its own: the same request again would give the run that is ready."""
    return request_report(name, Params(rows), format=file, key=uuid.uuid4().hex, effects=effects).run_id


def await_report(effects: Effects, run: str, rows: int) -> ReportStatus:
    """The finished report, which has that many rows."""
    until = time.monotonic() + WORK_SECONDS
    while (status := report_status(run, effects=effects)).state not in ("ready", "failed"):
        assert time.monotonic() < until, status
        time.sleep(LOOK_SECONDS)
    assert status.state == "ready", status
    assert status.rows == rows
    return status
