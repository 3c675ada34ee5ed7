"""effects sending receipts to a mail server; runs until nothing is due."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

from benchmarks.processes import WORK_SECONDS, await_go
from benchmarks.servers import effects_url
from effects import Effects
from effects.keys.encryption import generate_key
from effects.worker import Worker
from effects_email.api import send_templated_emails
from effects_email.request import NewEmail

TEMPLATES = Path(__file__).parents[1] / "emails"
TEMPLATE, SENDER = "receipt", "Shop <shop@example.com>"
BATCH = 500  # messages a transaction


def app(database: str, keys: str, url: str) -> Effects:
    """Default settings, but for the log level and the transport."""
    return Effects(
        effects_url(database), keys=keys, log_level="WARNING", smtp_url=url, email_from=SENDER, templates=TEMPLATES
    )


def new_keys() -> str:
    return f"bench={generate_key()}"


def recipient(number: int) -> str:
    return f"user{number}@example.org"


def context(number: int) -> dict[str, object]:
    """What the template asks for; about 5 KB of message come of it."""
    lines = [{"quantity": 1 + n, "title": f"Article {number + n}, in blue", "price": f"{19 + n}.90"} for n in range(6)]
    order = {"number": f"2026-{number:06}", "lines": lines, "total": "132.40"}
    return {"name": f"Ann {number}", "order": order, "link": f"https://shop.example/parcels/{number:08x}"}


def messages(count: int) -> Iterator[NewEmail]:
    for number in range(count):
        yield NewEmail(TEMPLATE, to=recipient(number), context=context(number), event_id=f"order:{number}")


def fill(database: str, keys: str, url: str, count: int) -> None:
    """Rendered and committed."""
    effects = app(database, keys, url)
    effects.create_tables()
    waiting = messages(count)
    while batch := list(islice(waiting, BATCH)):
        send_templated_emails(batch, effects=effects)
    effects.dispose()


def work(keys: str, url: str, in_flight: str, database: str) -> None:
    """Drain the queue, and print how many CPU seconds that took. `in_flight`: of the queue; empty for the default."""
    logging.getLogger("alembic").setLevel(logging.WARNING)
    worker = Worker(app(database, keys, url), queues={"emails": int(in_flight)} if in_flight else None)
    await_go()
    begun = time.process_time()
    worker.drain(max_seconds=WORK_SECONDS)
    print(time.process_time() - begun, flush=True)
