"""A worker in a thread of the test's own process."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from effects.worker import Worker
from tests.support.waiting import PATIENCE_SECONDS


class Running:
    """`start` it when the test is ready; `stop` demands that it ends in order, with exit code 0."""

    def __init__(self, worker: Worker) -> None:
        self.worker = worker
        self.codes: list[int] = []
        self._thread = threading.Thread(target=lambda: self.codes.append(worker.run()))

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self.worker.stop()
        self._thread.join(PATIENCE_SECONDS)
        assert self.codes == [0], "the worker did not end in order"


@contextmanager
def running(worker: Worker, *, start: bool = True) -> Iterator[Running]:
    """The worker, stopped at the end."""
    run = Running(worker)
    if start:
        run.start()
    try:
        yield run
    finally:
        run.stop()
