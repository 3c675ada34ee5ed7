"""Signals, poison and handlers that hang: how a worker ends, and what it leaves behind."""

from __future__ import annotations

from effects import Effects, enqueue
from tests.peers.desk import Desk
from tests.support.errands import Errand
from tests.support.hands import rows
from tests.support.processes import Fleet
from tests.support.waiting import wait_until
import signal


def test_one(errands: Effects, desk: Desk, processes: Fleet) -> None:
    for n in range(10):
        enqueue("errand", Errand(f"e{n}", desk.port), effects=errands)
    worker = processes.worker()
    wait_until(lambda: len(rows(errands, "job_history")) == 10)
    worker.send(signal.SIGTERM)
    assert worker.wait() == 0
    print(worker.output)
