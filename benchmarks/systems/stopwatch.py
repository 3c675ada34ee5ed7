"""effects with a handler that prints when it was entered; runs until it is ended."""

from __future__ import annotations

import os
import time

from benchmarks.processes import await_go
from benchmarks.systems import ours
from effects import Effects, JobType
from effects.worker import Worker

JOB_TYPE = "bench.stopwatch"


class Stopwatch(JobType[dict[str, object]]):
    """Tells the time."""

    name = JOB_TYPE

    def perform(self, payload: dict[str, object], attempt: object) -> None:
        """One line; CLOCK_MONOTONIC is the same in every process of the machine."""
        os.write(1, b"%d\n" % time.monotonic_ns())


def app(database: str) -> Effects:
    return ours.app(database, Stopwatch())


def work(database: str) -> None:
    worker = Worker(app(database))
    await_go()
    worker.run()
