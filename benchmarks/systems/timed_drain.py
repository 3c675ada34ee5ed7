"""A worker that drains no-op jobs, or receipts, with stopwatches at the parts of a batch; prints JSON at the end."""

from __future__ import annotations

import json
import logging
import time

from sqlalchemy.engine.default import DefaultDialect

from benchmarks.processes import WORK_SECONDS, await_go
from benchmarks.systems import mail, ours
from benchmarks.systems.parts import Places, Stopwatch
from effects.worker import Worker
from effects.worker.claiming import batch_loader, dispatcher
from effects.worker.recording import settler, verdicts
from effects_email.jobs import send
from effects_email.transport.smtp.transport import SmtpTransport

# Of a batch each: a stopwatch at every job would cost as much as what it measures.
BATCH: Places = {
    "statements: driver and, on SQLite, database": [(DefaultDialect, "do_execute")],
    "claim, without its statements": [(dispatcher.Claimer, "claim")],
    "load": [(batch_loader.BatchLoader, "attempts")],
    "settle, without its statements": [(verdicts, "settle")],
    "report what is settled": [(settler.Settler, "_report")],
}
MESSAGE: Places = {
    "build the message": [(send, "outgoing_message")],
    "SMTP, with the release": [(SmtpTransport, "send")],
}
REST = "the rest: threads, queues, handlers"


def work(kind: str, keys: str, url: str, database: str) -> None:
    """Args:
    kind: noop or mail.
    keys, url: of mail; empty for no-op jobs.
    """
    logging.getLogger("alembic").setLevel(logging.WARNING)
    stopwatch = Stopwatch()
    stopwatch.attach({**BATCH, **MESSAGE} if kind == "mail" else BATCH)
    worker = Worker(mail.app(database, keys, url) if kind == "mail" else ours.app(database))
    await_go()
    before = time.process_time()
    worker.drain(max_seconds=WORK_SECONDS)
    whole = time.process_time() - before
    print(json.dumps({**stopwatch.seconds, REST: whole - stopwatch.seconds.total()}), flush=True)
