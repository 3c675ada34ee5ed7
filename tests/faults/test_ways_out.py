"""Every way out of a worker, with no thread to be had, no descriptor, a standard error that nobody reads; and an
interpreter that stands still.
"""

from __future__ import annotations

import itertools
import signal
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from effects import Effects
from effects.operate.tables.actions import request_drain
from effects.store.migrations import migrate
from tests.support.processes import Child, Fleet, fleet
from tests.support.sampling import sample
from tests.support.waiting import PATIENCE_SECONDS, wait_until

APP = "tests.support.lacking_app:app"
LACKS = ("threads", "descriptors", "standard error")
ENDS = {  # with what code; a worker that waits for what it lacks is ended by force, 70 or 143
    "SIGTERM": (0, 70), "SIGINT": (0, 70), "SIGTERM SIGINT": (0, 143), "drain": (0, 70), "part": (70,),
    "hang": (70, 75),
}  # fmt: skip
# Where descriptors lack, the handlers of the test's app cannot say that they have begun: they fail, and none hangs.
CASES = [case for case in itertools.product(ENDS, LACKS) if case != ("hang", "descriptors")]
SAMPLE_SIZE = 3
END_SECONDS = 45.0  # the longest: grace, and half a minute to write what was answered


class LackingWorker:
    """A worker in a process of its own, on a database of its own, that lacks something by the time it is ended."""

    def __init__(self, folder: Path, processes: Fleet, lack: str, job_type: str, then: str, jobs: int = 1) -> None:
        folder.mkdir()
        url, done = f"sqlite:///{folder / 'effects.db'}", folder / "done"
        self.app = Effects(url)
        migrate.init(self.app.store)
        with self.app.store.begin() as connection:
            for _ in range(jobs):
                connection.exec_driver_sql(
                    f"""INSERT INTO effects_jobs (job_type, payload) VALUES ('{job_type}', '{{"then": "{then}"}}')"""
                )
        self.process: Child = processes.worker(
            app=APP, LACK=lack, LACK_DONE=str(done), EFFECTS_DATABASE_URL=url, EFFECTS_GRACE_SECONDS="0.5"
        )
        self.done = done

    def end(self, way: str) -> None:
        wait_until(lambda: self.done.exists() or self.process.exit_code is not None)
        if way == "drain":
            request_drain(self.app.store, None, actor="ann", reason="new version")
        elif way.startswith("SIG"):
            for name in way.split():  # two of one kind may come as one
                self.process.send(signal.Signals[name])

    def close(self) -> None:
        self.app.dispose()


@pytest.fixture
def processes(tmp_path: Path) -> Iterator[Fleet]:
    with fleet("", tmp_path) as workers:
        yield workers


@pytest.mark.timeout(3 * PATIENCE_SECONDS)
def test_no_way_out_needs_what_may_be_used_up(processes: Fleet, tmp_path: Path) -> None:
    """All at once, because some take half a minute, and none takes a processor."""
    cases = sample(CASES, SAMPLE_SIZE)
    workers = {
        case: LackingWorker(tmp_path / f"{number}", processes, case[1], "lack", case[0], 4 if case[0] == "hang" else 1)
        for number, case in enumerate(cases)
    }
    for (way, _), worker in workers.items():
        worker.end(way)
    codes = {case: worker.process.wait(END_SECONDS + PATIENCE_SECONDS) for case, worker in workers.items()}
    assert {case: code for case, code in codes.items() if code not in ENDS[case[0]]} == {}
    for worker in workers.values():
        worker.close()


@pytest.mark.timeout(3 * PATIENCE_SECONDS)
def test_a_worker_whose_interpreter_stands_still_ends_and_says_where(processes: Fleet, tmp_path: Path) -> None:
    """In a thread, on the event loop, and where nobody reads what it says."""
    cases = [("lack", ""), ("lack.async", ""), ("lack", "standard error")]
    workers = [
        LackingWorker(tmp_path / f"{number}", processes, lack, job_type, "still")
        for number, (job_type, lack) in enumerate(cases)
    ]
    for worker, (_, lack) in zip(workers, cases, strict=True):
        assert worker.process.wait(END_SECONDS + PATIENCE_SECONDS) == 1
        if not lack:
            assert "Timeout" in worker.process.output
            assert "in stand_still" in worker.process.output
        worker.close()


def test_systemd_hears_that_the_interpreter_goes_on(processes: Fleet, tmp_path: Path) -> None:
    address = str(tmp_path / "notify")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as systemd:
        systemd.bind(address)
        systemd.settimeout(PATIENCE_SECONDS)
        app = Effects(f"sqlite:///{tmp_path / 'effects.db'}")
        migrate.init(app.store)
        worker = processes.worker(
            app=APP, EFFECTS_DATABASE_URL=str(app.store.engine.url), NOTIFY_SOCKET=address, WATCHDOG_USEC="60000000"
        )
        assert [systemd.recv(100) for _ in range(2)] == [b"WATCHDOG=1"] * 2
        worker.send(signal.SIGTERM)
        assert worker.wait() == 0
        app.dispose()
