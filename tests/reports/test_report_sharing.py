"""Workers beside each other share a report's chunks, and a drain waits for the plan of another."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest
import sqlalchemy as sa

from effects import ConfigurationError, Effects
from effects.store.limits import key_limits as limit_rows
from effects.store.workers import WorkerIdentity, register
from effects.worker import Worker
from effects_reports import report, report_status, request_report
from effects_reports.jobs.step import Shares
from effects_reports.settings import ReportSettings
from effects_reports.state import ChunkRoom, state_of
from tests.reports.conftest import ReportWorker, Shop
from tests.reports.shop import fill, orders
from tests.support.manual_workers import rows
from tests.support.waiting import wait_until

CHUNKS = 6


class _Gate:
    """A mapping that waits at its first row of each chunk until it is opened.

    Attributes:
        inside, most: how many chunks are in it, and were at most.
    """

    def __init__(self) -> None:
        self.open = threading.Event()
        self.inside = self.most = 0
        self._counting = threading.Lock()

    def __call__(self, batch: Any) -> Any:
        with self._counting:
            self.inside += 1
            self.most = max(self.most, self.inside)
        assert self.open.wait(60)
        with self._counting:
            self.inside -= 1
        return batch


@pytest.fixture
def gate() -> Iterator[_Gate]:
    gate = _Gate()
    yield gate
    gate.open.set()


def _declared(gate: _Gate, parallel: int = 4, name: str = "orders") -> Any:
    declare = report(
        name, key=("id",), chunk_rows=10, columns=("id", "customer", "cents"), map_batch=gate, parallel=parallel
    )
    return declare(lambda params: sa.select(orders))


def _with_cores(app: Effects, cores: int, mebibytes: int = 1024) -> Effects:
    """The app on a machine with so many cores, whatever this one has."""
    state_of(app).room = ChunkRoom(mebibytes * 1024 * 1024, cores)
    return app


def _running(worker: Worker) -> int:
    return len([attempt for attempt in worker._parts.queues.running if attempt.job.job_type == "report.chunk"])


@pytest.mark.slow
@pytest.mark.parametrize("database_url", ["postgresql"], indirect=True)
def test_two_workers_have_half_of_the_cap_each(shop_factory: Shop, gate: _Gate) -> None:
    apps = [_with_cores(shop_factory(reports=[_declared(gate)]), 4) for _ in range(2)]
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
                limit_rows.ensure_limit(app.store, connection, "report:orders", max_in_flight=cap)
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


# -- what one process makes at a time ------------------------------------------------------------------------------

MIB = 1024 * 1024


def test_room_is_for_as_many_chunks_of_python_as_there_are_cores_and_for_what_fits_into_memory() -> None:
    room = ChunkRoom(200 * MIB, cores=2)
    with ExitStack() as held:
        for _ in range(2):
            assert held.enter_context(room.hold("mapped", by_python=True, seconds=0))
        assert (room.most("mapped", by_python=False), room.most("other", by_python=True)) == (2, 0)
        with room.hold("other", by_python=True, seconds=0) as has_room:
            assert not has_room
        copied = room.most("copied", by_python=False)  # beside those of Python
        assert copied == (200 - 2 * 48) // 12
        for _ in range(copied):
            assert held.enter_context(room.hold("copied", by_python=False, seconds=0))
        assert room.most("copied", by_python=False) == copied
        with room.hold("copied", by_python=False, seconds=0) as has_room:
            assert not has_room
    assert room.most("other", by_python=True) == 2


@pytest.mark.parametrize("wrong", ["15", "1048577", "many", "200MiB"])
def test_the_memory_of_reports_is_a_checked_setting(wrong: str) -> None:
    assert ReportSettings.from_environment({}).report_memory == 200
    assert ReportSettings.from_environment({"EFFECTS_REPORT_MEMORY": "64"}).report_memory == 64
    with pytest.raises(ConfigurationError, match="EFFECTS_REPORT_MEMORY"):
        ReportSettings.from_environment({"EFFECTS_REPORT_MEMORY": wrong})


def test_one_chunk_is_made_whatever_the_memory_is() -> None:
    room = ChunkRoom(16 * MIB, cores=8)
    with room.hold("mapped", by_python=True, seconds=0) as has_room:
        assert has_room
        assert room.most("mapped", by_python=True) == 1
        with room.hold("copied", by_python=False, seconds=0) as second:
            assert not second


def test_a_chunk_that_waits_for_a_core_costs_no_attempt_and_keeps_no_copy_waiting(
    shop_factory: Shop, gate: _Gate, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("effects_reports.jobs.chunk._ROOM_SECONDS", 0.0)
    gate.open.set()
    copied = report("copied", key=("id",), chunk_rows=10)(lambda params: sa.select(orders))
    app = _with_cores(shop_factory(reports=[_declared(gate), copied]), 1)
    fill(app, 20)
    run_ids = [request_report(name, effects=app).run_id for name in ("orders", "copied")]
    worker = ReportWorker(app)
    for plan in worker.claim():
        worker.do(plan)
    with state_of(app).room.hold("another", by_python=True, seconds=0):
        outcomes = Counter(worker.do(job).outcome for job in worker.claim())
        by_copy = app.store.is_postgresql
        assert outcomes == ({"snoozed": 2, "succeeded": 2} if by_copy else {"snoozed": 4})
        assert gate.most == 0
        assert report_status(run_ids[1], effects=app).state == ("assembling" if by_copy else "running")
        assert app.job_types.get("report.chunk").max_in_flight("report:orders") == 0
    assert {job["attempts"] for job in rows(app, "jobs")} == {0}
    app.store.shift_clock(10)
    assert Worker(app).drain(60).finished
    assert [report_status(run_id, effects=app).state for run_id in run_ids] == ["ready", "ready"]


def test_chunks_of_several_reports_take_turns_on_one_core(shop_factory: Shop, gate: _Gate) -> None:
    names = ["first", "second", "third"]
    app = _with_cores(shop_factory(reports=[_declared(gate, name=name) for name in names]), 1)
    fill(app, 20)
    run_ids = [request_report(name, effects=app).run_id for name in names]
    drained = threading.Thread(target=lambda: Worker(app).drain(60))
    drained.start()
    wait_until(lambda: gate.inside == 1, seconds=30)
    gate.open.set()
    drained.join()
    assert [report_status(run_id, effects=app).state for run_id in run_ids] == ["ready"] * 3
    assert gate.most == 1
    assert {job["attempts"] for job in rows(app, "job_history", "job_type = 'report.chunk'")} == {1}
