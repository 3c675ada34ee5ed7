"""`effects prune`: what it counts, and what it leaves."""

from __future__ import annotations

import pytest

from effects import Done, Effects, enqueue
from tests.cli.conftest import Run
from tests.support.manual_workers import ManualWorker, rows, run_sql


def make_old(app: Effects) -> None:
    manual_worker = ManualWorker(app)
    for key in ("a", "b"):
        enqueue("scripted", {}, key=key, effects=app)
        manual_worker.settle((manual_worker.claim_one(), Done()))
    # Of a type that the command knows without --app.
    old = app.store.sql.after("-8 * 86400")
    run_sql(app, f"UPDATE effects_job_history SET finished_at = {old}, job_type = 'effects.bulk'")


def test_a_dry_run_counts_and_a_run_deletes(app: Effects, run: Run) -> None:
    make_old(app)
    counted = run("prune", "--dry-run", "--json").json
    assert (counted["jobs"], counted["effects"], counted["finished"]) == (2, 0, True)
    assert len(rows(app, "job_history")) == 2
    lines = [line.split() for line in run("prune", "--dry-run").out.splitlines()]
    assert lines[:2] == [["what", "would", "be", "deleted"], ["ended", "jobs", "2"]]
    assert run("prune").out.splitlines()[1].split() == ["ended", "jobs", "2"]
    assert rows(app, "job_history") == rows(app, "job_attempts") == []
    assert "clean" in run("audit").out


@pytest.mark.slow
def test_the_ages_come_from_the_environment(app: Effects, process: Run) -> None:
    make_old(app)
    assert process("prune", "--json", EFFECTS_RETENTION_JOBS_DAYS="9").json["jobs"] == 0
    refused = process("prune", EFFECTS_RETENTION_JOBS_DAYS="0")
    assert refused.exit_code == 2
    assert "EFFECTS_RETENTION_JOBS_DAYS is 0" in refused.err
    assert process("prune", "--json", EFFECTS_RETENTION_JOBS_DAYS="7").json["jobs"] == 2
