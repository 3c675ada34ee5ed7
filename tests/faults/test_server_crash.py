"""The PostgreSQL server crashes again and again: what it acknowledged is done, and no worker has to be restarted."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from effects import Effects, NewJob, Receipt, enqueue_many
from effects.errors import StoreRejected, StoreUnavailable
from effects.operate.tables.audit import audit
from effects.store.db.faults import Fault
from effects.store.migrations import migrate
from effects.worker import context
from effects.worker.machine.runtime import Runtime
from tests.support.file_jobs import FILE, FileJob, file_jobs_app, written
from tests.support.manual_workers import rows
from tests.support.own_server import OwnServer, own_server
from tests.support.processes import Child, Fleet, fleet
from tests.support.waiting import wait_until

CRASHES = 20
JOBS = 10_000
BATCH = 50  # jobs that one transaction enqueues
AHEAD = 500  # enqueued beyond what is done: to the last crash there are some to come
LEASE_SECONDS = 12.0  # longer than a connection may take, with the waits between two tries
PATIENCE = {"EFFECTS_LEASE_SECONDS": str(LEASE_SECONDS), "EFFECTS_HEARTBEAT_SECONDS": "0.5"}


@pytest.fixture(scope="module")
def server() -> Iterator[OwnServer]:
    with own_server() as database_server:
        yield database_server


@pytest.fixture
def app(server: OwnServer) -> Iterator[Effects]:
    jobs_app = file_jobs_app(server.url, lease_seconds=LEASE_SECONDS, heartbeat_seconds=0.5)
    migrate.init(jobs_app.store)
    yield jobs_app
    jobs_app.dispose()


@pytest.fixture
def processes(server: OwnServer, tmp_path: Path) -> Iterator[Fleet]:
    with fleet(server.url, tmp_path) as workers:
        yield workers


@pytest.mark.timeout(300)
def test_twenty_crashes_of_the_server_lose_nothing(
    server: OwnServer, app: Effects, processes: Fleet, tmp_path: Path
) -> None:
    file_jobs = tmp_path / "file_jobs"
    file_jobs.touch()
    workers = [
        processes.worker(app="tests.support.file_jobs_app:app", **PATIENCE, **{FILE: str(file_jobs)}) for _ in range(2)
    ]
    for worker in workers:
        worker.wait_logged("worker.started", seconds=60)
    acknowledged: list[Receipt] = []
    enqueuer = threading.Thread(target=_enqueue_all, args=(app, file_jobs, acknowledged))
    enqueuer.start()
    for crash in range(CRASHES):
        _wait_for_lines(file_jobs, crash * JOBS // (CRASHES + 1))
        server.crash()
    enqueuer.join(60)
    assert len(acknowledged) == JOBS
    wait_until(lambda: _nothing_is_live(app), seconds=60)

    for worker in workers:
        assert worker.exit_code is None, worker.output
    ended = {job["id"]: job["status"] for job in rows(app, "job_history")}
    assert {ended.get(receipt.job_id) for receipt in acknowledged} == {"succeeded"}
    assert len(ended) == JOBS
    _assert_written(app, file_jobs)
    assert audit(app.store, app.ledgers) == []
    for worker in workers:
        _assert_calm(worker)


def _never() -> bool:
    return False


@pytest.mark.parametrize("second", ["it is down", "it is back"])
def test_a_statement_that_meets_two_crashes_in_a_row_is_not_to_blame(
    server: OwnServer, app: Effects, second: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """But for many: it may be what crashes the server."""
    monkeypatch.setattr(context, "QUICK_SECONDS", 60.0)
    crash = {"it is down": server.go_down, "it is back": server.crash}[second]
    crashes: list[Callable[[], object]] = [server.go_down, crash]
    outage = context.Outage(Runtime(), app.store)
    outage.while_waiting(server.come_back)

    def ask() -> str:
        with app.store.begin() as connection:
            if crashes:
                crashes.pop(0)()
            return str(connection.exec_driver_sql("SELECT 'it is done'").scalar())

    assert outage.retry_until_available(ask, give_up=_never, passing=[Fault.LOST]) == "it is done"

    crashes[:] = [server.go_down, *[crash] * context.EXCUSES, server.go_down]
    with pytest.raises(StoreRejected, match="lost its connection again"):
        outage.retry_until_available(ask, give_up=_never, passing=[Fault.LOST])
    server.come_back()


def _enqueue_all(app: Effects, file_jobs: Path, acknowledged: list[Receipt]) -> None:
    """Keyed, so that what was not acknowledged may be asked for again."""
    for first in range(0, JOBS, BATCH):
        _wait_for_lines(file_jobs, first - AHEAD)
        kinds = [("file_job.held" if number % 2 else "file_job", number) for number in range(first, first + BATCH)]
        jobs = [NewJob(job_type=kind, payload=FileJob(number), key=f"file_job:{number}") for kind, number in kinds]
        acknowledged += _enqueue_until_acknowledged(app, jobs)


def _enqueue_until_acknowledged(app: Effects, jobs: list[NewJob]) -> list[Receipt]:
    receipts: list[Receipt] = []

    def enqueued() -> bool:
        with suppress(StoreUnavailable):
            receipts.extend(enqueue_many(jobs, effects=app))
        return bool(receipts)

    wait_until(enqueued, seconds=60)
    return receipts


def _nothing_is_live(app: Effects) -> bool:
    """The first look may meet a connection that the last crash has broken."""
    with suppress(StoreUnavailable):
        return not rows(app, "jobs", "id = (SELECT min(id) FROM effects_jobs)")
    return False


def _wait_for_lines(file_jobs: Path, count: int) -> None:
    wait_until(lambda: file_jobs.read_bytes().count(b"\n") >= count, seconds=60)


def _assert_written(app: Effects, file_jobs: Path) -> None:
    """Each once; of those that may be repeated once more for each attempt that was lost on the way."""
    times = written(file_jobs)
    assert set(times) == set(range(JOBS))
    assert {number for number, count in times.items() if number % 2 and count > 1} == set()
    lost = len(rows(app, "job_attempts", "outcome = 'lost'"))
    assert times.total() <= JOBS + lost


def _assert_calm(worker: Child) -> None:
    """A line now and then about the database, none about ourselves."""
    events = [json.loads(line) for line in worker.output.splitlines()]
    assert [event for event in events if event["level"] == "ERROR"] == []
    away = [event for event in events if event["event"] == "database.away"]
    assert 1 <= len(away) <= CRASHES + 1
    assert len([event for event in events if event["event"] == "database.back"]) <= len(away)
