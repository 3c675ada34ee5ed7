"""effects delivering real GitHub events to partners; runs until nothing is due, or until it is ended."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from itertools import cycle, islice

from benchmarks.processes import WORK_SECONDS, await_go
from benchmarks.servers import effects_url
from effects import Effects
from effects.keys import generate_key
from effects.worker import Worker
from effects_webhooks import WebhookEvent, add_endpoint, deliver_webhooks
from examples.demo.events import bundled_events

BATCH = 50  # events a transaction


def app(database: str, keys: str) -> Effects:
    """Default settings, but for the log level and the leave to reach this machine."""
    return Effects(effects_url(database), keys=keys, allow_private_addresses=True, log_level="WARNING")


def new_keys() -> str:
    return f"bench={generate_key()}"


def url_of(port: int) -> str:
    return f"http://127.0.0.1:{port}/webhooks"


def events(count: int) -> Iterator[WebhookEvent]:
    """The bundled ones, in their order, again from the start where they do not suffice."""
    for event in islice(cycle(list(bundled_events())), count):
        yield WebhookEvent(event.type, event.data)


def install(database: str, keys: str, ports: Sequence[int]) -> Effects:
    """The tables and an endpoint for each port, in a fresh database."""
    effects = app(database, keys)
    effects.create_tables()
    for port in ports:
        add_endpoint(url_of(port), effects=effects)
    return effects


def fill(database: str, keys: str, ports: Sequence[int], count: int) -> None:
    """`count` events, each of which every partner wants."""
    effects = install(database, keys, ports)
    waiting = events(count)
    while batch := list(islice(waiting, BATCH)):
        deliver_webhooks(batch, effects=effects)
    effects.dispose()


def work(keys: str, database: str) -> None:
    logging.getLogger("alembic").setLevel(logging.WARNING)
    worker = Worker(app(database, keys))
    await_go()
    worker.drain(max_seconds=WORK_SECONDS)
