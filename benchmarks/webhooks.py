"""Real GitHub events to 100 partners on loopback: one worker process, beside a bare loop over aiohttp."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager

from benchmarks.drains import System, drain_postgresql
from benchmarks.options import Options
from benchmarks.processes import child
from benchmarks.rounds import Contender, Goal, Report, interleave
from benchmarks.systems import deliveries, partners

PARTNERS = 100
EVENTS, EVENTS_MIN = 100, 20
COLUMN = "deliveries/s"
OURS, BARE = "effects", "bare aiohttp loop"
SHARE = 0.35
AT_A_TIME = PARTNERS * 4  # as many as the endpoints' limits let a worker have


def run(options: Options) -> Report:
    count = max(EVENTS_MIN, options.size(EVENTS))

    def ours() -> float:
        with options.server.database() as database, listening(PARTNERS) as ports:
            return drain_postgresql(system(ports, count), database, count * PARTNERS)

    def bare() -> float:
        with listening(PARTNERS) as ports, child("bare_posts", str(AT_A_TIME), str(count), json.dumps(ports)) as loop:
            loop.go()
            return count * PARTNERS / float(loop.line())

    contenders = [
        Contender(OURS, "defaults; signed, recorded, health kept", ours),
        Contender(BARE, f"{AT_A_TIME} at a time; ready requests, no database", bare),
    ]
    rows = interleave(contenders, options.rounds, COLUMN, options.say)
    title = f"{count} GitHub events to {PARTNERS} partners on loopback, one worker process, PostgreSQL"
    report = Report("webhooks", title, [COLUMN], rows, baseline=BARE)
    ratio = report.row(OURS).median(COLUMN) / report.row(BARE).median(COLUMN)
    report.goals = [Goal("effects / bare aiohttp loop", ratio, SHARE)]
    report.notes = ["The partners are one process of their own, on uvloop: both sides pay the same for them."]
    return report


def system(ports: list[int], count: int) -> System:
    """Deliveries as a queue that is filled and drained; `count` is of events, and each goes to every port."""
    keys = deliveries.new_keys()

    def fill(database: str, jobs: int) -> None:
        deliveries.fill(database, keys, ports, count)

    return System("deliveries", (keys, ""), fill, "effects_jobs", "status = 'queued'")


@contextmanager
def listening(count: int, kind: str = partners.QUIET) -> Iterator[list[int]]:
    """The ports of so many partners, in a process of their own."""
    with child("partners", str(count), kind) as process:
        process.go()
        yield partners.ports(process.line())
