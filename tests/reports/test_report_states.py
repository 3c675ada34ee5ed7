"""The states of a run, step by step: what happens twice, too late, out of turn or not at all changes nothing else."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable
from typing import Any

import pytest

from effects import JobStateError, Refused
from effects.kit.files.local import LocalStorage
from effects.operate.tables.audit import audit
from effects.store.effects.requeue import requeue
from effects_reports import (
    ReportNotFound,
    ReportStateError,
    cancel_report,
    report_status,
    resume_report,
)
from tests.reports.conftest import COUNT, Files, ReportWorker, content, drain
from tests.reports.shop import orders
from tests.reports.steps import assembling, planned, requested, state, undisturbed
from tests.support.commands import command
from tests.support.manual_workers import row, rows, run_sql

# -- exactly once ------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_the_states_in_their_order(manual_worker: ReportWorker) -> None:
    app, run_id = manual_worker.app, requested(manual_worker.app)
    seen = [state(app, run_id)]
    while seen[-1] != "ready":
        manual_worker.do_next()
        seen.append(state(app, run_id))
    assert seen == ["requested", "running", "running", "running", "assembling", "ready"]
    assert row(app, "generated_reports")["state"] == "done"
    manual_worker.do_next()  # the clearing away of its parts
    assert manual_worker.claim() == []
    assert audit(app.store, app.ledgers) == []


@pytest.mark.slow
def test_every_chunk_and_the_assembler_executed_twice_give_the_same_file(
    manual_worker: ReportWorker, files: Files
) -> None:
    app = manual_worker.app
    clean = undisturbed(app)
    run_id, jobs = planned(manual_worker)
    for job in jobs:
        first, second = manual_worker.perform(job), manual_worker.perform(job)
        manual_worker.write(first)
        manual_worker.write(second)  # taken for the same answer, repeated: nothing of it is written
    job = manual_worker.claim_one()
    first, second = manual_worker.perform(job), manual_worker.perform(job)
    manual_worker.write(second)
    manual_worker.write(first)
    status = report_status(run_id, effects=app)
    assert (status.state, status.sha256, status.rows) == ("ready", clean, COUNT)
    assert hashlib.sha256(content(app, run_id)).hexdigest() == clean
    assert len(rows(app, "report_chunks", "run_id = :id", id=run_id)) == 3
    drain(app)
    assert [name for name in files() if run_id in name] == [status.artifact]
    assert audit(app.store, app.ledgers) == []


@pytest.mark.slow
def test_both_attempts_of_a_rescued_chunk_finish_and_one_counts(manual_worker: ReportWorker) -> None:
    app = manual_worker.app
    clean = undisturbed(app)
    run_id, jobs = planned(manual_worker)
    late = manual_worker.perform(jobs[0])  # its worker is then thought dead
    run_sql(app, f"UPDATE {app.store.sql.workers} SET seen_at = {app.store.sql.after('-3600')}")
    manual_worker.rescue()
    second = ReportWorker(app, "other")
    for again in second.claim(queue="quarantine"):
        second.do(again)
    assert manual_worker.write(late).accepted == []
    second.do_next()
    assert (state(app, run_id), report_status(run_id, effects=app).sha256) == ("ready", clean)


def test_a_late_attempt_deletes_its_own_part(manual_worker: ReportWorker, files: Files) -> None:
    app = manual_worker.app
    run_id, jobs = planned(manual_worker)
    run_sql(app, "UPDATE effects_report_chunks SET job_id = job_id + 1000")
    settlement = manual_worker.perform(jobs[0])
    assert settlement.outcome == "cancelled"
    assert files() == []
    assert state(app, run_id) == "running"


@pytest.mark.slow
def test_an_attempt_overtaken_at_the_end_deletes_its_part(
    manual_worker: ReportWorker, files: Files, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = manual_worker.app
    _, jobs = planned(manual_worker)
    begin = LocalStorage.writer

    def writer(self: LocalStorage, name: str, **options: Any) -> Any:
        run_sql(app, "UPDATE effects_report_chunks SET token = token + 1")  # another attempt has begun meanwhile
        return begin(self, name, **options)

    monkeypatch.setattr(LocalStorage, "writer", writer)
    assert manual_worker.perform(jobs[0]).outcome == "cancelled"
    assert files() == []


@pytest.mark.slow
def test_a_plan_made_twice_is_one_plan(manual_worker: ReportWorker) -> None:
    app, run_id = manual_worker.app, requested(manual_worker.app)
    job = manual_worker.claim_one()
    first, second = manual_worker.perform(job), manual_worker.perform(job)
    manual_worker.write(first)
    manual_worker.write(second)
    assert report_status(run_id, effects=app).progress.chunks_total == 3
    assert len(manual_worker.claim()) == 3


# -- cancel and resume -------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("steps", range(6))
def test_a_run_is_cancelled_in_every_state_and_resumed(steps: int, manual_worker: ReportWorker, files: Files) -> None:
    """After the request, the plan, each of the three chunks: no job of it does anything more, until it is resumed."""
    app = manual_worker.app
    clean = undisturbed(app)
    run_id = requested(app)
    for _ in range(steps):
        manual_worker.do_next()
    if steps == 5:
        with pytest.raises(ReportStateError, match="is ready: only a run that is under way can be cancelled"):
            cancel_report(run_id, effects=app)
        return
    assert cancel_report(run_id, effects=app) == "cancelled"
    parts = [name for name in files() if run_id in name]
    drain(app)
    assert [name for name in files() if run_id in name] == parts
    status = report_status(run_id, effects=app)
    assert status.state == "cancelled"
    with pytest.raises(ReportStateError, match="is cancelled"):
        cancel_report(run_id, effects=app)
    assert resume_report(run_id, effects=app) == ("requested" if steps == 0 else "running")
    assert report_status(run_id, effects=app).progress.fraction >= status.progress.fraction
    drain(app)
    assert (state(app, run_id), report_status(run_id, effects=app).sha256) == ("ready", clean)
    assert row(app, "generated_reports", "run_id = :id", id=run_id)["state"] == "done"
    assert audit(app.store, app.ledgers) == []


@pytest.mark.slow
def test_cancelled_while_a_chunk_is_under_way(
    manual_worker: ReportWorker, files: Files, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The attempt notices at its next look, and deletes what it has written."""
    app = manual_worker.app
    run_id, jobs = planned(manual_worker)
    answers = []
    monkeypatch.setattr("effects_reports.jobs.chunk.FLUSH_SECONDS", 0.0)
    _when_written(monkeypatch, lambda: answers.append(cancel_report(run_id, effects=app)))
    settlement = manual_worker.do(jobs[0])
    assert answers == ["cancelling"]
    assert (settlement.outcome, state(app, run_id), files()) == ("cancelled", "cancelled", [])
    for job in jobs[1:]:
        assert manual_worker.do(job).outcome == "cancelled"
    assert row(app, "generated_reports")["state"] == "abandoned"


def _when_written(monkeypatch: pytest.MonkeyPatch, act: Callable[[], object]) -> None:
    """Do something once, when the first part is begun."""
    begin = LocalStorage.writer
    done: list[object] = []

    def writer(self: LocalStorage, name: str, **options: Any) -> Any:
        if not done:
            done.append(act())
        return begin(self, name, **options)

    monkeypatch.setattr(LocalStorage, "writer", writer)


@pytest.mark.slow
def test_cancelled_while_it_is_assembled(manual_worker: ReportWorker, monkeypatch: pytest.MonkeyPatch) -> None:
    app = manual_worker.app
    run_id, job = assembling(manual_worker)
    answers = []
    monkeypatch.setattr("effects_reports.jobs.assemble.LOOK_SECONDS", 0.0)
    _when_written(monkeypatch, lambda: answers.append(cancel_report(run_id, effects=app)))
    assert manual_worker.do(job).outcome == "cancelled"
    assert (answers, state(app, run_id)) == (["cancelled"], "cancelled")
    assert resume_report(run_id, effects=app) == "running"
    drain(app)
    assert state(app, run_id) == "ready"


def test_a_plan_that_was_cancelled_meanwhile_makes_no_chunk(manual_worker: ReportWorker) -> None:
    app, run_id = manual_worker.app, requested(manual_worker.app)
    settlement = manual_worker.perform(manual_worker.claim_one())
    cancel_report(run_id, effects=app)
    manual_worker.write(settlement)
    assert (state(app, run_id), rows(app, "report_chunks"), manual_worker.claim()) == ("cancelled", [], [])


@pytest.mark.slow
def test_a_dead_job_of_a_run_names_the_command_that_resumes_it(manual_worker: ReportWorker) -> None:
    app, run_id = manual_worker.app, requested(manual_worker.app)
    job = manual_worker.claim_one()
    manual_worker.write(manual_worker.decide(job, Refused("no", code="broken")))
    with pytest.raises(JobStateError, match=f"one of many that make its effect: `effects retry {run_id}`"):
        requeue(app.store, app.job_types, job.id, confirm_unknown=True, confirm_done=True, actor="ann")
    advised = re.findall(r"`effects ([^`]+)`", command(app, "jobs", "show", job.id).out)
    assert f"retry {run_id}" in advised  # beside it, that it may be ignored
    assert command(app, "retry", run_id).exit_code == 0
    drain(app)
    assert state(app, run_id) == "ready"


def test_only_failed_or_cancelled_runs_are_resumed(manual_worker: ReportWorker) -> None:
    run_id = requested(manual_worker.app)
    with pytest.raises(ReportStateError, match="is requested: only a run that failed or was cancelled"):
        resume_report(run_id, effects=manual_worker.app)
    with pytest.raises(ReportNotFound, match="there is no run"):
        resume_report("rep_x", effects=manual_worker.app)


def test_cancel_and_resume_in_the_callers_transaction(manual_worker: ReportWorker) -> None:
    app, run_id = manual_worker.app, requested(manual_worker.app)
    with app.engine.connect() as connection:
        cancel_report(run_id, session=connection, effects=app)
        connection.rollback()
    assert state(app, run_id) == "requested"


# -- fairness ----------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_four_chunks_of_a_report_run_at_once_in_a_queue_of_their_own(manual_worker: ReportWorker) -> None:
    app = manual_worker.app
    fill_more = [{"id": 3 * n, "customer": "c", "cents": 1} for n in range(COUNT + 1, 1000)]
    with app.engine.begin() as connection:
        connection.execute(orders.insert(), fill_more)
    runs = [requested(app), requested(app)]
    for job in manual_worker.claim():
        manual_worker.do(job)
    assert [state(app, run_id) for run_id in runs] == ["running", "running"]
    assert len(manual_worker.claim()) == 4
    assert manual_worker.claim() == []
    assert {job["queue"] for job in rows(app, "jobs")} == {"reports"}
    assert row(app, "limits")["max_in_flight"] == 4
