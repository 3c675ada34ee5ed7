"""`effects work` as a process: drains, queues, signals, exit codes, progress, logs."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from effects import Effects, enqueue
from effects.operate.tables.audit import audit
from tests.cli.conftest import COMMAND, ROOT, Run, environment
from tests.cli.shop_app import job_types
from tests.conftest import AppFactory
from tests.support.manual_workers import row, rows, run_sql
from tests.support.waiting import wait_until

NAMED_QUEUES = ("mails", "reports")

APP = ("--app", "tests.cli.shop_app:app")


@pytest.fixture
def app(app_factory: AppFactory) -> Effects:
    return app_factory(job_types=job_types())


def put(app: Effects, *moves: str, job_type: str = "scripted", key: str | None = None, queue: str | None = None) -> int:
    return enqueue(job_type, {"moves": list(moves)}, key=key, queue=queue, effects=app).job_id


@pytest.mark.slow
def test_a_drain_does_what_is_due_and_ends(app: Effects, process: Run) -> None:
    for number in range(20):
        put(app, "done", key=f"k{number}")
    answer = process(*APP, "work", "--drain", "--max-seconds", 30)
    assert answer.exit_code == 0, answer.err
    assert rows(app, "jobs") == []
    assert {job["status"] for job in rows(app, "job_history")} == {"succeeded"}
    assert rows(app, "workers") == []
    assert audit(app.store, app.ledgers) == []
    assert answer.err.count(" INFO job.succeeded job=") == 20
    assert "moves" not in answer.err


@pytest.mark.slow
def test_a_drain_without_jobs(process: Run) -> None:
    assert process(*APP, "work", "--drain").exit_code == 0


@pytest.mark.slow
def test_a_drain_that_leaves_a_dead_job_reports_it(app: Effects, process: Run) -> None:
    put(app, "refuse")
    assert process(*APP, "work", "--drain").exit_code == 1


@pytest.mark.slow
def test_a_drain_whose_time_runs_out_reports_it(app: Effects, process: Run) -> None:
    """What runs keeps its own time limit, 4 s here; nothing starts after the drain's."""
    put(app, "wait", job_type="brief")
    answer = process(*APP, "work", "--drain", "--max-seconds", 2)
    assert answer.exit_code == 3, answer.err
    assert row(app, "job_attempts")["outcome"] == "timed_out"


@pytest.mark.slow
def test_only_the_named_queues_are_served(app: Effects, process: Run) -> None:
    put(app, queue="mails")
    unserved = put(app, queue="reports")
    answer = process(*APP, "work", "--drain", "--queue", "mails=2", "--queue", "letters", "--threads", 3)
    assert answer.exit_code == 0, answer.err
    assert 'queues="effects=3 mails=2 letters=3 quarantine=1"' in answer.err
    assert row(app, "jobs")["id"] == unserved


@pytest.mark.slow
def test_logs_as_json(app: Effects, process: Run) -> None:
    job_id = put(app)
    answer = process("--log-format", "json", *APP, "work", "--drain")
    events = {event["event"]: event for event in map(json.loads, answer.err.splitlines())}
    assert events["job.succeeded"]["job"] == job_id
    assert events["job.succeeded"]["type"] == "scripted"
    assert {"worker.started", "worker.stopped"} < set(events)


@pytest.mark.slow
def test_a_progress_bar_stands_in_for_the_job_lines(app: Effects, process: Run) -> None:
    for _ in range(3):
        put(app)
    answer = process(*APP, "work", "--drain", "--progress")
    assert answer.exit_code == 0, answer.err
    assert "3 done" in answer.err
    assert "3 of 3 due" in answer.err
    assert "job.succeeded" not in answer.err
    assert "of 3 due" not in process(*APP, "work", "--drain").err


@pytest.fixture
def start(database_url: str, tmp_path: Path) -> Iterator[Callable[..., subprocess.Popen[bytes]]]:
    """`effects work …` that goes on; its output is in `log`."""
    workers: list[subprocess.Popen[bytes]] = []

    def begin(*arguments: str) -> subprocess.Popen[bytes]:
        with (tmp_path / "log").open("wb") as log:
            workers.append(
                subprocess.Popen(
                    [*COMMAND, *APP, "work", *arguments], cwd=ROOT, env=environment(database_url), stderr=log
                )
            )
        return workers[-1]

    yield begin
    for worker in workers:
        worker.kill()
        worker.wait(20)


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_the_worker_in_order(
    app: Effects, start: Callable[..., subprocess.Popen[bytes]], number: signal.Signals
) -> None:
    put(app)
    worker = start()
    wait_until(lambda: rows(app, "job_history"))
    os.kill(worker.pid, number)
    assert worker.wait(30) == 0
    assert rows(app, "workers") == []
    assert audit(app.store, app.ledgers) == []


@pytest.mark.slow
def test_a_second_signal_ends_the_grace(app: Effects, start: Callable[..., subprocess.Popen[bytes]]) -> None:
    """The handler stands at its gate for a minute; the second signal does not wait for it."""
    put(app, "wait")
    worker = start("--grace-seconds", "600")
    wait_until(lambda: rows(app, "jobs", "status = 'running'"))
    os.kill(worker.pid, signal.SIGINT)
    os.kill(worker.pid, signal.SIGTERM)  # another one, because two equal ones may arrive as one
    assert worker.wait(30) == 0
    assert rows(app, "jobs", "status = 'running'") == []


@pytest.mark.slow
def test_work_on_tables_of_another_version_is_refused(app: Effects, process: Run) -> None:
    run_sql(app, "UPDATE effects_schema_version SET version_num = 'core_9999' WHERE version_num LIKE 'core%'")
    answer = process(*APP, "work", "--drain")
    assert answer.exit_code == 2
    assert "the database is newer than this version of effects" in answer.err


@pytest.mark.slow
def test_a_drain_without_the_apps_job_types_lists_what_it_leaves(app: Effects, process: Run) -> None:
    """A forgotten --app."""
    put(app, "done", key="k")
    answer = process("work", "--drain")
    assert answer.exit_code == 3, answer.err
    assert "WARNING worker.unknown_types" in answer.err
    assert "types=scripted" in answer.err
    assert "WARNING drain.left jobs=1" in answer.err
    assert process("work", "--drain", "--queue", "mails").exit_code == 0
    assert "its job type scripted, which is not registered here" in process("why", "k").out
    assert process(*APP, "work", "--drain").exit_code == 0
    assert process("work", "--drain").exit_code == 0
