"""A worker that makes reports until it is ended."""

from __future__ import annotations

import logging
import signal

from benchmarks.processes import await_go
from benchmarks.servers import effects_url
from benchmarks.systems.report_runs import REPORTS
from effects import Effects
from effects.worker import Worker


def work(database: str, folder: str) -> None:
    logging.getLogger("alembic").setLevel(logging.WARNING)
    effects = Effects(effects_url(database), reports=REPORTS, storage_url=folder, log_level="WARNING")
    worker = Worker(effects)
    signal.signal(signal.SIGTERM, lambda *_: worker.stop())
    await_go()
    print("working", flush=True)
    worker.run()
