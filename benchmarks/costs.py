"""Where a worker's CPU goes: of a job that does nothing, on both databases, and of a message, by part."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

import psycopg

from benchmarks.mail_servers import sink
from benchmarks.options import Options
from benchmarks.processes import child
from benchmarks.rounds import Report, Row
from benchmarks.servers import sqlite_file
from benchmarks.systems import mail, ours

JOBS, MESSAGES = 30_000, 3_000
CPU, SHARE = "CPU µs", "share %"
POSTGRESQL, SQLITE, MAIL = "a no-op job, PostgreSQL", "a no-op job, SQLite", "a message, PostgreSQL"


def run(options: Options) -> Report:
    jobs, messages = options.size(JOBS), options.size(MESSAGES)
    measures: dict[str, Callable[[], dict[str, float]]] = {
        POSTGRESQL: lambda: _noop(options.server.database(), jobs),
        SQLITE: lambda: _noop(_file(), jobs),
        MAIL: lambda: _mail(options, messages),
    }
    rows: dict[tuple[str, str], Row] = {}
    for number in range(options.rounds):
        for name, measure in measures.items():
            options.say(f"round {number + 1} of {options.rounds}: {name}")
            for part, seconds in measure().items():
                row = rows.setdefault((name, part), Row(name, part))
                row.add(seconds / (messages if name == MAIL else jobs) * 1e6, CPU)
    for name in measures:
        whole = sum(row.median(CPU) for row in rows.values() if row.name == name)
        for row in rows.values():
            if row.name == name:
                row.add(row.median(CPU) / whole * 100, SHARE)
    title = f"{jobs:,} no-op jobs, {messages:,} receipts to smtp-sink, one worker process, by part"
    report = Report("costs", title, [CPU, SHARE], list(rows.values()), decimals=1)
    report.notes = ["CPU of the worker process alone; each part without the parts inside it."]
    return report


def _noop(opened: AbstractContextManager[str], jobs: int) -> dict[str, float]:
    with opened as database:
        ours.fill(database, jobs)
        return _drained(database, "noop", "", "")


def _mail(options: Options, messages: int) -> dict[str, float]:
    keys = mail.new_keys()
    with options.server.database() as database, sink() as port:
        url = f"smtp://127.0.0.1:{port}"
        mail.fill(database, keys, url, messages)
        return _drained(database, "mail", keys, url)


def _drained(database: str, *arguments: str) -> dict[str, float]:
    if database.startswith("postgresql"):
        with psycopg.connect(database, autocommit=True) as connection:
            connection.execute("VACUUM ANALYZE")
            connection.execute("CHECKPOINT")
    with child("timed_drain", *arguments, database) as worker:
        worker.go()
        seconds: dict[str, float] = json.loads(worker.line())
    return seconds


@contextmanager
def _file() -> Iterator[str]:
    with sqlite_file() as file:
        yield str(file)
