"""Workers beside each other share a report's chunks, and a drain waits for the plan of another."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest
import sqlalchemy as sa

from effects import Effects
from effects.store.limits import rows as limit_rows
from effects.store.workers.registration import WorkerIdentity, register
from effects.worker import Worker
from effects_reports import report, report_status, request_report
from effects_reports.runs.sharing import Shares
from effects_reports.state import state_of
from tests.reports.conftest import Shop
from tests.reports.shop import fill, orders
from tests.support.manual_workers import rows
from tests.support.waiting import wait_until

CHUNKS = 6


class _Gate:
    """A mapping that waits at its first row of each chunk until it is opened."""

    def __init__(self) -> None:
        self.open = threading.Event()

    def __call__(self, batch: Any) -> Any:
        assert self.open.wait(60)
        return batch


@pytest.fixture
def gate() -> Iterator[_Gate]:
    gate = _Gate()
    yield gate
    gate.open.set()


def _declared(gate: _Gate, parallel: int = 4) -> Any:
    declare = report(
        "orders", key=("id",), chunk_rows=10, columns=("id", "customer", "cents"), map_batch=gate, parallel=parallel
    )
    return declare(lambda params: sa.select(orders))


def _running(worker: Worker) -> int:
    return len([attempt for attempt in worker._parts.queues.running if attempt.job.job_type == "report.chunk"])


@pytest.mark.slow
@pytest.mark.parametrize("database_url", ["postgresql"], indirect=True)
def test_two_workers_have_half_of_the_cap_each(shop_factory: Shop, gate: _Gate) -> None:
    apps = [shop_factory(reports=[_declared(gate)]) for _ in range(2)]
    fill(apps[0], 10 * CHUNKS)
    workers = [Worker(app) for app in apps]
    threads = [threading.Thread(target=worker.run) for worker in workers]
    for thread in threads:
        thread.start()
    wait_until(lambda: len(rows(apps[0], "workers")) == 2, seconds=30)
    run_id = request_report("orders", key="shared", effects=apps[0]).run_id
    wait_until(lambda: sorted(map(_running, workers)) in ([1, 2], [2, 2]), seconds=30)
    gate.open.set()
    wait_until(lambda: report_status(run_id, effects=apps[0]).state == "ready", seconds=60)
    for worker, thread in zip(workers, threads, strict=True):
        worker.stop()
        thread.join()
    makers = [job["worker"] for job in rows(apps[0], "job_history", "job_type = 'report.chunk'")]
    assert len(makers) == CHUNKS
    assert len(set(makers)) == 2


@pytest.mark.slow
@pytest.mark.parametrize("database_url", ["postgresql"], indirect=True)
def test_a_drain_waits_for_the_plan_of_another(shop_factory: Shop, gate: _Gate) -> None:
    planning, planner, drained = threading.Event(), threading.Event(), threading.Event()

    def source(params: dict[str, Any]) -> Any:
        if "reports-" in threading.current_thread().name and not planner.is_set():
            planning.set()
            assert planner.wait(60)
        return sa.select(orders)

    gate.open.set()
    declare = report("orders", key=("id",), chunk_rows=10, columns=("id", "customer", "cents"), map_batch=gate)
    apps = [shop_factory(reports=[declare(source)]) for _ in range(2)]
    fill(apps[0], 10 * CHUNKS)
    run_id = request_report("orders", key="planned", effects=apps[0]).run_id
    first = threading.Thread(target=lambda: Worker(apps[0]).drain(60))
    first.start()
    assert planning.wait(30)

    def drain() -> None:
        Worker(apps[1]).drain(60)
        drained.set()

    second = threading.Thread(target=drain)
    second.start()
    wait_until(lambda: len(rows(apps[0], "workers")) == 2, seconds=30)
    assert not drained.wait(0.5)  # it would have ended long ago
    planner.set()
    for thread in (first, second):
        thread.join()
    assert report_status(run_id, effects=apps[0]).state == "ready"


def test_a_share_is_the_cap_divided_by_those_who_serve_the_queue(shop_factory: Shop, gate: _Gate) -> None:
    app = shop_factory(reports=[_declared(gate, parallel=5)])
    shares = Shares(app, state_of(app).registry)
    assert (shares.of("report:orders"), shares.of("report:unknown")) == (1, 1)

    def share(cap: int | None = None) -> int | None:
        with app.store.begin() as connection:
            if cap is not None:
                limit_rows.ensure(app.store, connection, "report:orders", max_in_flight=cap)
            shares.update(connection, ["orders", "unknown"])
        return shares.of("report:orders")

    assert share() == 5
    for number, queues in enumerate(["reports,default", "default", "reports"]):
        _register(app, f"w{number}", queues)
    assert share() == 3
    assert share(cap=9) == 5


def _register(app: Effects, name: str, queues: str) -> None:
    worker = WorkerIdentity(name, "host", 1, "0", queues, heartbeat_seconds=5.0, lease_seconds=60.0)
    register(app.store, worker)
