"""One delivery to each of 1,000 partners over TLS: each needs a connection, and a handshake, of its own."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from benchmarks.drains import System, drain_postgresql
from benchmarks.options import Options
from benchmarks.processes import Child
from benchmarks.rounds import Contender, Report, goal_and_aim, interleave
from benchmarks.systems import deliveries
from benchmarks.systems.steady_events import type_of
from benchmarks.webhooks_waiting import CPU, RATE, secure_partners
from effects_webhooks import WebhookEvent, add_endpoint, deliver_webhooks

PARTNERS, PARTNERS_MIN = 1_000, 100
RATES = (250.0, 600.0)  # goal and aim


def run(options: Options) -> Report:
    count = max(PARTNERS_MIN, options.size(PARTNERS))
    contender = Contender(
        "effects", "defaults; verified TLS 1.3, no connection kept", partial(_measure, options, count)
    )
    rows = interleave([contender], options.rounds, RATE, options.say)
    report = Report("webhook_handshakes", f"one delivery to each of {count:,} partners over TLS", [RATE, CPU], rows)
    rate = report.row("effects").median(RATE)
    report.goals = goal_and_aim(RATE, rate, RATES)
    report.notes = ["The partners are one process: the other half of each handshake has a core of its own at best."]
    return report


def _measure(options: Options, count: int) -> dict[str, float]:
    keys, seconds = deliveries.new_keys(), list[float]()

    def ended(worker: Child) -> None:
        seconds.append(float(worker.line()))

    with options.server.database() as database, secure_partners(count, 0.0) as ports:

        def fill(database: str, jobs: int) -> None:
            _fill(database, keys, ports)

        system = System("deliveries", (keys, ""), fill, "effects_jobs", "status = 'queued'")
        rate = drain_postgresql(system, database, count, ended)
    return {RATE: rate, CPU: seconds[0] / count * 1e6}


def _fill(database: str, keys: str, ports: Sequence[int]) -> None:
    """An event for each partner alone: one for all of them would be spread by a job."""
    effects = deliveries.install(database, keys, [])
    for number, port in enumerate(ports):
        add_endpoint(deliveries.url_of(port, "https"), [type_of(number)], effects=effects)
    events = [WebhookEvent(type_of(number), event.data) for number, event in enumerate(deliveries.events(len(ports)))]
    for begin in range(0, len(events), deliveries.BATCH):
        deliver_webhooks(events[begin : begin + deliveries.BATCH], effects=effects)
    effects.dispose()
