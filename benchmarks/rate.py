"""A rate of 50 a second, kept by 4 worker processes together and counted by the receiver."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from benchmarks import servers
from benchmarks.options import Options
from benchmarks.processes import child
from benchmarks.rounds import Contender, Goal, Report, interleave
from benchmarks.systems import ours, sender
from effects import NewJob, enqueue_many
from effects.model.limits import Rate
from effects.store.limits import key_limits as limit_rows

PROCESSES = 4
RATE = Rate(50, 1.0)
SECONDS, SECONDS_MIN = 20, 5
KEY = "receiver"
SHARE, PEAK = "of the rate", "most in 1 s"
WITHIN = 0.05


def run(options: Options) -> Report:
    seconds = max(SECONDS_MIN, options.size(SECONDS))

    def on_postgresql() -> dict[str, float]:
        with options.server.database() as database:
            return _measure(database, seconds)

    def on_sqlite() -> dict[str, float]:
        with servers.sqlite_file() as file:
            return _measure(str(file), seconds)

    setting = f"{PROCESSES} processes, default threads, default burst ({RATE.size})"
    contenders = [Contender("PostgreSQL", setting, on_postgresql), Contender("SQLite", setting, on_sqlite)]
    rows = interleave(contenders, options.rounds, SHARE, options.say)
    title = f"requests that arrive in {seconds} s, at {RATE.tokens} per {RATE.period_seconds:g} s"
    report = Report("rate", title, [SHARE, PEAK], rows, decimals=3)
    for row in rows:
        worst = max(row.samples[SHARE], key=lambda share: abs(share - 1))
        report.goals.append(Goal(f"{row.name}, the worst round", worst, 1 - WITHIN))
        report.goals.append(Goal(f"{row.name}, the worst round", worst, 1 + WITHIN, at_least=False))
    report.notes = [f"The clock starts with the first request, so the first {RATE.size} (the bucket) are in it."]
    return report


def _measure(database: str, seconds: int) -> dict[str, float]:
    with receiver() as (port, arrivals):
        _fill(database, port, int(RATE.per_second * (seconds + 10)))
        with ExitStack() as stack:
            workers = [stack.enter_context(child("sender", database)) for _ in range(PROCESSES)]
            for worker in workers:
                worker.go()
            _watch(arrivals, seconds)
    times = [at - arrivals[0] for at in list(arrivals)]
    count = sum(at < seconds for at in times)
    peak = max(sum(start <= at < start + 1 for at in times) for start in times)
    return {SHARE: count / (RATE.per_second * seconds), PEAK: float(peak)}


def _fill(database: str, port: int, count: int) -> None:
    effects = ours.install(database)
    with effects.store.begin() as connection:
        limit_rows.ensure_limit(effects.store, connection, KEY, rate=RATE)
    effects.dispose()
    effects = sender.app(database)
    jobs = [NewJob(job_type=sender.JOB_TYPE, payload={"port": port}, limit_key=KEY) for _ in range(count)]
    enqueue_many(jobs, effects=effects)
    effects.dispose()


def _watch(arrivals: list[float], seconds: int) -> None:
    """Until `seconds` after the first request."""
    until = time.monotonic() + 60
    while not arrivals:
        if time.monotonic() > until:
            raise RuntimeError("no request came within a minute")
        threading.Event().wait(0.01)
    threading.Event().wait(max(0.0, arrivals[0] + seconds + 0.2 - time.monotonic()))


@contextmanager
def receiver() -> Iterator[tuple[int, list[float]]]:
    """A server that answers everything and writes down when it came."""
    arrivals: list[float] = []

    class Note(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            arrivals.append(time.monotonic())
            self.send_response(204)
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - its name upstream
            """Nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Note)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield server.server_port, arrivals
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
