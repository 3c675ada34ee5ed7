"""Deliveries to 100 partners that answer after 200 ms, over TLS with keep-alive: with defaults, and ten at a time."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import trustme

from benchmarks.drains import System, drain_postgresql
from benchmarks.options import Options
from benchmarks.processes import Child, child
from benchmarks.rounds import Contender, Goal, Report, interleave
from benchmarks.systems import deliveries, partners
from benchmarks.webhooks import PARTNERS

EVENTS, EVENTS_MIN = 300, 4
TEN_EVENTS = 4  # with ten at a time a round would take minutes
ANSWER_SECONDS = 0.2
RATE, CPU = "deliveries/s", "CPU µs a delivery"
DEFAULTS, TEN = "defaults", "ten at a time"
RATE_GOAL, CPU_GOAL = 1_000.0, 300.0


def run(options: Options) -> Report:
    events = max(EVENTS_MIN, options.size(EVENTS))
    contenders = [
        Contender(DEFAULTS, "1,024 in flight, 4 to 16 an endpoint", partial(_measure, options, events, "")),
        Contender(TEN, "EFFECTS_QUEUES=webhooks=10, as once by threads", partial(_measure, options, TEN_EVENTS, "10")),
    ]
    rows = interleave(contenders, options.rounds, RATE, options.say)
    title = f"deliveries to {PARTNERS} partners that answer after {ANSWER_SECONDS * 1000:.0f} ms over TLS, PostgreSQL"
    report = Report("webhooks_waiting", title, [RATE, CPU], rows, baseline=TEN)
    row = report.row(DEFAULTS)
    report.goals = [
        Goal(RATE, row.median(RATE), RATE_GOAL),
        Goal(CPU, row.median(CPU), CPU_GOAL, at_least=False),
    ]
    report.notes = [
        f"1,024 in flight allow {1024 / ANSWER_SECONDS:,.0f} a second; each of as many connections begins with a TLS "
        "handshake.",
        f"With ten at a time only {TEN_EVENTS * PARTNERS} are sent, so that their CPU is mostly the worker's start.",
    ]
    return report


def _measure(options: Options, events: int, in_flight: str) -> dict[str, float]:
    keys, seconds = deliveries.new_keys(), list[float]()

    def ended(worker: Child) -> None:
        seconds.append(float(worker.line()))

    with options.server.database() as database, secure_partners(PARTNERS, ANSWER_SECONDS) as ports:

        def fill(database: str, jobs: int) -> None:
            deliveries.fill(database, keys, ports, events, "https")

        system = System("deliveries", (keys, in_flight), fill, "effects_jobs", "status = 'queued'")
        rate = drain_postgresql(system, database, events * PARTNERS, ended)
    return {RATE: rate, CPU: seconds[0] / (events * PARTNERS) * 1e6}


@contextmanager
def secure_partners(count: int, answer_seconds: float) -> Iterator[list[int]]:
    """The ports of so many; processes that are started meanwhile trust them."""
    authority = trustme.CA()
    with tempfile.TemporaryDirectory() as folder:
        trusted, own = Path(folder, "trusted.pem"), Path(folder, "own.pem")
        authority.cert_pem.write_to_path(trusted)
        authority.issue_cert("127.0.0.1").private_key_and_cert_chain_pem.write_to_path(own)
        os.environ["SSL_CERT_FILE"] = str(trusted)
        try:
            with child("partners", str(count), partners.QUIET, str(answer_seconds), str(own)) as process:
                process.go()
                yield partners.ports(process.line())
        finally:
            del os.environ["SSL_CERT_FILE"]
