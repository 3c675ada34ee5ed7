"""effects with nothing to do; runs until it is ended."""

from __future__ import annotations

from benchmarks.processes import await_go
from benchmarks.systems import ours
from effects.worker import Worker


def work(database: str) -> None:
    worker = Worker(ours.app(database))
    await_go()
    worker.run()
