"""How long deliveries to 20 partners wait while a dead one has 50,000 waiting: it never answers, or refuses."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial

from sqlalchemy.orm import Session

from benchmarks import beside
from benchmarks.options import Options
from benchmarks.processes import Child, child
from benchmarks.rounds import Report
from benchmarks.systems import deliveries, partners
from benchmarks.webhooks import listening
from effects import Effects
from effects_webhooks import WebhookEvent, add_endpoint, deliver_webhook, deliver_webhooks

BEHIND = 50_000
PARTNERS = 20
BATCH = 500
TO_DEAD = "dead.letter"
UNDISTURBED, MUTE, REFUSES = "undisturbed", "mute", "refuses"


def run(options: Options) -> Report:
    behind = options.size(BEHIND)
    settings = {
        UNDISTURBED: "nothing else in the queue",
        MUTE: f"{behind:,} waiting for a partner that accepts and never answers",
        REFUSES: f"{behind:,} waiting for a partner that refuses connections",
    }
    title = f"commit returned → request received, for {PARTNERS} partners, {{samples}} samples a round"
    return beside.compare("webhook_fairness", title, settings, options, partial(_measure, behind))


def _measure(behind: int, database: str, kind: str, count: int) -> dict[str, float]:
    keys = deliveries.new_keys()
    with ExitStack() as stack:
        receiver = stack.enter_context(child("partners", str(PARTNERS), partners.TELL))
        receiver.go()
        ports = partners.ports(receiver.line())
        effects = stack.enter_context(_installed(database, keys, ports))
        if kind != UNDISTURBED:
            _leave_behind(effects, stack.enter_context(_dead(kind)), behind)
        worker = stack.enter_context(child("lasting_deliveries", keys, database))
        worker.go()
        return beside.waits(partial(_sample, effects, receiver), count)


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
def _dead(kind: str) -> Iterator[int]:
    """The port of a partner that never answers, or that refuses every connection."""
    if kind == MUTE:
        with listening(1, partners.MUTE) as ports:
            yield ports[0]
        return
    with socket.socket() as held:  # bound, so that no one else takes it, and not listening
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


def _sample(effects: Effects, receiver: Child, number: int) -> float:
    """Milliseconds until the partner has the request; CLOCK_MONOTONIC is one clock for all processes of a machine."""
    with Session(effects.engine) as session, session.begin():
        deliver_webhook(WebhookEvent(_type(number), {"n": number}), session=session, effects=effects)
    committed = time.monotonic_ns()
    return (int(receiver.line()) - committed) / 1e6
