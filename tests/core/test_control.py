"""Effects by their key: looked at, cancelled, rescheduled, waited for. Each race with the worker has one truth, and
the answer is that truth.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any, cast

import msgspec
import pytest
from sqlalchemy.orm import Session

from effects import (
    Attempt,
    Done,
    Effects,
    EnqueueError,
    JobNotFound,
    JobType,
    KeyAmbiguous,
    Refused,
    Retry,
    Unknown,
    cancel,
    enqueue,
    reschedule,
    status,
    wait,
)
from effects.model.ledger import Ledger, LedgerRow
from effects.model.settlement import WorkerLost
from effects.operate.tables.audit import audit
from effects.store.effects.by_key import find_effect
from effects.store.effects.requeue import requeue
from effects.store.queue.table_ledger import CORE_LEDGER
from effects.worker import Worker
from tests.conftest import AppFactory
from tests.support.manual_workers import ManualWorker, row, rows
from tests.support.running import running
from tests.support.scripted import Scripted
from tests.support.waiting import wait_until

LATER = datetime.now(UTC).replace(microsecond=0) + timedelta(hours=1)
DUE = LATER - timedelta(hours=2)  # SQLite counts in milliseconds: the moment itself may lie ahead of its clock


@pytest.fixture
def app(app_factory: AppFactory) -> Effects:
    return app_factory(job_types=[Scripted(), Scripted("held", on_unknown="hold")])


@pytest.fixture
def checked(app: Effects) -> Iterator[Effects]:
    """Whatever a test does, no effect is lost or doubled."""
    yield app
    assert audit(app.store, app.ledgers) == []


def put(app: Effects, job_type: str = "held", **options: Any) -> int:
    return enqueue(job_type, {}, key="k", effects=app, **options).job_id


def lease_lost(manual_worker: ManualWorker, job: Any) -> None:
    """What an attempt answers that was not released."""
    manual_worker.settle((job, Retry("not released", code="lease_lost")))


# -- status ----------------------------------------------------------------------------------------------


def test_the_status_follows_the_job(checked: Effects) -> None:
    job_id = put(checked, run_at=LATER)
    waiting = status(key="k", effects=checked)
    assert (waiting.job_id, waiting.job_type, waiting.status, waiting.state) == (job_id, "held", "queued", "intended")
    assert waiting.run_at == LATER
    assert not waiting.ended
    reschedule(key="k", run_at=DUE, actor="ann", effects=checked)
    manual_worker = ManualWorker(checked)
    job = manual_worker.claim_one()
    assert status(key="k", effects=checked).status == "running"
    manual_worker.settle((job, Done()), released=True)
    done = status(key="k", effects=checked)
    assert (done.status, done.state, done.attempts, done.ended) == ("succeeded", "done", 1, True)


class EndsMeanwhile:
    """The core's ledger; just after it was read for the first time, an attempt ends."""

    def __init__(self, end: Callable[[], None]) -> None:
        self._end: Callable[[], None] | None = end

    def __getattr__(self, name: str) -> Any:
        return getattr(CORE_LEDGER, name)

    def holders(self, *arguments: Any) -> list[LedgerRow]:
        rows = CORE_LEDGER.holders(*arguments)
        end, self._end = self._end, None
        if end is not None:
            end()
        return rows


def test_an_end_between_two_statements_is_seen_whole_or_not_at_all(checked: Effects) -> None:
    put(checked)
    manual_worker = ManualWorker(checked)
    job = manual_worker.claim_one()
    ledger = EndsMeanwhile(lambda: manual_worker.settle((job, Done()), released=True))
    with checked.store.read() as connection:
        effect = find_effect(checked.store, connection, {"held": cast(Ledger, ledger)}, "k", "held")
    assert (effect.status, effect.state) in (("succeeded", "done"), ("running", "intended"))


def test_a_key_of_two_types_needs_its_type(checked: Effects) -> None:
    put(checked, "held")
    put(checked, "scripted")
    with pytest.raises(KeyAmbiguous, match="held, scripted"):
        status(key="k", effects=checked)
    assert status(key="k", job_type="held", effects=checked).job_type == "held"
    assert cancel(key="k", job_type="scripted", actor="ann", effects=checked).prevented
    assert status(key="k", job_type="held", effects=checked).status == "queued"


def test_an_unknown_key_is_not_found(app: Effects) -> None:
    put(app)
    for call in (
        status,
        lambda **options: cancel(actor="ann", **options),
        lambda **options: reschedule(run_at=LATER, actor="ann", **options),
        lambda **options: wait(timeout_seconds=0, **options),
    ):
        with pytest.raises(JobNotFound, match="'other'"):
            call(key="other", effects=app)
        with pytest.raises(JobNotFound, match="scripted"):
            call(key="k", job_type="scripted", effects=app)
        with pytest.raises(EnqueueError, match="key"):
            call(key="", effects=app)


def test_a_transaction_sees_what_it_has_enqueued(app: Effects) -> None:
    with Session(app.engine) as session:
        enqueue("held", {}, key="k", session=session, effects=app)
        assert status(key="k", session=session, effects=app).status == "queued"
        assert cancel(key="k", actor="ann", session=session, effects=app).prevented
        session.rollback()
    with pytest.raises(JobNotFound):
        status(key="k", effects=app)


def test_the_key_leads_to_the_newest_job(checked: Effects) -> None:
    job_id = put(checked)
    manual_worker = ManualWorker(checked)
    manual_worker.settle((manual_worker.claim_one(), Refused("no")))
    assert cancel(key="k", actor="ann", effects=checked).result == "ended"
    newer = requeue(checked.store, checked.job_types, job_id, actor="ann").job_id
    cancelled = cancel(key="k", actor="ann", effects=checked)
    assert (cancelled.effect.job_id, cancelled.result) == (newer, "cancelled")


# -- cancel ----------------------------------------------------------------------------------------------


def test_a_waiting_effect_is_withdrawn(checked: Effects) -> None:
    put(checked, run_at=LATER)
    cancelled = cancel(key="k", actor="ann", reason="paid", effects=checked)
    assert (cancelled.result, cancelled.prevented) == ("cancelled", True)
    assert (cancelled.effect.status, cancelled.effect.state) == ("cancelled", "abandoned")
    noted = row(checked, "job_actions")
    assert (noted["action"], noted["actor"], noted["reason"]) == ("cancel", "ann", "paid")
    again = cancel(key="k", actor="ann", effects=checked)
    assert (again.result, again.prevented) == ("ended", False)
    assert len(rows(checked, "job_actions")) == 1


@pytest.mark.parametrize("end", ["lease_lost", "crash"])
def test_an_attempt_that_was_not_released_never_is(checked: Effects, end: str) -> None:
    put(checked)
    manual_worker = ManualWorker(checked)
    job = manual_worker.claim_one()
    cancelled = cancel(key="k", actor="ann", effects=checked)
    assert (cancelled.result, cancelled.prevented, cancelled.effect.status) == ("stopped", True, "running")
    assert cancelled.effect.cancel_requested
    assert manual_worker.release(job) == set()
    manual_worker.settle((job, WorkerLost() if end == "crash" else Retry("not released", code="lease_lost")))
    after = status(key="k", effects=checked)
    assert (after.status, after.state) == ("cancelled", "abandoned")


def test_an_attempt_that_was_released_may_happen(checked: Effects) -> None:
    put(checked)
    manual_worker = ManualWorker(checked)
    job = manual_worker.claim_one()
    assert manual_worker.release(job) == {job.attempt_id}
    cancelled = cancel(key="k", actor="ann", effects=checked)
    assert (cancelled.result, cancelled.prevented, cancelled.effect.state) == ("released", False, "released")
    manual_worker.settle((job, Done()), released=True)
    assert status(key="k", effects=checked).state == "done"


def test_a_type_that_repeats_is_released_by_its_claim(checked: Effects) -> None:
    put(checked, "scripted")
    manual_worker = ManualWorker(checked)
    job = manual_worker.claim_one()
    cancelled = cancel(key="k", actor="ann", effects=checked)
    assert (cancelled.result, cancelled.prevented) == ("released", False)
    manual_worker.settle((job, Done()))


def test_nothing_is_promised_for_an_unregistered_type(checked: Effects, app_factory: AppFactory) -> None:
    put(checked)
    job = ManualWorker(checked).claim_one()
    assert cancel(key="k", actor="ann", effects=app_factory(job_types=[])).result == "released"
    lease_lost(ManualWorker(checked), job)


def test_an_effect_that_may_have_happened_is_not_reported_as_prevented(checked: Effects) -> None:
    put(checked, "scripted")
    manual_worker = ManualWorker(checked)
    manual_worker.settle((manual_worker.claim_one(), Unknown("no reply")))
    cancelled = cancel(key="k", actor="ann", effects=checked)
    assert (cancelled.result, cancelled.effect.state, cancelled.prevented) == ("cancelled", "unknown", False)


@pytest.mark.parametrize("claimed", [False, True])
def test_a_rolled_back_cancel_never_was(checked: Effects, claimed: bool) -> None:
    put(checked)
    manual_worker = ManualWorker(checked)
    job = manual_worker.claim_one() if claimed else None
    with Session(checked.engine) as session:
        assert cancel(key="k", actor="ann", session=session, effects=checked).prevented
        session.rollback()
    job = job or manual_worker.claim_one()
    assert manual_worker.release(job) == {job.attempt_id}
    manual_worker.settle((job, Done()), released=True)
    assert status(key="k", effects=checked).state == "done"
    assert rows(checked, "job_actions") == []


def test_a_committed_cancel_of_a_session_counts(checked: Effects) -> None:
    put(checked)
    with Session(checked.engine) as session, session.begin():
        cancel(key="k", actor="ann", session=session, effects=checked)
    assert status(key="k", effects=checked).status == "cancelled"


# -- reschedule ------------------------------------------------------------------------------------------


def test_a_waiting_effect_is_rescheduled(checked: Effects) -> None:
    put(checked)
    manual_worker = ManualWorker(checked)
    moved = reschedule(key="k", run_at=LATER, actor="ann", reason="not yet", effects=checked)
    assert (moved.result, moved.effect.status) == ("rescheduled", "queued")
    assert manual_worker.claim() == []
    assert row(checked, "jobs")["age_from"] == row(checked, "jobs")["run_at"]  # its age counts from then
    assert reschedule(key="k", run_at=DUE, actor="ann", effects=checked).result == "rescheduled"
    manual_worker.settle((manual_worker.claim_one(), Done()))
    assert [action["action"] for action in rows(checked, "job_actions")] == ["reschedule"] * 2


def test_a_rescheduled_retry_keeps_its_age(checked: Effects) -> None:
    put(checked)
    manual_worker = ManualWorker(checked)
    manual_worker.settle((manual_worker.claim_one(), Retry("not now")))
    age_from = row(checked, "jobs")["age_from"]
    moved = reschedule(key="k", run_at=DUE, actor="ann", effects=checked)
    assert (moved.result, moved.effect.status) == ("rescheduled", "retrying")
    assert row(checked, "jobs")["age_from"] == age_from
    assert manual_worker.claim_one().attempts == 2


def test_only_what_waits_is_rescheduled(checked: Effects) -> None:
    put(checked)
    manual_worker = ManualWorker(checked)
    job = manual_worker.claim_one()
    before = row(checked, "jobs")
    assert reschedule(key="k", run_at=LATER, actor="ann", effects=checked).result == "running"
    assert row(checked, "jobs") == before
    manual_worker.settle((job, Done()))
    ended = reschedule(key="k", run_at=LATER, actor="ann", effects=checked)
    assert (ended.result, ended.effect.state) == ("ended", "done")
    assert rows(checked, "job_actions") == []
    with pytest.raises(EnqueueError, match="run_at"):
        reschedule(key="k", run_at=datetime(2026, 1, 1), actor="ann", effects=checked)  # noqa: DTZ001


def test_a_rolled_back_reschedule_never_was(checked: Effects) -> None:
    put(checked, run_at=LATER)
    with Session(checked.engine) as session:
        reschedule(key="k", run_at=DUE, actor="ann", session=session, effects=checked)
        session.rollback()
    assert ManualWorker(checked).claim() == []


@pytest.mark.parametrize("alone", [True, False])
def test_an_idle_worker_hears_of_an_earlier_time(app_factory: AppFactory, alone: bool) -> None:
    app = app_factory(poll_seconds=60.0)
    put(app, "scripted", run_at=LATER)

    def moved() -> str:
        if alone:
            return reschedule(key="k", run_at=DUE, actor="ann", effects=app).result
        with Session(app.engine) as session, session.begin():
            return reschedule(key="k", run_at=DUE, actor="ann", session=session, effects=app).result

    with running(Worker(app)):
        wait_until(lambda: moved() != "rescheduled", seconds=50)  # again: the first may come before it listens
        assert wait(key="k", timeout_seconds=50, effects=app).state == "done"


# -- wait ------------------------------------------------------------------------------------------------


def test_wait_looks_once_or_until_the_time_is_over(checked: Effects) -> None:
    put(checked, run_at=LATER)
    for seconds in (0, 0.2):
        waiting = wait(key="k", timeout_seconds=seconds, effects=checked)
        assert (waiting.status, waiting.ended) == ("queued", False)
    for invalid in (-1, float("nan"), 8 * 86_400, True):
        with pytest.raises(EnqueueError, match="timeout_seconds"):
            wait(key="k", timeout_seconds=invalid, effects=checked)


@pytest.mark.parametrize(
    ("moves", "state"), [("done", "done"), ("refuse", "refused"), ("cancel", "abandoned"), ("release raise", "unknown")]
)
def test_wait_reports_each_end(checked: Effects, moves: str, state: str) -> None:
    enqueue("held", {"moves": [moves]}, key="k", run_at=LATER, effects=checked)
    ends = []
    waiter = threading.Thread(target=lambda: ends.append(wait(key="k", timeout_seconds=50, effects=checked)))
    with running(Worker(checked)):
        waiter.start()
        reschedule(key="k", run_at=DUE, actor="ann", effects=checked)
        waiter.join(55)
    assert [(end.state, end.ended) for end in ends] == [(state, True)]


def test_wait_ends_when_another_cancels(checked: Effects) -> None:
    put(checked, run_at=LATER)
    ends = []
    waiter = threading.Thread(target=lambda: ends.append(wait(key="k", timeout_seconds=50, effects=checked)))
    waiter.start()
    cancel(key="k", actor="ann", effects=checked)
    waiter.join(55)
    assert [end.status for end in ends] == ["cancelled"]


# -- races with a real worker ----------------------------------------------------------------------------


class Mail(msgspec.Struct, frozen=True):
    name: str


class Mailing(JobType[Mail]):
    """Sends, once released, whatever was requested of it meanwhile."""

    name = "mailing"
    payload = Mail
    on_unknown = "hold"

    def __init__(self) -> None:
        self.sent: set[str] = set()

    def perform(self, payload: Mail, attempt: Attempt) -> Done:
        attempt.release()
        self.sent.add(payload.name)
        return Done()


MAILS = 40


def mailed(app: Effects, run_at: datetime | None = None) -> list[str]:
    keys = [f"mail:{number}" for number in range(MAILS)]
    with Session(app.engine) as session, session.begin():
        for key in keys:
            enqueue("mailing", Mail(key), key=key, run_at=run_at, session=session, effects=app)
    return keys


def test_cancel_against_a_worker_has_one_truth_and_says_it(app_factory: AppFactory) -> None:
    mailing = Mailing()
    app = app_factory(job_types=[mailing], threads=3)
    keys = mailed(app)
    results = {}
    with running(Worker(app)):
        for key in reversed(keys):
            results[key] = cancel(key=key, actor="ann", effects=app)
        ends = {key: wait(key=key, timeout_seconds=50, effects=app) for key in keys}
    for key, cancelled in results.items():
        assert (key, cancelled.prevented) == (key, key not in mailing.sent), cancelled
        assert (key, ends[key].state) == (key, "abandoned" if cancelled.prevented else "done"), cancelled
    assert audit(app.store, app.ledgers) == []


def test_reschedule_against_a_worker_has_one_truth_and_says_it(app_factory: AppFactory) -> None:
    mailing = Mailing()
    app = app_factory(job_types=[mailing], threads=3)
    keys = mailed(app)
    with running(Worker(app)):
        results = {key: reschedule(key=key, run_at=LATER, actor="ann", effects=app).result for key in reversed(keys)}
        for key in keys:
            if results[key] != "rescheduled":
                assert wait(key=key, timeout_seconds=50, effects=app).state == "done"
    assert mailing.sent == {key for key, result in results.items() if result != "rescheduled"}
    assert {status(key=key, effects=app).status for key in set(keys) - mailing.sent} <= {"queued"}
    assert audit(app.store, app.ledgers) == []
