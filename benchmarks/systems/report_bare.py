"""The same rows without effects: psycopg's COPY, or SQLAlchemy Core and csv.writer, into one file."""

from __future__ import annotations

import csv
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import psycopg
import sqlalchemy as sa

from benchmarks.processes import await_go
from benchmarks.servers import effects_url
from benchmarks.systems.report_orders import COLUMNS, forget, map_order, orders, peak_mebibytes

PARTITION = 5000


def work(how: str, database: str, folder: str, rows: str) -> None:
    path = Path(folder) / "orders.csv"
    with {"copy": _copy, "core": _core}[how](database, path, int(rows)) as write:
        write()
        forget(folder)
        await_go()
        began = time.monotonic()
        write()
        seconds = time.monotonic() - began
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
