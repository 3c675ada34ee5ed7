"""SQL statements per enqueued job and per job done, counted by the server.

The server of the wheel has no pg_stat_statements, so it writes every statement into its log
(`log_statement = all`, for the one database) and the log is counted: one line a statement that it executed.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import NamedTuple

import psycopg
from sqlalchemy.orm import Session

from benchmarks import servers
from benchmarks.drains import payload
from benchmarks.options import Options
from benchmarks.processes import child
from benchmarks.rounds import Report, Row
from benchmarks.servers import PostgresServer
from benchmarks.systems import ours, stopwatch
from effects import NewJob, enqueue, enqueue_many

SINGLES, BULK, ONE_BY_ONE = 200, 5000, 50
IDLE_SECONDS = 0.3
WORK, HINTS, ALL = "statements a job", "NOTIFY, sent beside", "with BEGIN and COMMIT"

_EXECUTED = re.compile(r"LOG:  (?:statement|execute [^:]*): *(\S*)")
_CONTROL = ("BEGIN", "COMMIT", "ROLLBACK")


class Counted(NamedTuple):
    """Statements that do the work, control transactions, and tell workers of commits, on a connection of their own."""

    work: int
    control: int
    hints: int


def run(options: Options) -> Report:
    """Counts, not times: one round says it all."""
    report = Report("statements", "SQL statements on PostgreSQL, counted in the server's log", [WORK, HINTS, ALL], [])
    report.decimals = 4
    with logging_server(options) as server, server.database() as database:
        assert server.log is not None
        ours.install(database).dispose()
        with psycopg.connect(database, autocommit=True) as admin:
            admin.execute(f"ALTER DATABASE {admin.info.dbname} SET log_statement = 'all'")
        for name, setting, jobs, act in _acts(database):
            options.say(name)
            row = Row(name, setting)
            count = counted(server.log, act)
            row.add({WORK: count.work / jobs, HINTS: count.hints / jobs, ALL: sum(count) / jobs}, WORK)
            report.rows.append(row)
    report.notes = ["The drain counts everything its worker says from its first connection to its last."]
    return report


def logging_server(options: Options) -> AbstractContextManager[PostgresServer]:
    """The log must be readable: a server that the operator named will not do."""
    return nullcontext(options.server) if options.server.log else servers.postgresql(ours=True)


def _acts(database: str) -> list[tuple[str, str, int, Callable[[], None]]]:
    waiting = SINGLES + BULK
    return [
        ("enqueue", f"{SINGLES} Sessions, one job each", SINGLES, lambda: _enqueue(database)),
        ("enqueue_many", f"one Session, {BULK:,} jobs", BULK, lambda: _enqueue_many(database)),
        ("drain", f"those {waiting:,} jobs, one worker", waiting, lambda: _drain(database)),
        ("one by one", f"{ONE_BY_ONE} jobs, {IDLE_SECONDS} s apart, to an idle worker, polls included",
         ONE_BY_ONE, lambda: _one_by_one(database)),
    ]  # fmt: skip


def counted(log: Path, act: Callable[[], None]) -> Counted:
    """The statements that the server executed during `act`."""
    start = log.stat().st_size
    act()
    with log.open(encoding="utf-8", errors="replace") as file:
        file.seek(start)
        verbs = [match[1].rstrip(";").upper() for match in map(_EXECUTED.search, file) if match]
    control, hints = sum(verb in _CONTROL for verb in verbs), verbs.count("NOTIFY")
    return Counted(len(verbs) - control - hints, control, hints)


def _enqueue(database: str) -> None:
    effects = ours.app(database)
    for number in range(SINGLES):
        with Session(effects.engine) as session, session.begin():
            enqueue(ours.JOB_TYPE, payload(number), session=session, effects=effects)
    effects.dispose()


def _enqueue_many(database: str) -> None:
    effects = ours.app(database)
    with Session(effects.engine) as session, session.begin():
        jobs = [NewJob(job_type=ours.JOB_TYPE, payload=payload(number)) for number in range(BULK)]
        enqueue_many(jobs, session=session, effects=effects)
    effects.dispose()


def _drain(database: str) -> None:
    with child("ours", "", "", database) as worker:
        worker.go()
        worker.wait()


def _one_by_one(database: str) -> None:
    effects = stopwatch.app(database)
    with child("stopwatch", database) as worker:
        worker.go()
        for _ in range(ONE_BY_ONE):
            threading.Event().wait(IDLE_SECONDS)
            with Session(effects.engine) as session, session.begin():
                enqueue(stopwatch.JOB_TYPE, {}, session=session, effects=effects)
            worker.line()
    effects.dispose()
