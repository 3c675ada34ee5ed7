"""`deliveries`, until it is ended."""

from __future__ import annotations

import logging

from benchmarks.processes import await_go
from benchmarks.systems.deliveries import app
from effects.worker import Worker


def work(keys: str, database: str) -> None:
    """Warnings about the partner that fails are not printed."""
    logging.getLogger("effects").setLevel(logging.CRITICAL)
    worker = Worker(app(database, keys), grace_seconds=0.1)
    await_go()
    worker.run()
