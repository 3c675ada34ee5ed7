"""What an idle worker costs: CPU, threads, statements and connections that listen. And what a hint costs committers."""

from __future__ import annotations

import statistics
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import psycopg
from sqlalchemy import create_engine
from sqlalchemy.orm import Session

from benchmarks import pooler, servers
from benchmarks.options import Options
from benchmarks.processes import child
from benchmarks.rounds import Contender, Goal, Report, Row, interleave
from benchmarks.servers import effects_url
from benchmarks.statements import counted, logging_server
from benchmarks.systems import ours
from effects import Effects, enqueue

SETTLE_SECONDS, IDLE_SECONDS = 12.0, 15.0  # threads of the start end after 10 s
CPU, STATEMENTS, THREADS, LISTENING = "% of a core", "statements/s", "threads", "listening"
BOUNDS = {CPU: 0.2, STATEMENTS: 2.0, THREADS: 8.0, LISTENING: 1.0}
COMMITTERS, SLICE_SECONDS, SLICES = 64, 1.0, 30
P50, P99 = "p50 ms", "p99 ms"
WITHOUT, WITH, INSIDE = "without a hint", "hint after the commit", "NOTIFY inside"
WORSE_MAX = 1.03


# -- an idle worker --------------------------------------------------------------------------------------------


def run(options: Options) -> Report:
    """Nothing to do: with LISTEN, behind a pooler where pgbouncer is installed, and on SQLite."""
    seconds = max(5.0, IDLE_SECONDS * options.scale)
    with logging_server(options) as server:
        contenders = [
            Contender("PostgreSQL", "defaults: LISTEN", lambda: _postgresql(server, seconds)),
            Contender("SQLite", "defaults", lambda: _sqlite(seconds)),
        ]
        if pooler.available():
            setting = "pgbouncer, transaction mode: no LISTEN, polls"
            contenders.append(Contender("behind a pooler", setting, lambda: _pooled(server, seconds)))
        rows = interleave(contenders, options.rounds, CPU, options.say)
    report = Report("idle", f"an idle worker, {seconds:g} s, defaults", list(BOUNDS), rows, decimals=2)
    report.goals = [
        Goal(f"{row.name}: {column}", row.median(column), bound, at_least=False)
        for row in rows
        for column, bound in BOUNDS.items()
        if column in row.samples
    ]
    report.notes = ["Statements without BEGIN and COMMIT, heartbeats and numbers over time included."]
    return report


def _postgresql(server: servers.PostgresServer, seconds: float) -> dict[str, float]:
    with _logged_database(server) as database:
        return _on_server(server, database, database, seconds)


def _pooled(server: servers.PostgresServer, seconds: float) -> dict[str, float]:
    """None listens: each sees what its poll finds."""
    with _logged_database(server) as database, pooler.pooled(database) as url:
        used = _on_server(server, database, url, seconds)
        return {column: used[column] for column in (CPU, STATEMENTS, THREADS)}


@contextmanager
def _logged_database(server: servers.PostgresServer) -> Iterator[str]:
    """Its sessions log their statements; a pooler's too, which begin before the worker does."""
    with server.database() as database:
        with psycopg.connect(database, autocommit=True) as admin:
            admin.execute(f"ALTER DATABASE {admin.info.dbname} SET log_statement = 'all'")
        yield database


def _on_server(server: servers.PostgresServer, database: str, url: str, seconds: float) -> dict[str, float]:
    """Args:
    url: by which the worker reaches the database.
    """
    assert server.log is not None
    with psycopg.connect(database, autocommit=True) as admin:
        ours.install(database).dispose()
        with child("ours_idle", url) as worker:
            worker.go()
            threading.Event().wait(SETTLE_SECONDS)
            usage: dict[str, float] = {}
            count = counted(server.log, lambda: usage.update(_used(worker.pid, seconds)))
            [(listening,)] = admin.execute(
                "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND query LIKE 'LISTEN%'"
            ).fetchall()
        assert count.work > 0, "a worker's heartbeats at least are logged"
        return {**usage, STATEMENTS: (count.work + count.hints) / seconds, LISTENING: float(listening)}


def _sqlite(seconds: float) -> dict[str, float]:
    with servers.sqlite_file() as file:
        ours.install(str(file)).dispose()
        with child("ours_idle", str(file)) as worker:
            worker.go()
            threading.Event().wait(SETTLE_SECONDS)
            return _used(worker.pid, seconds)


def _used(pid: int, seconds: float) -> dict[str, float]:
    before, began = _cpu_seconds(pid), time.monotonic()
    threading.Event().wait(seconds)
    used = (_cpu_seconds(pid) - before) / (time.monotonic() - began)
    return {CPU: 100 * used, THREADS: float(len(list(Path(f"/proc/{pid}/task").iterdir())))}


def _cpu_seconds(pid: int) -> float:
    """Of its threads, none of which ends meanwhile; /proc/PID/stat counts ticks of 10 ms, too coarse for these."""
    threads = Path(f"/proc/{pid}/task").iterdir()
    return sum(int((thread / "schedstat").read_text(encoding="utf-8").split()[0]) for thread in threads) / 1e9


# -- committers ------------------------------------------------------------------------------------------------


def committers(options: Options) -> Report:
    """64 threads that commit a job each, all the time; the kinds take turns of a second, in one database."""
    report = Report("committers", f"commit of a job, {COMMITTERS} threads at once", [P50, P99], [], decimals=2)
    slices = max(2, options.size(SLICES) * options.rounds // 5)
    with options.server.database() as database:
        ours.install(database).dispose()
        engine = create_engine(effects_url(database), pool_size=COMMITTERS)  # none waits for a connection
        effects = Effects(engine=engine, job_types=[ours.Noop()], log_level="WARNING")
        kinds = (WITHOUT, WITH, INSIDE)
        waits: dict[str, list[float]] = {name: [] for name in kinds}
        for _ in range(slices):
            for name in kinds:
                options.say(name)
                effects.notifier.enabled = name == WITH
                waits[name] += _slice(partial(_commit, effects, inside=name == INSIDE))
        effects.dispose()
        engine.dispose()
    for name, samples in waits.items():
        row = Row(name, f"{len(samples):,} commits")
        row.add({P50: statistics.median(samples), P99: statistics.quantiles(samples, n=100)[98]}, P99)
        report.rows.append(row)
    report.baseline = WITHOUT
    worse = report.row(WITH).median(P99) / report.row(WITHOUT).median(P99)
    report.goals = [Goal(f"{P99}: {WITH} / {WITHOUT}", worse, WORSE_MAX, at_least=False)]
    report.notes = [f"{INSIDE}: what the option notify_in_transaction costs, which is off."]
    return report


def _commit(effects: Effects, *, inside: bool) -> None:
    with Session(effects.engine) as session, session.begin():
        enqueue(ours.JOB_TYPE, {}, session=session, effects=effects)
        if inside:
            session.connection().exec_driver_sql("NOTIFY effects, 'default'")


def _slice(commit: Callable[[], None]) -> list[float]:
    until = time.monotonic() + SLICE_SECONDS
    waits: list[float] = []

    def work() -> None:
        while (began := time.monotonic()) < until:
            commit()
            waits.append((time.monotonic() - began) * 1000)

    threads = [threading.Thread(target=work) for _ in range(COMMITTERS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return waits
