"""effects making a report: requested, planned, written in chunks, assembled, by one worker with default settings."""

from __future__ import annotations

import logging
from typing import Any

import msgspec
from sqlalchemy import Select

from benchmarks.processes import WORK_SECONDS, await_go
from benchmarks.servers import effects_url
from benchmarks.systems.report_orders import COLUMNS, map_order, orders, peak_mebibytes
from effects import Effects
from effects.worker import Worker
from effects_reports import report, report_status, request_report


class Params(msgspec.Struct, frozen=True):
    rows: int = 1


def _orders(params: Params) -> Select[Any]:
    return orders(params.rows)


REPORTS = [
    report("orders_raw", key=("id",), params=Params, dialect="raw")(_orders),
    report("orders_excel", key=("id",), params=Params)(_orders),
    report("orders_mapped", key=("id",), params=Params, dialect="raw", columns=COLUMNS, map_row=map_order)(_orders),
]


def work(name: str, database: str, folder: str, rows: str) -> None:
    logging.getLogger("alembic").setLevel(logging.WARNING)
    effects = Effects(effects_url(database), reports=REPORTS, storage_url=folder, log_level="WARNING")
    worker = Worker(effects)
    await_go()
    run = request_report(name, Params(int(rows)), effects=effects).run_id
    worker.drain(max_seconds=WORK_SECONDS)
    status = report_status(run, effects=effects)
    assert status.state == "ready", status
    assert status.rows == int(rows)
    assert status.ended_at is not None
    print((status.ended_at - status.created_at).total_seconds(), peak_mebibytes(), flush=True)
