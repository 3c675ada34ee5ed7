"""The same rows without effects, into one file: psycopg's COPY, SQLAlchemy Core and csv.writer, XlsxWriter, pyarrow."""

from __future__ import annotations

import csv
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import IO, Any

import psycopg
import pyarrow as pa
import pyarrow.parquet as pq
import sqlalchemy as sa
import xlsxwriter

from benchmarks.processes import await_go
from benchmarks.servers import effects_url
from benchmarks.systems.report_orders import COLUMNS, forget, map_order, orders, peak_mebibytes, ten_columns

PARTITION = 5000


def work(how: str, database: str, folder: str, rows: str) -> None:
    path = Path(folder) / "orders.csv"
    ways = {"copy": _copy, "core": _core, "xlsx": _xlsx, "ten": partial(_xlsx, ten=True), "parquet": _parquet}
    with ways[how](database, path, int(rows)) as write:
        if how != "ten":  # which takes more than a minute, and has nothing to warm but its connection
            write()
            forget(folder)
        await_go()
        began = time.monotonic()
        write()
        seconds = time.monotonic() - began
    if how not in ("xlsx", "ten", "parquet"):
        with path.open("rb") as file:
            assert sum(1 for _ in file) == int(rows) + 1
    print(seconds, peak_mebibytes(), flush=True)


@contextmanager
def _copy(database: str, path: Path, rows: int) -> Iterator[Callable[[], None]]:
    with psycopg.connect(database, autocommit=True) as connection:

        def write() -> None:
            with (
                path.open("wb") as file,
                connection.cursor().copy("COPY bench_orders TO STDOUT (FORMAT csv, HEADER)") as copy,
            ):
                for row in copy:
                    file.write(row)
                _make_durable(file)

        yield write


def _make_durable(file: IO[Any]) -> None:
    file.flush()
    os.fsync(file.fileno())


@contextmanager
def _core(database: str, path: Path, rows: int) -> Iterator[Callable[[], None]]:
    engine = sa.create_engine(effects_url(database))
    with engine.connect() as connection:

        def write() -> None:
            with path.open("w", newline="", encoding="utf-8") as file:
                writer = csv.writer(file)
                writer.writerow(COLUMNS)
                result = connection.execute(orders(rows), execution_options={"yield_per": PARTITION})
                for partition in result.partitions(PARTITION):
                    writer.writerows(map(map_order, partition))
                _make_durable(file)

        yield write


@contextmanager
def _xlsx(database: str, path: Path, rows: int, *, ten: bool = False) -> Iterator[Callable[[], None]]:
    engine = sa.create_engine(effects_url(database))
    with engine.connect() as connection:

        def write() -> None:
            workbook = xlsxwriter.Workbook(path, {"constant_memory": True, "remove_timezone": True})
            sheet = workbook.add_worksheet()
            money, moment = (
                workbook.add_format({"num_format": "0.00"}),
                workbook.add_format({"num_format": "yyyy-mm-dd"}),
            )
            sheet.write_row(0, 0, COLUMNS)
            select = ten_columns(rows) if ten else orders(rows)
            result = connection.execute(select, execution_options={"yield_per": PARTITION})
            for number, row in enumerate(result, 1):
                for column, value in enumerate((row.id, row.customer)):
                    sheet.write(number, column, value)
                sheet.write_number(number, 2, row.amount, money)
                sheet.write_boolean(number, 3, row.paid)
                sheet.write_datetime(number, 4, row.created_at, moment)
                sheet.write_datetime(number, 5, row.due_on, moment)
                sheet.write_number(number, 6, row.weight)
                sheet.write_string(number, 7, row.note)
                if ten:
                    sheet.write_number(number, 8, row.lot)
                    sheet.write_boolean(number, 9, row.billed)
            workbook.close()
            with path.open("rb") as file:
                os.fsync(file.fileno())

        yield write


_SCHEMA = pa.schema({
    "id": pa.int64(), "customer": pa.string(), "amount": pa.decimal128(12, 2), "paid": pa.bool_(),
    "created_at": pa.timestamp("us", "UTC"), "due_on": pa.date32(), "weight": pa.float64(), "note": pa.string(),
})  # fmt: skip


@contextmanager
def _parquet(database: str, path: Path, rows: int) -> Iterator[Callable[[], None]]:
    engine = sa.create_engine(effects_url(database))
    with engine.connect() as connection:

        def write() -> None:
            with path.open("wb") as file:
                with pq.ParquetWriter(file, _SCHEMA, compression="zstd") as writer:
                    result = connection.execute(orders(rows), execution_options={"yield_per": PARTITION})
                    for partition in result.partitions(PARTITION * 20):
                        columns = zip(_SCHEMA, zip(*partition, strict=True), strict=True)
                        arrays = [pa.array(values, field.type) for field, values in columns]
                        writer.write_table(pa.table(arrays, schema=_SCHEMA))
                _make_durable(file)

        yield write
