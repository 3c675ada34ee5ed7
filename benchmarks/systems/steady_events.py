"""An app that sends each of its partners so many events a second, until it is ended."""

from __future__ import annotations

import itertools
import threading

from benchmarks.processes import await_go
from benchmarks.systems.deliveries import app
from effects_webhooks import WebhookEvent, deliver_webhooks

TICK_SECONDS = 0.05


def type_of(partner: int) -> str:
    """The event type that this partner alone takes."""
    return f"told.{partner}"


def work(keys: str, first: str, partners: str, each_second: str, database: str) -> None:
    effects = app(database, keys)
    await_go()
    turns = itertools.cycle(range(int(first), int(first) + int(partners)))
    count = max(1, round(int(partners) * float(each_second) * TICK_SECONDS))
    while True:
        batch = [WebhookEvent(type_of(partner), {"n": partner}) for partner in itertools.islice(turns, count)]
        deliver_webhooks(batch, effects=effects)
        threading.Event().wait(TICK_SECONDS)
