"""A statement that ends its own connection, because of one row: it is to blame, and not the database."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime

import pytest
from sqlalchemy import Connection

from effects import Attempt, Done, Effects, Job, JobType, NewJob, Schedule, enqueue_many
from effects.operate.bulk import BulkStarted, carry_out, preview
from effects.operate.tables.audit import audit
from effects.operate.tables.bulk_selection import BulkAction
from effects.operate.tables.job_list import Filters
from effects.store import schedules
from effects.worker import Worker
from tests.conftest import AppFactory
from tests.support.manual_workers import row, rows, run_sql
from tests.support.running import running
from tests.support.waiting import wait_until

pytestmark = pytest.mark.parametrize("database_url", ["postgresql"], indirect=True)

OTHERS = 20
LATER = datetime(2099, 1, 1, tzinfo=UTC)
KILL = "pg_terminate_backend(pg_backend_pid())"


class Plain(JobType[dict[str, str]]):
    name = "plain"
    payload = dict[str, str]
    on_unknown = "hold"

    def perform(self, payload: dict[str, str], attempt: Attempt) -> Done:
        attempt.release()
        return Done()


class Loading(Plain):
    name = "loading"

    def load(self, connection: Connection, jobs: Sequence[tuple[Job, dict[str, str]]]) -> Mapping[int, object]:
        if any(job.key == "deadly" for job, _ in jobs):
            connection.exec_driver_sql(f"SELECT {KILL}")
        return {job.id: None for job, _ in jobs}


@pytest.fixture
def app(app_factory: AppFactory) -> Effects:
    return app_factory(job_types=[Plain(), Loading()], poll_seconds=0.1)


def kill(app: Effects, when: str, table: str, condition: str) -> None:
    """End the session of a statement that writes such a row."""
    returned = "OLD" if "DELETE" in when else "NEW"
    body = f"$$ BEGIN PERFORM {KILL}; RETURN {returned}; END $$"
    run_sql(app, f"CREATE FUNCTION die() RETURNS trigger LANGUAGE plpgsql AS {body}")
    run_sql(app, f"CREATE TRIGGER die {when} ON {table} FOR EACH ROW WHEN ({condition}) EXECUTE FUNCTION die()")


KILLED = {
    "its claim": ("BEFORE UPDATE", "effects_jobs", "NEW.status = 'running' AND OLD.status <> 'running'"),
    "its release": ("BEFORE UPDATE", "effects_jobs", "NEW.released_at IS NOT NULL AND OLD.released_at IS NULL"),
    "its outcome": ("AFTER INSERT", "effects_job_history", "NEW.status = 'succeeded'"),
    "its load": None,
}
CODES = {"its claim": "row_invalid", "its release": "StoreRejected", "its outcome": None, "its load": "load_failed"}


@pytest.mark.parametrize("killed", KILLED)
def test_a_job_whose_statements_lose_their_connection_keeps_back_no_other(
    app: Effects, killed: str, caplog: pytest.LogCaptureFixture
) -> None:
    statement, code = KILLED[killed], CODES[killed]
    if statement is not None:
        when, table, condition = statement
        kill(app, when, table, f"NEW.idempotency_key = 'deadly' AND {condition}")
    job_type = "plain" if statement is not None else "loading"
    jobs = [NewJob(job_type=job_type, payload={}, key=f"k{number}") for number in range(OTHERS)]
    deadly = NewJob(job_type=job_type, payload={}, key="deadly", max_attempts=1)
    enqueue_many([*jobs[: OTHERS // 2], deadly, *jobs[OTHERS // 2 :]], effects=app)
    with running(Worker(app)):
        wait_until(lambda: len(rows(app, "job_history", "idempotency_key <> 'deadly'")) == OTHERS)
        if code is not None:
            wait_until(lambda: rows(app, "job_history", "idempotency_key = 'deadly'"))
        else:
            wait_until(lambda: "settle.failed" in caplog.messages)
    assert {job["status"] for job in rows(app, "job_history", "idempotency_key <> 'deadly'")} == {"succeeded"}
    assert "database.away" not in caplog.messages
    if code is not None:
        assert row(app, "job_history", "idempotency_key = 'deadly'")["error_code"] == code
        assert audit(app.store, app.ledgers) == []


def test_a_schedule_that_cannot_fire_keeps_back_no_other(app: Effects, caplog: pytest.LogCaptureFixture) -> None:
    kill(app, "BEFORE INSERT", "effects_jobs", "NEW.job_type = 'plain'")
    declared = [Schedule("a", "plain", {}, "* * * * *"), Schedule("b", "loading", {}, "* * * * *")]
    schedules.register(app.store, declared, retire_types=app.job_types.names())
    app.store.shift_clock(60)
    with running(Worker(app)):
        wait_until(lambda: rows(app, "job_history", "job_type = 'loading'"))
    assert "schedule.failed" in caplog.messages
    assert "database.away" not in caplog.messages


def test_a_bulk_action_passes_over_a_job_at_which_it_loses_its_connection(
    app: Effects, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("effects.operate.bulk.INLINE_MAX", 3)
    jobs = [NewJob(job_type="plain", payload={}, key=f"k{number}", run_at=LATER) for number in range(OTHERS)]
    receipts = enqueue_many(jobs, effects=app)
    kill(app, "BEFORE DELETE", "effects_jobs", f"OLD.id = {receipts[7].job_id}")
    started = carry_out(preview(BulkAction("cancel"), Filters(), effects=app), actor="a", reason="r", effects=app)
    assert isinstance(started, BulkStarted)
    with running(Worker(app)):
        wait_until(lambda: row(app, "bulk_actions")["status"] == "done")
    assert [job["id"] for job in rows(app, "jobs")] == [receipts[7].job_id]
    assert "database.away" not in caplog.messages
