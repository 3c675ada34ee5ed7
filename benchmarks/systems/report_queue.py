"""Requests of one report, all made at once: the seconds until the first, the middle and the last of their files."""

from __future__ import annotations

import logging
import statistics
import threading
import time
import uuid
from typing import Any

import msgspec
from sqlalchemy import Row, Select

from benchmarks.processes import await_go
from benchmarks.servers import effects_url
from benchmarks.systems.report_orders import COLUMNS, orders
from benchmarks.systems.report_runs import await_report
from effects import Effects
from effects.extend.text import moment
from effects.worker import Worker
from effects_reports import report, request_report

CHUNKS, CHUNK_ROWS, ROW_SECONDS = 2, 50, 0.005
RUN_ROWS = CHUNKS * CHUNK_ROWS


class Customer(msgspec.Struct, frozen=True):
    number: int = 0


def _slow(row: Row[Any]) -> Row[Any]:
    time.sleep(ROW_SECONDS)
    return row


def _statement(params: Customer) -> Select[Any]:
    before = params.number * RUN_ROWS
    return orders(before + RUN_ROWS).where(orders(0).selected_columns.id > before)


STATEMENT = report(
    "statement", key=("id",), params=Customer, columns=COLUMNS, map_row=_slow, chunk_rows=CHUNK_ROWS, dialect="raw"
)(_statement)


def work(database: str, folder: str, requests: str) -> None:
    logging.getLogger("alembic").setLevel(logging.WARNING)
    effects = Effects(effects_url(database), reports=[STATEMENT], storage_url=folder, log_level="WARNING")
    worker = Worker(effects)
    working = threading.Thread(target=worker.run, daemon=True)
    working.start()
    _waits(effects, 1)  # imports, connections and the worker's start are outside of the clock
    await_go()
    waits = _waits(effects, int(requests))
    worker.stop()
    working.join()
    print(min(waits), statistics.median(waits), max(waits), flush=True)


def _waits(effects: Effects, count: int) -> list[float]:
    """The seconds from the commit of the requests to each file, by the database's clock."""
    with effects.store.begin() as connection:
        runs = [
            request_report("statement", Customer(n), key=uuid.uuid4().hex, session=connection, effects=effects).run_id
            for n in range(count)
        ]
    with effects.store.read() as connection:
        began = moment(effects.store.now(connection))
    finished = [await_report(effects, run, RUN_ROWS) for run in runs]
    return [(status.ended_at - began).total_seconds() for status in finished if status.ended_at is not None]
