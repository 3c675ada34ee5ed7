"""effects delivering real GitHub events to partners; runs until nothing is due, or until it is ended."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Sequence
from itertools import cycle, islice

from benchmarks.processes import WORK_SECONDS, await_go
from benchmarks.servers import effects_url
from effects import Effects
from effects.keys.encryption import generate_key
from effects.worker import Worker
from effects_webhooks import WebhookEvent, add_endpoint, deliver_webhooks
from examples.demo.events import bundled_events

BATCH = 50  # events a transaction


def app(database: str, keys: str) -> Effects:
    """Default settings, but for the log level and the leave to reach this machine."""
    return Effects(effects_url(database), keys=keys, allow_private_addresses=True, log_level="WARNING")


def new_keys() -> str:
    return f"bench={generate_key()}"


def url_of(port: int, scheme: str = "http") -> str:
    return f"{scheme}://127.0.0.1:{port}/webhooks"


def events(count: int) -> Iterator[WebhookEvent]:
    """The bundled ones, in their order, again from the start where they do not suffice."""
    for event in islice(cycle(list(bundled_events())), count):
        yield WebhookEvent(event.type, event.data)


def install(database: str, keys: str, ports: Sequence[int], scheme: str = "http") -> Effects:
    """The tables and an endpoint for each port, in a fresh database."""
    effects = app(database, keys)
    effects.create_tables()
    for port in ports:
        add_endpoint(url_of(port, scheme), effects=effects)
    return effects


def fill(database: str, keys: str, ports: Sequence[int], count: int, scheme: str = "http") -> None:
    """`count` events, each of which every partner wants."""
    effects = install(database, keys, ports, scheme)
    waiting = events(count)
    while batch := list(islice(waiting, BATCH)):
        deliver_webhooks(batch, effects=effects)
    effects.dispose()


def work(keys: str, in_flight: str, database: str) -> None:
    """Drain the queue, and print how many CPU seconds that took. `in_flight`: of the queue; empty for the default."""
    logging.getLogger("alembic").setLevel(logging.WARNING)
    worker = Worker(app(database, keys), queues={"webhooks": int(in_flight)} if in_flight else None)
    await_go()
    begun = time.process_time()
    worker.drain(max_seconds=WORK_SECONDS)
    print(time.process_time() - begun, flush=True)
