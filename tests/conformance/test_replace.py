"""`on_conflict="replace"`: a job that waits is what was asked for last; one that has begun is left."""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import msgspec
import pytest
from sqlalchemy.orm import Session

from effects import (
    Attempt,
    Cancelled,
    Done,
    Effects,
    EnqueueError,
    IdempotencyConflict,
    JobType,
    NewJob,
    PayloadInvalid,
    Receipt,
    Refused,
    Retry,
    Sensitive,
    Snooze,
    Unknown,
    cancel,
    enqueue,
    enqueue_many,
)
from effects.keys.encryption import generate_key
from effects.model.settlement import AttemptEnd, Returned
from effects.operate.evidence import job_evidence
from effects.operate.tables import grants
from effects.store.effects.requeue import requeue
from tests.conftest import AppFactory
from tests.support.manual_workers import ManualWorker, everything, row, rows, run_sql
from tests.support.processes import fleet, with_crash_point
from tests.support.scripted import EVERY_FIELD, Scripted
from tests.support.waiting import wait_until

ROUNDS = 40
NAMED_QUEUES = ("slow", "placed")


def replace(app: Effects, name: str, session: Any = None, **options: Any) -> Receipt:
    options = {"key": "k", **options}
    return enqueue("scripted", {"name": name}, session=session, effects=app, on_conflict="replace", **options)


def name_of(payload: str | dict[str, Any]) -> str:
    return str((msgspec.json.decode(payload) if isinstance(payload, str) else payload)["name"])


def test_a_free_key_is_a_new_job(app: Effects) -> None:
    receipt = replace(app, "first")
    assert (receipt.existing, receipt.replaced) == (False, False)


def test_a_waiting_job_has_the_new_payload_time_and_options(app: Effects) -> None:
    first = replace(app, "first", limit_key="old", max_attempts=2)
    options = {name: value for name, value in EVERY_FIELD.items() if name not in ("key", "group_key")}
    receipt = replace(app, "second", **options)
    assert (receipt.job_id, receipt.existing, receipt.replaced) == (first.job_id, True, True)
    fresh = replace(app, "second", key="another", **options)
    written, twin = (row(app, "jobs", f"id = {job_id}") for job_id in (first.job_id, fresh.job_id))
    own = dict.fromkeys(("id", "idempotency_key", "created_at", "updated_at"))
    assert {**written, **own} == {**twin, **own}
    replace(app, "third")
    job = row(app, "jobs", "idempotency_key = 'k'")
    assert [job[name] for name in ("limit_key", "max_attempts", "expires_at")] == [None] * 3


def test_a_later_time_puts_it_off_and_an_earlier_one_is_heard_of(app: Effects) -> None:
    replace(app, "typing", delay=60)
    worker = ManualWorker(app)
    assert worker.claim() == []
    replace(app, "typed")
    assert name_of(worker.claim_one().payload) == "typed"


def test_its_key_means_the_new_content(app: Effects) -> None:
    replace(app, "first")
    replace(app, "second")
    assert enqueue("scripted", {"name": "second"}, key="k", effects=app).existing
    with pytest.raises(IdempotencyConflict):
        enqueue("scripted", {"name": "first"}, key="k", effects=app)


def test_it_is_rolled_back_with_the_callers_transaction(app: Effects) -> None:
    replace(app, "first")
    before = everything(app)
    with Session(app.engine) as session:
        assert replace(app, "second", session=session).replaced
        session.rollback()
    assert everything(app) == before
    assert not rows(app, "job_actions")


def claimed(app: Effects) -> None:
    ManualWorker(app).claim_one()


def ended(ending: AttemptEnd) -> Callable[[Effects], None]:
    def end(app: Effects) -> None:
        worker = ManualWorker(app)
        worker.settle((worker.claim_one(), ending))

    return end


def cancelled(app: Effects) -> None:
    cancel(key="k", actor="ann", effects=app)


def requeued(app: Effects) -> None:
    ended(Refused("no"))(app)
    requeue(app.store, app.job_types, row(app, "job_history")["id"], actor="ann")


@pytest.mark.parametrize(
    "begin",
    [
        claimed, ended(Done()), ended(Retry("busy")), ended(Snooze(60.0)), ended(Refused("no")),
        ended(Unknown("no reply", on_unknown="hold")), ended(Unknown("no reply")), ended(Cancelled()), cancelled,
        requeued,
    ],
    ids=["claimed", "done", "retry", "snooze", "dead", "held", "unknown", "gave up", "cancelled", "requeued"],
)  # fmt: skip
def test_what_has_begun_is_left_and_the_receipt_says_so(app: Effects, begin: Callable[[Effects], None]) -> None:
    first = replace(app, "first")
    begin(app)
    before = everything(app)
    receipt = replace(app, "second", delay=5)
    assert (receipt.existing, receipt.replaced) == (True, False)
    assert receipt.job_id >= first.job_id
    assert everything(app) == before
    assert not rows(app, "job_actions", "action = 'replace'")


def test_a_job_that_was_given_back_unbegun_is_replaced(app: Effects) -> None:
    replace(app, "first")
    ended(Returned())(app)
    assert replace(app, "second").replaced
    assert name_of(ManualWorker(app, "next").claim_one().payload) == "second"


def test_many_with_one_key_are_the_last_of_them(app: Effects) -> None:
    jobs = [
        NewJob(job_type="scripted", payload={"name": f"{key}{turn}"}, key=key, on_conflict="replace")
        for turn in range(3)
        for key in ("a", "b")
    ]
    receipts = enqueue_many(jobs, effects=app)
    assert [receipt.replaced for receipt in receipts] == [False] * 2 + [True] * 4
    assert [name_of(job["payload"]) for job in rows(app, "jobs")] == ["a2", "b2"]
    ManualWorker(app).claim(1)
    again = enqueue_many([msgspec.structs.replace(job, payload={"name": "late"}) for job in jobs[:2]], effects=app)
    assert [receipt.replaced for receipt in again] == [False, True]
    assert [name_of(job["payload"]) for job in rows(app, "jobs")] == ["a2", "late"]


def test_beside_a_plain_request_of_another_content_nothing_is_replaced(app: Effects) -> None:
    enqueue("scripted", {"name": "plain"}, key="p", effects=app)
    replace(app, "first")
    jobs = [
        NewJob(job_type="scripted", payload={"name": "second"}, key="k", on_conflict="replace"),
        NewJob(job_type="scripted", payload={"name": "another"}, key="p"),
    ]
    with pytest.raises(IdempotencyConflict):
        enqueue_many(jobs, effects=app)
    assert [name_of(job["payload"]) for job in rows(app, "jobs")] == ["plain", "first"]


@pytest.mark.parametrize("count", [1, 700], ids=["one", "by COPY"])
def test_many_are_replaced_at_once(app: Effects, count: int) -> None:
    def jobs(name: str) -> list[NewJob]:
        return [
            NewJob(job_type="scripted", payload={"name": name}, key=str(n), on_conflict="replace") for n in range(count)
        ]

    ids = [receipt.job_id for receipt in enqueue_many(jobs("first"), effects=app)]
    receipts = enqueue_many(jobs("second"), effects=app)
    assert [receipt.job_id for receipt in receipts if receipt.replaced] == ids
    assert {name_of(job["payload"]) for job in rows(app, "jobs")} == {"second"}


def test_it_stays_in_its_group_and_in_its_place(app: Effects) -> None:
    first = replace(app, "first", group_key="g")
    enqueue("scripted", {"name": "behind"}, group_key="g", effects=app)
    replace(app, "second", group_key="g")
    worker = ManualWorker(app)
    head = worker.claim_one()
    assert (head.id, name_of(head.payload)) == (first.job_id, "second")
    replace(app, "alone", key="x")
    for key, group in (("x", "g"), ("x", "h")):
        with pytest.raises(IdempotencyConflict, match=f"which is in group None, not '{group}', and stays there"):
            replace(app, "moved", key=key, group_key=group)


def test_it_goes_to_the_limit_and_the_queue_of_the_new_payload(app: Effects) -> None:
    def routed(limit: str) -> Receipt:
        payload = {"name": limit, "limit": limit, "queue": "placed"}
        return enqueue("scripted", payload, key="k", on_conflict="replace", effects=app)

    replace(app, "first")
    assert routed("l").replaced
    assert not ManualWorker(app).claim()
    assert ManualWorker(app, queue="placed").claim_one(queue="placed").limit_key == "l"


def test_the_reading_end_sees_that_it_was_replaced(app: Effects) -> None:
    """Once, by the newest: a job may be replaced with each keystroke."""
    first = replace(app, "first")
    for turn in range(5):
        replace(app, str(turn))
    assert [(action["action"], action["job_id"]) for action in rows(app, "job_actions")] == [("replace", first.job_id)]
    ended(Done())(app)
    assert [action.action for action in job_evidence(app, first.job_id).facts.actions] == ["replace"]


class Secret(msgspec.Struct):
    token: Annotated[str, Sensitive]


class Sealing(JobType[Secret]):
    name = "sealing"
    payload = Secret

    def perform(self, payload: Secret, attempt: Attempt) -> Done:
        return Done()


def test_a_sealed_payload_is_sealed_again(app_factory: AppFactory) -> None:
    keys = f"k1={generate_key()},digest={generate_key()}"
    app = app_factory(job_types=[Sealing()], keys=keys)

    def sealed(token: str) -> Receipt:
        return enqueue("sealing", {"token": token}, key="k", on_conflict="replace", effects=app)

    sealed("rosebud")
    assert sealed("sesame").replaced
    assert "sesame" not in str(row(app, "jobs"))
    job = ManualWorker(app).claim_one()
    assert app.job_types.get("sealing").name == job.job_type
    assert enqueue("sealing", {"token": "sesame"}, key="k", effects=app).job_id == job.id
    with pytest.raises(IdempotencyConflict):
        enqueue("sealing", {"token": "rosebud"}, key="k", effects=app)


def test_a_row_of_the_function_of_sql_is_replaced_and_routed(app: Effects) -> None:
    if not app.store.is_postgresql:
        pytest.skip("the function is PostgreSQL's")
    with app.store.begin() as connection:
        role = str(connection.exec_driver_sql("SELECT session_user").scalar())
        grants.add(app.store, connection, role, app.job_types.get("scripted"), actor="ann", reason="a test")
    run_sql(app, "SELECT effects_enqueue('scripted', '{\"name\": \"plain\"}', key => 'k')")
    assert replace(app, "second").replaced
    job = row(app, "jobs")
    assert (name_of(job["payload"]), job["routed"]) == ("second", True)
    with pytest.raises(IdempotencyConflict):
        enqueue("scripted", {"name": "plain"}, key="k", effects=app)


def test_what_it_cannot_be_given_with_is_refused(app: Effects) -> None:
    with pytest.raises(EnqueueError, match="on_conflict is for a job with a key"):
        enqueue("scripted", {}, on_conflict="replace", effects=app)
    with pytest.raises(EnqueueError, match="on_conflict"):
        enqueue("scripted", {}, key="k", on_conflict="keep", effects=app)  # type: ignore[arg-type]
    replace(app, "first")
    with pytest.raises(PayloadInvalid):
        enqueue("scripted", {"name": 5}, key="k", on_conflict="replace", effects=app)
    assert name_of(row(app, "jobs")["payload"]) == "first"


def test_a_claim_under_way_is_waited_for_and_has_won(app: Effects) -> None:
    """PostgreSQL: the claim holds the row. SQLite: it holds the whole file."""
    replace(app, "first")
    receipts: list[Receipt] = []
    thread = threading.Thread(target=lambda: receipts.append(replace(app, "second")))
    with app.store.begin() as connection:
        connection.exec_driver_sql("UPDATE effects_jobs SET status = 'running', attempts = 1, locked_by = 'w'")
        thread.start()
        if app.store.is_postgresql:
            wait_until(lambda: waits_for_a_lock(app))
    thread.join(30)
    assert [receipt.replaced for receipt in receipts] == [False]
    assert name_of(row(app, "jobs")["payload"]) == "first"


def waits_for_a_lock(app: Effects) -> bool:
    with app.store.read() as connection:
        sql = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
        return bool(connection.exec_driver_sql(sql).scalar())


def test_a_replacement_under_way_is_passed_by(app: Effects) -> None:
    if not app.store.is_postgresql:
        pytest.skip("on SQLite the claim waits for the writer")
    replace(app, "first")
    worker = ManualWorker(app)
    with Session(app.engine) as session:
        assert replace(app, "second", session=session).replaced
        assert worker.claim() == []
        session.commit()
    assert name_of(worker.claim_one().payload) == "second"


def test_of_a_claim_and_a_replacement_at_once_exactly_one_wins(app: Effects) -> None:
    """Never a job of half of each: payload, priority and digest are all of the same request."""
    worker = ManualWorker(app)
    won = set()
    for turn in range(ROUNDS):
        key, start = f"k{turn}", threading.Barrier(2)
        replace(app, "old", key=key, priority=1)
        receipts: list[Receipt] = []

        def replacing(key: str = key, start: threading.Barrier = start, receipts: list[Receipt] = receipts) -> None:
            start.wait()
            receipts.append(replace(app, "new", key=key, priority=2))

        thread = threading.Thread(target=replacing)
        thread.start()
        start.wait()
        jobs = worker.claim()
        thread.join(30)
        [receipt] = receipts
        job = (jobs or worker.claim())[0]
        assert (job.id, job.key) == (receipt.job_id, key)
        expected = ("new", 2) if receipt.replaced else ("old", 1)
        assert (name_of(job.payload), job.priority) == expected
        assert enqueue("scripted", {"name": expected[0]}, key=key, effects=app).existing
        worker.settle((job, Done()))
        won.add(receipt.replaced)
    assert won


def test_of_two_replacements_at_once_one_is_the_last_whole(app: Effects) -> None:
    replace(app, "first")
    start = threading.Barrier(4)

    def replacing(number: int) -> None:
        start.wait()
        replace(app, str(number), priority=number)

    threads = [threading.Thread(target=replacing, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    job = row(app, "jobs")
    assert name_of(job["payload"]) == str(job["priority"])
    assert enqueue("scripted", {"name": name_of(job["payload"])}, key="k", effects=app).existing


def replace_there(name: str) -> None:
    replace(Effects(job_types=[Scripted()]), name)


@pytest.mark.parametrize(("point", "name"), [("enqueue.before_commit", "first"), ("enqueue.committed", "second")])
def test_killed_in_between_it_is_the_one_or_the_other(
    app: Effects, database_url: str, tmp_path: Path, point: str, name: str
) -> None:
    replace(app, "first")
    with fleet(database_url, tmp_path) as processes:
        child = processes.start(with_crash_point, replace_there, "second", EFFECTS_CRASHPOINT=f"{point}:1:kill")
        assert child.wait() == -signal.SIGKILL, child.output
    assert name_of(row(app, "jobs")["payload"]) == name
    assert enqueue("scripted", {"name": name}, key="k", effects=app).existing
    assert replace(app, "third").replaced


def test_awaited_and_by_a_job_function(app: Effects) -> None:
    @app.job("shop.label")
    def label(order: int) -> None:
        print(order)

    label.using(key="k").enqueue(order=1)
    assert label.using(key="k", on_conflict="replace").enqueue(order=2).replaced
    receipt = asyncio.run(label.using(key="k", on_conflict="replace").enqueue_async(order=3))
    assert receipt.replaced
    [again] = enqueue_many([label.using(key="k", on_conflict="replace").job(order=4)], effects=app)
    assert again.replaced
    assert row(app, "jobs")["payload"] in ({"order": 4}, '{"order":4}')
