"""A release at which the database or a package fails keeps back its own attempt alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from sqlalchemy.exc import DBAPIError

from effects import Attempt, Done, Effects, JobType, NewJob, Outcome, enqueue_many
from effects.model.settlement import Execution
from effects.store.queue.table_ledger import TableLedger
from effects.worker.recording.release_batcher import mark_released
from tests.conftest import AppFactory
from tests.support.manual_workers import ManualWorker, rows, run_sql
from tests.support.worker_parts import context_of

KEYS = ("first", "second", "bad", "fourth", "fifth")


class DataLedger(TableLedger):
    """Keeps something of each release."""

    def __init__(self, data: Callable[[str | None], str | None]) -> None:
        super().__init__("effect_ledger")
        self._data = data

    def release_data(self, execution: Execution) -> str | None:
        return self._data(execution.job.key)


class Payout(JobType[dict[str, Any]]):
    name = "payout"

    def __init__(self, data: Callable[[str | None], str | None]) -> None:
        self.ledger = DataLedger(data)

    def perform(self, payload: dict[str, Any], attempt: Attempt) -> Outcome:
        return Done()


def no_data(key: str | None) -> str | None:
    return None


def raising(key: str | None) -> str | None:
    if key == "bad":
        raise KeyError(key)
    return key


def zero_byte(key: str | None) -> str | None:
    return "\0" if key == "bad" else key


def refuse_release(app: Effects) -> None:
    """By a trigger of the application's own."""
    before = "BEFORE UPDATE OF released_at ON effects_effect_ledger"
    if app.store.is_postgresql:
        body = "RAISE EXCEPTION 'frozen account'; END $$ LANGUAGE plpgsql"
        run_sql(app, f"CREATE FUNCTION refuse() RETURNS trigger AS $$ BEGIN {body}")
        run_sql(app, f"CREATE TRIGGER refuse {before} FOR EACH ROW WHEN (NEW.key = 'bad') EXECUTE FUNCTION refuse()")
    else:
        body = "BEGIN SELECT RAISE(ABORT, 'frozen account'); END"
        run_sql(app, f"CREATE TRIGGER refuse {before} WHEN (NEW.key = 'bad') {body}")


def released_together(app: Effects) -> tuple[set[str | None], dict[str | None, Exception]]:
    """The keys of a batch that are marked, and of those that failed with their errors."""
    enqueue_many([NewJob(job_type="payout", payload={}, key=key) for key in KEYS], effects=app)
    jobs = {job.attempt_id: job for job in ManualWorker(app).claim()}
    executions = [Execution(job) for job in jobs.values()]
    context = context_of(app)
    context.stopping.set()  # it waits for no database
    released = mark_released(context, executions)
    return (
        {jobs[attempt].key for attempt in released.marked},
        {jobs[attempt].key: error for attempt, error in released.failures.items()},
    )


@pytest.mark.parametrize("refused", ["by the database", "by the package", "for a zero byte"])
def test_a_faulty_release_fails_alone(refused: str, app_factory: AppFactory, database_url: str) -> None:
    data, error = {
        "by the database": (no_data, DBAPIError), "by the package": (raising, KeyError),
        "for a zero byte": (zero_byte, DBAPIError),
    }[refused]  # fmt: skip
    app = app_factory(job_types=[Payout(data)])
    if refused == "for a zero byte" and not app.store.is_postgresql:
        pytest.skip("SQLite takes it")
    if refused == "by the database":
        refuse_release(app)
    marked, failures = released_together(app)
    assert marked == set(KEYS) - {"bad"}
    assert failures.keys() == {"bad"}
    assert isinstance(failures["bad"], error)
    assert {effect["key"] for effect in rows(app, "effect_ledger", "released_at IS NOT NULL")} == marked
