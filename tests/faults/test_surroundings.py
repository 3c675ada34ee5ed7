"""Whatever its shell, its environment and its app have set up: a worker logs, works, tells where it is, and ends."""

from __future__ import annotations

import re
import signal
from itertools import combinations
from pathlib import Path

import pytest

from effects import Effects, enqueue
from effects.operate.tables.audit import audit
from tests.conftest import DATABASES, AppFactory
from tests.support.manual_workers import rows
from tests.support.processes import fleet
from tests.support.sampling import sample
from tests.support.surroundings import INSIDE, OUTSIDE, work
from tests.support.waiting import wait_until

NAMES = (*OUTSIDE, *INSIDE)
CASES = [
    (names, database)
    for names in (*((name,) for name in NAMES), *combinations(NAMES, 2))
    for database in DATABASES
]  # fmt: skip


def _id(case: str | tuple[str, ...]) -> str:
    return case if isinstance(case, str) else " + ".join(case)


@pytest.fixture
def app(app_factory: AppFactory) -> Effects:
    """As the worker's: its job type is only a name here."""
    app = app_factory(job_types=[])

    @app.job("surroundings.wait")
    def wait(folder_name: str) -> None: ...

    return app


@pytest.mark.parametrize(("names", "database_url"), sample(CASES, 6), indirect=["database_url"], ids=_id)
def test_a_worker_logs_works_and_ends_in_order(
    names: tuple[str, ...], database_url: str, app: Effects, tmp_path: Path
) -> None:
    enqueue("surroundings.wait", {"folder_name": str(tmp_path)}, key="k", effects=app)
    with fleet(database_url, tmp_path) as processes:
        worker = processes.start(work, names, EFFECTS_LOG_FORMAT="text", EFFECTS_TEST_SURROUNDINGS=",".join(names))
        worker.wait_logged("worker.started")
        wait_until((tmp_path / "begun").exists)
        worker.send(signal.SIGUSR1)
        worker.wait_logged("attempt.stack")
        worker.send(signal.SIGHUP)
        if "nohup" in names:
            worker.send(signal.SIGUSR2)
            wait_until(lambda: worker.output.count("attempt.stack") == 2)
            assert "worker.stopping" not in worker.output
            worker.send(signal.SIGTERM)
        worker.wait_logged("worker.stopping")
        worker.send(signal.SIGHUP)  # of the shell, too
        (tmp_path / "go").touch()
        assert worker.wait() == 0, worker.output
        assert "job.succeeded" in worker.output
        assert "worker.stopped" in worker.output
        has_failed = re.search(r"log\.failed .*\bfailed=Broken error=OSError", worker.output) is not None
        assert has_failed is ("broken handler" in names)
    assert (tmp_path / "done").exists()
    assert [job["status"] for job in rows(app, "job_history")] == ["succeeded"]
    assert rows(app, "workers") == []
    assert audit(app.store, app.ledgers) == []
