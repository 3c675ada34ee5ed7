"""Two releases beside each other, and a migration in the midst: nothing is lost, and nothing is stuck."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from effects import Effects, NewJob, enqueue_many
from effects.operate.tables.audit import audit
from tests.support.file_jobs import FILE, FileJob, written
from tests.support.manual_workers import rows
from tests.support.processes import Fleet
from tests.support.releases import NEXT, Release
from tests.support.waiting import wait_until

JOBS = 10_000
APP = "tests.support.file_jobs_app:app"
WORKERS = 2
TYPES = ("file_job", "file_job.held")


def _enqueue(app: Effects, first: int, end: int) -> None:
    for start in range(first, end, 500):
        numbers = range(start, start + 500)
        jobs = [NewJob(job_type=TYPES[n % 2], payload=FileJob(n), key=f"job:{n}") for n in numbers]
        enqueue_many(jobs, effects=app)


def test_two_releases_during_ten_thousand_jobs(
    app: Effects, following: Release, processes: Fleet, tmp_path: Path
) -> None:
    file = tmp_path / "written"
    file.touch()
    env = {FILE: str(file), "EFFECTS_LEASE_SECONDS": "30", "EFFECTS_HEARTBEAT_SECONDS": "0.5"}
    _enqueue(app, 0, 500)
    olds = [processes.worker(app=APP, **env) for _ in range(WORKERS)]
    wait_until(lambda: written(file))
    init, count = following.start("--app", APP, "init", **env), 500
    while init.poll() is None and count < 3 * JOBS // 4:  # there is work throughout the migration
        if len(written(file)) > count - 250:
            _enqueue(app, count, count + 500)
            count += 500
    assert (init.wait(), "core_0002, core_0003, core_0004" in following.output_of(init)) == (0, True)
    news = [following.start("--app", APP, "work", **env) for _ in range(WORKERS)]
    olds.append(processes.worker(app=APP, **env))  # started on the new tables
    wait_until(lambda: len(rows(app, "workers")) == 2 * WORKERS + 1)
    _enqueue(app, count, JOBS)
    wait_until(lambda: not rows(app, "jobs"), seconds=120)
    assert written(file) == Counter(range(JOBS))
    history = rows(app, "job_history", "job_type LIKE 'file_job%'")
    assert Counter(row["status"] for row in history) == {"succeeded": JOBS}
    assert audit(app.store, app.ledgers) == []
    workers = {row["id"]: row["version"] for row in rows(app, "workers")}
    done_at_first = [row for row in history if row["worker"]]  # of another, its attempts have the workers
    assert {workers[row["worker"]] == NEXT.version for row in done_at_first} == {True, False}
    assert [row["zone"] for row in rows(app, "workers") if row["version"] == NEXT.version] == ["next"] * WORKERS
    wait_until(lambda: all("schema.newer" in old.output for old in olds))  # with a heartbeat
    assert [child.exit_code for child in olds] == [None] * len(olds)
    assert [process.poll() for process in news] == [None] * WORKERS, [following.output_of(each) for each in news]
