"""Workers that make reports are killed at random moments, one after the other; the files tell whether it mattered."""

from __future__ import annotations

import random
import signal
import threading
from dataclasses import dataclass, field
from pathlib import Path

from effects import Effects
from effects_reports import list_reports, report_status, request_report, resume_report
from tests.support.manual_workers import rows
from tests.support.processes import Child, Fleet
from tests.support.waiting import wait_until

WORKERS = 2
UNDER_WAY = 2  # runs that there are always
KILL_SECONDS = (0.0, 0.25)  # after a worker has started
DRAIN_SECONDS = 60.0
IMPATIENCE = {"EFFECTS_LEASE_SECONDS": "1", "EFFECTS_HEARTBEAT_SECONDS": "0.2", "EFFECTS_POLL_SECONDS": "0.05"}
REPORTS = ("slow", "quick")
ENDED = ("ready", "failed")


@dataclass
class KillLoop:
    """Requests, kills, takes up what failed (a job that lost five workers is poison), until all runs are ready.

    Args:
        app: of the test's own process.
        seed: of the moments and the victims.
    """

    app: Effects
    fleet: Fleet
    storage: Path
    file: str
    seed: int
    killed: int = 0
    resumed: int = 0
    runs: list[tuple[str, str]] = field(default_factory=list)  # run, report

    def run(self, kills: int) -> None:
        draw = random.Random(self.seed)
        pause = threading.Event()
        crew = [self._start() for _ in range(WORKERS)]
        while self.killed < kills:
            self._keep_busy()
            victim = draw.randrange(WORKERS)
            crew[victim].wait_logged("worker.started")
            pause.wait(draw.uniform(*KILL_SECONDS))
            crew[victim].send(signal.SIGKILL)
            assert crew[victim].wait() == -signal.SIGKILL, crew[victim].output
            self.killed += 1
            crew[victim] = self._start()
        for child in crew:
            child.kill()

    def finish(self) -> None:
        """One undisturbed worker, until every run is ready."""
        worker = self._start()
        worker.wait_logged("worker.started")  # before that SIGTERM would simply end it
        wait_until(lambda: self._all_ready() or worker.exit_code is not None, seconds=DRAIN_SECONDS)
        wait_until(lambda: not rows(self.app, "jobs") or worker.exit_code is not None, seconds=DRAIN_SECONDS)
        worker.send(signal.SIGTERM)
        assert worker.wait() == 0, worker.output

    def _keep_busy(self) -> None:
        self._take_up()
        under_way = [run for run in list_reports(limit=20, effects=self.app) if run.state not in ENDED]
        for _ in range(UNDER_WAY - len(under_way)):
            report = REPORTS[len(self.runs) % len(REPORTS)]
            key = f"{report}:{len(self.runs)}"
            receipt = request_report(report, format=self.file, key=key, effects=self.app)
            self.runs.append((receipt.run_id, report))

    def _take_up(self) -> None:
        for run in list_reports(state="failed", effects=self.app):
            assert run.error_code == "poison", run
            resume_report(run.run_id, effects=self.app)
            self.resumed += 1

    def _all_ready(self) -> bool:
        self._take_up()
        return all(report_status(run_id, effects=self.app).state == "ready" for run_id, _ in self.runs)

    def _start(self) -> Child:
        return self.fleet.worker(app="tests.reports.crash_app:app", EFFECTS_STORAGE_URL=str(self.storage), **IMPATIENCE)
