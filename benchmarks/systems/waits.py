"""effects with a handler that tells when it was entered, beside one that holds its place; runs until it is ended."""

from __future__ import annotations

import os
import threading
import time

from benchmarks.processes import await_go
from benchmarks.systems import ours
from effects import Effects, JobType
from effects.worker import Worker

TOLD, HELD = "bench.told", "bench.held"


class Told(JobType[dict[str, object]]):
    """Tells the time."""

    name = TOLD

    def perform(self, payload: dict[str, object], attempt: object) -> None:
        """One line; CLOCK_MONOTONIC is the same in every process of the machine."""
        os.write(1, b"%d\n" % time.monotonic_ns())


class Held(JobType[dict[str, object]]):
    """Keeps its key full."""

    name = HELD
    time_limit_seconds = 600.0

    def perform(self, payload: dict[str, object], attempt: object) -> None:
        threading.Event().wait()


def app(database: str) -> Effects:
    return ours.app(database, Told(), Held())


def work(database: str) -> None:
    worker = Worker(app(database), grace_seconds=0.1)
    await_go()
    worker.run()
