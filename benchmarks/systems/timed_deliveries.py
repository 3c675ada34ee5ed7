"""`deliveries`, with a stopwatch at each part: CPU of the calling thread, added up; printed at the end."""

from __future__ import annotations

import json
import logging
import time

from benchmarks.processes import WORK_SECONDS, await_go
from benchmarks.systems.deliveries import app
from benchmarks.systems.parts import Places, Stopwatch
from effects.worker import Worker
from effects.worker.attempts.attempt import RunningAttempt
from effects.worker.claiming import batch_loader, dispatcher
from effects.worker.recording import verdicts
from effects_webhooks import jobs
from effects_webhooks.transport.http import WebhookTransports

PARTS: Places = {
    "claim": [(dispatcher.Claimer, "claim")],
    "load": [(batch_loader.BatchLoader, "attempts")],
    "sign": [(jobs.WebhookDelivery, "_headers"), (jobs.WebhookDelivery, "_key")],
    "transport": [(WebhookTransports, "post")],
    "classify": [(jobs, "classify")],
    "decide": [(RunningAttempt, "settle")],
    "settle": [(verdicts, "settle")],
}
REST = "the rest: threads, queues, log"


def work(keys: str, database: str) -> None:
    """Prints JSON: part → CPU seconds."""
    logging.getLogger("alembic").setLevel(logging.WARNING)
    stopwatch = Stopwatch()
    stopwatch.attach(PARTS)
    worker = Worker(app(database, keys))
    await_go()
    before = time.process_time()
    worker.drain(max_seconds=WORK_SECONDS)
    whole = time.process_time() - before
    print(json.dumps({**stopwatch.seconds, REST: whole - stopwatch.seconds.total()}), flush=True)
