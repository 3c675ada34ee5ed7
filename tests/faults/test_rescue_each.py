"""Lost jobs of which one cannot be written as it should: all others come back in the same round."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
from sqlalchemy import Connection
from sqlalchemy.orm import Session

from effects import Done, Effects, JobType, NewJob, Outcome, enqueue_many
from effects.errors import StoreRejected
from effects.model.job import Attempt
from effects.model.settlement import Settlement
from effects.operate.tables.audit import audit
from effects.store.claim.invalid_rows import rescue_valid
from effects.store.db.faults import Fault
from effects.store.db.store import Store
from effects.store.queue.liveness import RESCUE_BATCH
from effects.store.queue.settle import Settled
from effects.store.queue.table_ledger import TableLedger
from effects.worker import Worker
from effects.worker.upkeep.heartbeat import Rescuer
from tests.conftest import AppFactory
from tests.support.log_lines import LogLines, log_lines
from tests.support.manual_workers import LEASE_SECONDS, ManualWorker, row, rows, run_sql

SECRET = "TOP-SECRET-42"


class FailingLedger(TableLedger):
    """Fails at the effect `bad`."""

    def __init__(self, failure: Callable[[], BaseException]) -> None:
        super().__init__("effect_ledger")
        self._failure = failure

    def record(self, store: Store, connection: Connection, settled: Sequence[Settlement]) -> None:
        if any(settlement.job.key == "bad" for settlement in settled):
            raise self._failure()
        super().record(store, connection, settled)


class Payout(JobType[dict[str, Any]]):
    name = "payout"
    on_unknown = "repeat"

    def __init__(self, failure: Callable[[], BaseException] = RuntimeError) -> None:
        self.ledger = FailingLedger(failure)

    def perform(self, payload: dict[str, Any], attempt: Attempt) -> Outcome:
        return Done()


class Undecidable(Payout):
    """Once it is registered, no decision about a lost attempt can be made."""

    name = "undecidable"
    registered = False

    @property
    def unknown_after_seconds(self) -> float:  # type: ignore[override]
        if self.registered:
            raise KeyError(SECRET)
        return 0.0


class Plain(Payout):
    name = "plain"


def lose(app: Effects, *jobs: NewJob) -> list[int]:
    """Jobs that a worker held when it fell silent; their ids."""
    ids = [receipt.job_id for receipt in enqueue_many(jobs, effects=app)]
    gone = ManualWorker(app, "gone")
    claimed = 0
    while claimed < len(ids):
        claimed += len(gone.claim())
    app.store.shift_clock(LEASE_SECONDS + 1)
    return ids


def undecidable_app(app_factory: AppFactory) -> Effects:
    undecidable = Undecidable()
    app = app_factory(job_types=[undecidable, Plain()])
    undecidable.registered = True
    return app


def new(job_type: str, key: str | None = None) -> NewJob:
    return NewJob(job_type=job_type, payload={}, key=key)


def rescue(app: Effects) -> Settled:
    return rescue_valid(app.store, app.job_types, app.ledgers, LEASE_SECONDS)


def rescuer_of(app: Effects) -> Rescuer:
    rescuer = Worker(app)._parts._rescuer
    assert rescuer is not None
    return rescuer


def ids_of(settled: Settled) -> set[int]:
    return {settlement.job.id for settlement in settled.accepted}


@pytest.fixture
def log() -> Iterator[LogLines]:
    with log_lines("effects.worker") as collected:
        yield collected


@pytest.mark.parametrize("failure", [KeyError, RuntimeError, ValueError, SystemExit])
def test_a_ledger_that_fails_at_one_job_keeps_none_from_coming_back(
    failure: type[BaseException], app_factory: AppFactory, log: LogLines
) -> None:
    app = app_factory(job_types=[Payout(lambda: failure(SECRET)), Plain()])
    ids = lose(app, new("payout", "bad"), new("payout", "good"), new("plain"), new("plain"))
    assert ids_of(rescue(app)) == set(ids)
    assert {effect["state"] for effect in rows(app, "effect_ledger")} == {"unknown"}
    said = log.lines[0]
    assert all(word in said for word in ("rescue.failed", f"job={ids[0]}", "type=payout", f"error={failure.__name__}"))
    assert SECRET not in "".join(log.lines)
    assert audit(app.store, app.ledgers) == []


def test_a_job_that_cannot_be_decided_stays_and_is_named(app_factory: AppFactory, log: LogLines) -> None:
    app = undecidable_app(app_factory)
    bad, *others = lose(app, new("undecidable"), new("plain"), new("plain"))
    assert ids_of(rescue(app)) == set(others)
    assert row(app, "jobs", "status = 'running'")["id"] == bad
    assert f"job={bad} type=undecidable error=KeyError" in log.lines[0]
    assert SECRET not in "".join(log.lines)


def test_a_round_goes_on_behind_a_batch_of_which_a_job_was_left(app_factory: AppFactory) -> None:
    app = undecidable_app(app_factory)
    bad, *others = lose(app, new("undecidable"), *[new("plain")] * (RESCUE_BATCH + 20))
    assert rescuer_of(app).round() == len(others)
    assert row(app, "jobs", "status = 'running'")["id"] == bad


def test_a_batch_of_which_every_job_is_left_hides_none_behind_it(app_factory: AppFactory) -> None:
    app = undecidable_app(app_factory)
    ids = lose(app, *[new("undecidable")] * RESCUE_BATCH, new("plain"), new("plain"))
    assert ids_of(rescue(app)) == set(ids[RESCUE_BATCH:])
    assert rescuer_of(app).round() == 0
    assert len(rows(app, "jobs", "status = 'running'")) == RESCUE_BATCH


@pytest.mark.parametrize("database_url", ["postgresql"], indirect=True)
def test_a_held_effect_keeps_back_its_job_alone(app_factory: AppFactory, log: LogLines) -> None:
    app = app_factory(job_types=[Payout(), Plain()], sessions="off")
    held, *_ = lose(app, new("payout", "held"), new("payout", "good"), new("plain"))
    rescuer = rescuer_of(app)
    with Session(app.engine) as session, session.begin():
        session.connection().exec_driver_sql("SELECT 1 FROM effects_effect_ledger WHERE key = 'held' FOR UPDATE")
        rescuer.try_round()
        assert row(app, "jobs", "status = 'running'")["id"] == held
    rescuer.try_round()
    assert rows(app, "jobs", "status = 'running'") == []
    assert "rescue.failed" not in "".join(log.lines)


def test_a_row_that_cannot_be_written_at_all_ends_where_its_ledger_fails_too(app_factory: AppFactory) -> None:
    app = app_factory(job_types=[Payout(), Plain()])
    bad, *others = lose(app, new("payout", "bad"), new("plain"))
    refuse_return_of(app, bad)
    assert ids_of(rescue(app)) == set(others)
    ended = row(app, "job_history")
    assert (ended["id"], ended["status"], ended["error_code"]) == (bad, "dead", "row_invalid")
    assert row(app, "effect_ledger")["state"] == "unknown"


def refuse_return_of(app: Effects, job_id: int) -> None:
    """By a trigger of the application's own."""
    when = f"WHEN (NEW.id = {job_id})"
    if app.store.is_postgresql:
        run_sql(
            app,
            "CREATE FUNCTION refuse() RETURNS trigger AS $$ BEGIN RAISE EXCEPTION 'no'; END $$ LANGUAGE plpgsql",
        )
        run_sql(
            app, f"CREATE TRIGGER refuse BEFORE UPDATE ON effects_jobs FOR EACH ROW {when} EXECUTE FUNCTION refuse()"
        )
    else:
        run_sql(app, f"CREATE TRIGGER refuse BEFORE UPDATE ON effects_jobs {when} BEGIN SELECT RAISE(ABORT, 'no'); END")


def test_what_the_database_denies_concerns_all(app_factory: AppFactory) -> None:
    app = app_factory(job_types=[Payout(lambda: StoreRejected("no", fault=Fault.DENIED)), Plain()])
    ids = lose(app, new("payout", "bad"), new("plain"))
    with pytest.raises(StoreRejected):
        rescue(app)
    assert {job["id"] for job in rows(app, "jobs", "status = 'running'")} == set(ids)
