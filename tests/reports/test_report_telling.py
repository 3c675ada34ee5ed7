"""A notice that cannot be enqueued where its run ends: the run ends all the same, and the notice is sent later."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
import pytest

from effects import Attempt, Effects, JobType, RetryPolicy, Routing, Sensitive
from effects.keys.encryption import generate_key
from effects.operate.tables.dead_letters import DeadFilters, list_dead
from effects.store.effects.requeue import requeue
from effects_reports import Notify, ReportInvalid, repair_reports, request_report
from tests.reports.conftest import ReportWorker, Shop, drain
from tests.reports.shop import fill
from tests.reports.steps import requested, state
from tests.support.manual_workers import rows, run_sql
from tests.support.scripted import Scripted


class Told(msgspec.Struct):
    text: str


class Tell(JobType[Told]):
    """Keeps what it is told. Its `route` takes numbers alone if `by_number`, and nothing while `broken`."""

    name = "tell"
    payload = Told

    def __init__(self, *, by_number: bool = False) -> None:
        self.told: list[str] = []
        self.by_number = by_number
        self.broken = False

    def route(self, payload: Told) -> Routing:
        if self.broken:
            raise ValueError(payload.text)
        return Routing(limit_key=f"customer:{int(payload.text)}" if self.by_number else None)

    def perform(self, payload: Told, attempt: Attempt) -> None:
        self.told.append(payload.text)


class SealedTold(msgspec.Struct):
    text: Annotated[str, Sensitive]


class TellSealed(JobType[SealedTold]):
    """Keeps what it is told, which is sealed meanwhile."""

    name = "tell"
    payload = SealedTold

    def __init__(self) -> None:
        self.told: list[str] = []

    def perform(self, payload: SealedTold, attempt: Attempt) -> None:
        self.told.append(payload.text)


NOTICE = Notify(job_type="tell", payload={"text": "rosebud {state} {rows}"})
ENDS = [("ready", "rosebud ready 1"), ("failed", "rosebud failed ")]


def bring_to(worker: ReportWorker, run_id: str, end: str) -> None:
    """Let this worker carry out the run's three jobs; or only its plan, which fails without the table."""
    if end == "failed":
        run_sql(worker.app, "DROP TABLE orders")
    for _ in range(1 if end == "failed" else 3):
        worker.do_next()
    assert state(worker.app, run_id) == end


def jobs_of(app: Effects, job_type: str) -> list[dict[str, Any]]:
    return rows(app, "jobs", "job_type = :name", name=job_type)


@pytest.mark.parametrize(("end", "text"), ENDS)
def test_a_route_that_raises_neither_holds_the_run_nor_loses_the_notice(
    end: str, text: str, shop_factory: Shop, caplog: pytest.LogCaptureFixture
) -> None:
    tell = Tell()
    app = shop_factory(job_types=[tell, Scripted()])
    fill(app, 1)
    run_id = requested(app, notify=[NOTICE, Notify(job_type="scripted", payload={"name": "{state}"})])
    tell.broken = True
    bring_to(ReportWorker(app), run_id, end)
    assert len(jobs_of(app, "report.notify")) == len(jobs_of(app, "scripted")) == 1
    app.job_types.get("report.notify").retry = RetryPolicy(max_attempts=1)
    drain(app)
    [dead] = [letter for letter in list_dead(app.store, app.ledgers, DeadFilters()) if letter.job_type != "report.plan"]
    assert (dead.job_type, dead.error_code) == ("report.notify", "apply_failed")
    assert "report.notice_failed" in caplog.messages
    assert text not in f"{caplog.text} {rows(app, 'job_attempts')}"
    tell.broken = False
    requeue(app.store, app.job_types, dead.id, confirm_unknown=True, actor="ann")
    drain(app)
    assert tell.told == [text]


@pytest.mark.parametrize(("end", "text"), ENDS)
@pytest.mark.parametrize("lacks", ["job type", "key"])
def test_a_notice_waits_for_a_worker_that_can_send_it(lacks: str, end: str, text: str, shop_factory: Shop) -> None:
    """The run waits for none: its end is known at once."""
    tell: Tell | TellSealed = Tell() if lacks == "job type" else TellSealed()
    keys = f"k={generate_key()}"
    app = shop_factory(job_types=[tell], keys=keys)
    lacking = shop_factory(job_types=[], keys=keys) if lacks == "job type" else shop_factory(job_types=[TellSealed()])
    fill(app, 1)
    run_id = requested(app, notify=NOTICE)
    worker = ReportWorker(lacking)
    bring_to(worker, run_id, end)
    assert jobs_of(app, "tell") == []
    [notify] = [job for job in worker.claim() if job.job_type == "report.notify"]
    settlement = worker.do(notify)
    assert (settlement.outcome, settlement.error_code) == ("snoozed", "waits_for_operator")
    app.store.shift_clock(60)
    drain(app)
    assert tell.told == [text]


def test_a_route_is_asked_with_the_request(shop_factory: Shop) -> None:
    app = shop_factory(job_types=[Tell(by_number=True)])
    by_key = Notify(job_type="tell", payload={"text": "{key}"})
    request_report("orders", key="42", notify=by_key, effects=app)
    with pytest.raises(ReportInvalid, match="notify: tell: its route raises ValueError") as refusal:
        request_report("orders", key="rosebud", notify=by_key, effects=app)
    assert "rosebud" not in str(refusal.value)
    assert len(rows(app, "report_runs")) == 1


def test_a_run_that_cannot_be_repaired_leaves_the_others_to_the_repair(
    shop: Effects, caplog: pytest.LogCaptureFixture
) -> None:
    fill(shop, 1)
    refused, lost = requested(shop), requested(shop)
    run_sql(shop, "DELETE FROM effects_jobs")
    _refuse_jobs_of(shop, refused)
    counts = repair_reports(effects=shop)
    assert (counts.restarted, counts.unrepaired) == (1, 1)
    assert "report.repair_failed" in caplog.messages
    drain(shop)
    assert (state(shop, refused), state(shop, lost)) == ("requested", "ready")


def _refuse_jobs_of(app: Effects, run_id: str) -> None:
    """By a trigger of the application's own."""
    condition, event = f"NEW.idempotency_key LIKE '{run_id}/%'", "CREATE TRIGGER refuse BEFORE INSERT ON effects_jobs"
    if app.store.is_postgresql:
        body = f"BEGIN IF {condition} THEN RAISE EXCEPTION 'no'; END IF; RETURN NEW; END"
        run_sql(app, f"CREATE FUNCTION refuse() RETURNS trigger AS $${body}$$ LANGUAGE plpgsql")
        run_sql(app, f"{event} FOR EACH ROW EXECUTE FUNCTION refuse()")
    else:
        run_sql(app, f"{event} WHEN {condition} BEGIN SELECT RAISE(ABORT, 'no'); END")
