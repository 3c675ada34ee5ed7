"""How long deliveries to 20 partners wait while a dead one has 50,000 waiting: it never answers, or refuses."""

from __future__ import annotations

import random
import socket
import statistics
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Literal, TypeAlias

from sqlalchemy.orm import Session

from benchmarks.fairness import GAP_SECONDS, MORE_MS, P50, P95, TIMES, Database, file_database
from benchmarks.options import Options
from benchmarks.processes import Child, child
from benchmarks.rounds import Contender, Goal, Report, interleave
from benchmarks.systems import deliveries, partners
from benchmarks.webhooks import listening
from effects import Effects
from effects_webhooks import WebhookEvent, add_endpoint, deliver_webhook, deliver_webhooks

BEHIND = 50_000
SAMPLES, SAMPLES_MIN, WARM_UP = 200, 40, 10
PARTNERS = 20
BATCH = 500
TO_DEAD = "dead.letter"
Kind: TypeAlias = Literal["undisturbed", "mute", "refuses"]
KINDS: tuple[Kind, ...] = ("undisturbed", "mute", "refuses")


def run(options: Options) -> Report:
    samples, behind = max(SAMPLES_MIN, options.size(SAMPLES)), options.size(BEHIND)
    databases: dict[str, Database] = {"PostgreSQL": options.server.database, "SQLite": file_database}
    contenders = [
        Contender(f"{name} {kind}", _setting(kind, behind), partial(_on, database, kind, behind, samples))
        for name, database in databases.items()
        for kind in KINDS
    ]
    rows = interleave(contenders, options.rounds, P95, options.say)
    title = f"commit returned → request received, for {PARTNERS} partners, {samples} samples a round"
    report = Report("webhook_fairness", title, [P95, P50], rows, decimals=2)
    for name in databases:
        alone = report.row(f"{name} undisturbed").median(P95)
        bound = round(max(TIMES * alone, alone + MORE_MS), 2)
        for kind in KINDS[1:]:
            value = report.row(f"{name} {kind}").median(P95)
            report.goals.append(Goal(f"{name} {kind}, p95 ms", value, bound, at_least=False))
    report.notes = [
        f"The bound is the greater of {TIMES:g} times the undisturbed wait and {MORE_MS:g} ms more than it."
    ]
    return report


def _setting(kind: Kind, behind: int) -> str:
    return {
        "undisturbed": "nothing else in the queue",
        "mute": f"{behind:,} waiting for a partner that accepts and never answers",
        "refuses": f"{behind:,} waiting for a partner that refuses connections",
    }[kind]


def _on(database: Database, kind: Kind, behind: int, samples: int) -> dict[str, float]:
    keys = deliveries.new_keys()
    with ExitStack() as stack:
        name = stack.enter_context(database())
        told = stack.enter_context(child("partners", str(PARTNERS), partners.TELL))
        told.go()
        ports = partners.ports(told.line())
        effects = stack.enter_context(_installed(name, keys, ports))
        if kind != "undisturbed":
            _leave_behind(effects, stack.enter_context(_dead(kind)), behind)
        worker = stack.enter_context(child("lasting_deliveries", keys, name))
        worker.go()
        for number in range(WARM_UP):
            _sample(effects, told, number, 0.01)
        gaps = random.Random(samples)
        waits = [_sample(effects, told, number, gaps.uniform(*GAP_SECONDS)) for number in range(samples)]
    return {P50: statistics.median(waits), P95: statistics.quantiles(waits, n=20)[18]}


@contextmanager
def _installed(database: str, keys: str, ports: Sequence[int]) -> Iterator[Effects]:
    """An app with an endpoint for each port, which takes an event type of its own."""
    effects = deliveries.install(database, keys, [])
    for number, port in enumerate(ports):
        add_endpoint(deliveries.url_of(port), [_type(number)], effects=effects)
    try:
        yield effects
    finally:
        effects.dispose()


@contextmanager
def _dead(kind: Kind) -> Iterator[int]:
    """The port of a partner that never answers, or that refuses every connection."""
    if kind == "mute":
        with listening(1, partners.MUTE) as ports:
            yield ports[0]
        return
    with socket.socket() as held:  # bound, so that nobody else takes it, and not listening
        held.bind(("127.0.0.1", 0))
        yield held.getsockname()[1]


def _leave_behind(effects: Effects, port: int, count: int) -> None:
    add_endpoint(deliveries.url_of(port), [TO_DEAD], effects=effects)
    for begin in range(0, count, BATCH):
        deliver_webhooks(
            [WebhookEvent(TO_DEAD, {"n": number}) for number in range(begin, min(begin + BATCH, count))],
            effects=effects,
        )


def _type(number: int) -> str:
    return f"told.{number % PARTNERS}"


def _sample(effects: Effects, told: Child, number: int, gap_seconds: float) -> float:
    """Milliseconds until the partner has the request; CLOCK_MONOTONIC is one clock for all processes of a machine."""
    threading.Event().wait(gap_seconds)
    with Session(effects.engine) as session, session.begin():
        deliver_webhook(WebhookEvent(_type(number), {"n": number}), session=session, effects=effects)
    committed = time.monotonic_ns()
    return (int(told.line()) - committed) / 1e6
