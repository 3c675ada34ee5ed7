"""How fast a full queue is emptied, seen from outside by the database.

The clock starts when the first job is seen claimed and stops when the last one is seen gone. Imports,
connecting and a worker's own start are outside of it, for every system alike. The observer asks every 5 ms by
primary key, which costs the server next to nothing.
"""

from __future__ import annotations

import sqlite3
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import psycopg

from benchmarks.processes import WORK_SECONDS, Child, child

POLL_SECONDS = 0.005
PAYLOAD_BYTES = 200

Query = Callable[[str], "int | None"]


@dataclass(frozen=True)
class System:
    """A queue that can be filled and drained."""

    module: str  # under benchmarks.systems; its `work` is the worker
    arguments: tuple[str, ...]
    fill: Callable[[str, int], None]  # (database, count): committed before it returns
    table: str
    waiting: str  # SQL: true of a row that no one has claimed


def payload(number: int) -> dict[str, object]:
    """The same job for every system, about 200 bytes as JSON."""
    body: dict[str, object] = {"user_id": number, "event": "user.created", "note": ""}
    return body | {"note": "x" * (PAYLOAD_BYTES - len(str(body)))}


def _ignore(worker: Child) -> None:
    """Nothing more is asked of a worker that has drained its queue."""


def drain_postgresql(
    system: System, database: str, count: int, ended: Callable[[Child], None] = _ignore, *, processes: int = 1
) -> float:
    """Jobs a second of one worker process on PostgreSQL, or of several; `ended` is given each behind the clock."""
    system.fill(database, count)
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute("VACUUM ANALYZE")
        connection.execute("CHECKPOINT")

        def query(sql: str) -> int | None:
            row = connection.execute(sql).fetchone()
            return None if row is None else int(row[0])

        with ExitStack() as stack:
            started = (child(system.module, *system.arguments, database) for _ in range(processes))
            workers = [stack.enter_context(worker) for worker in started]
            rate = count / _seconds(system, query, *workers)
            for worker in workers:
                ended(worker)
            return rate


def drain_sqlite(system: System, file: Path, count: int, ended: Callable[[Child], None] = _ignore) -> float:
    """Jobs a second of one worker process on SQLite; `ended` is given the worker behind the clock."""
    system.fill(str(file), count)
    connection = sqlite3.connect(file, isolation_level=None)
    connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")

    def query(sql: str) -> int | None:
        row = connection.execute(sql).fetchone()
        return None if row is None else int(row[0])

    try:
        with child(system.module, *system.arguments, str(file)) as worker:
            rate = count / _seconds(system, query, worker)
            ended(worker)
            return rate
    finally:
        connection.close()


def _seconds(system: System, query: Query, *workers: Child) -> float:
    first, last = query(f"SELECT min(id) FROM {system.table}"), query(f"SELECT max(id) FROM {system.table}")
    for worker in workers:
        worker.go()
    _until(lambda: query(f"SELECT 1 FROM {system.table} WHERE id = {first} AND {system.waiting}") is None, *workers)
    begun = time.perf_counter()
    _until(lambda: query(f"SELECT 1 FROM {system.table} WHERE id = {last}") is None, *workers)
    _until(lambda: query(f"SELECT 1 FROM {system.table} LIMIT 1") is None, *workers)
    return time.perf_counter() - begun


def _until(true: Callable[[], bool], *workers: Child) -> None:
    pause, deadline = threading.Event(), time.monotonic() + WORK_SECONDS
    while not true():
        for worker in workers:
            worker.check()
        if time.monotonic() > deadline:
            raise TimeoutError(f"the queue was not drained within {WORK_SECONDS} s")
        pause.wait(POLL_SECONDS)
