"""effects sending receipts to a mail server; runs until nothing is due."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

from benchmarks.processes import WORK_SECONDS, await_go
from benchmarks.servers import effects_url
from effects import Effects
from effects.keys import generate_key
from effects.worker import Worker
from effects_email.api import send_templated_emails
from effects_email.request import NewEmail

TEMPLATES = Path(__file__).parents[1] / "emails"
TEMPLATE, SENDER = "receipt", "Shop <shop@example.com>"
BATCH = 500  # messages a transaction


def app(database: str, keys: str, place: str) -> Effects:
    """Default settings, but for the log level.

    Args:
        place: the server's port, and options of the transport's URL.
    """
    return Effects(
        effects_url(database), keys=keys, log_level="WARNING", smtp_url=f"smtp://127.0.0.1:{place}", email_from=SENDER,
        templates=TEMPLATES,
    )  # fmt: skip


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


def fill(database: str, keys: str, place: str, count: int) -> None:
    """Rendered and committed."""
    effects = app(database, keys, place)
    effects.create_tables()
    waiting = messages(count)
    while batch := list(islice(waiting, BATCH)):
        send_templated_emails(batch, effects=effects)
    effects.dispose()


def work(keys: str, place: str, database: str) -> None:
    logging.getLogger("alembic").setLevel(logging.WARNING)
    worker = Worker(app(database, keys, place))
    await_go()
    worker.drain(max_seconds=WORK_SECONDS)
