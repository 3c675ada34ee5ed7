"""`group_key`: strict order, one in flight, whatever the callers' transactions do."""

from __future__ import annotations

import threading
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from sqlalchemy.orm import Session

from effects import Done, Effects, NewJob, Refused, Retry, enqueue, enqueue_many
from effects.settlement import GivenBack, Unready
from effects.store.claim import PROBES_PER_ROUND
from tests.conformance.test_claim import at_once
from tests.conftest import AppFactory
from tests.support.hands import Hand, rows, run_sql
from tests.support.waiting import wait_until


def grouped(group: str = "g", **options: Any) -> NewJob:
    return NewJob(job_type="scripted", payload={}, group_key=group, **options)


def test_a_group_runs_one_at_a_time_in_its_order(app: Effects) -> None:
    receipts = enqueue_many([grouped() for _ in range(5)], effects=app)
    hand = Hand(app)
    ran = []
    for _ in receipts:
        job = hand.claim_one()
        assert hand.claim() == []
        hand.settle((job, Done()))
        ran.append(job.id)
    assert ran == [receipt.job_id for receipt in receipts]


def test_priority_and_due_time_do_not_reorder_a_group(app: Effects) -> None:
    soon = datetime.now(UTC) + timedelta(minutes=10)
    first, second = enqueue_many([grouped(run_at=soon, priority=9), grouped(priority=0)], effects=app)
    hand = Hand(app)
    assert hand.claim() == []
    app.store.shift_clock(601)
    assert hand.claim_one().id == first.job_id
    assert hand.claim() == []
    assert second.job_id > first.job_id


def test_a_failed_head_holds_its_group_until_it_ends(app: Effects) -> None:
    first, second = enqueue_many([grouped(), grouped()], effects=app)
    hand = Hand(app)
    hand.settle((hand.claim_one(), Retry("busy", after_seconds=100)))
    assert hand.claim() == []
    app.store.shift_clock(101)
    job = hand.claim_one()
    assert job.id == first.job_id
    hand.settle((job, Refused("no")))
    assert hand.claim_one().id == second.job_id


def test_a_blocked_group_waits_and_others_do_not(app: Effects) -> None:
    enqueue_many([grouped("blocked"), grouped("open")], effects=app)
    run_sql(app, "UPDATE effects_job_groups SET blocked = true WHERE group_key = 'blocked'")
    hand = Hand(app)
    assert [job.group_key for job in hand.claim()] == ["open"]
    run_sql(app, "UPDATE effects_job_groups SET blocked = false")
    assert [job.group_key for job in hand.claim()] == ["blocked"]


def test_order_holds_when_enqueuing_transactions_commit_out_of_order(app: Effects) -> None:
    """Whoever comes second waits for the first's end: ids rise in the order of commit."""
    second_receipts = []

    def second() -> None:
        second_receipts.append(enqueue("scripted", {}, group_key="g", effects=app))

    with Session(app.engine) as session, session.begin():
        enqueue("scripted", {}, group_key="other", session=session, effects=app)
        first = enqueue("scripted", {}, group_key="g", session=session, effects=app)
        thread = threading.Thread(target=second)
        thread.start()
        if app.store.is_postgresql:
            wait_until(lambda: waiting_for_locks(app) == 1)
        assert second_receipts == []
    thread.join(30)
    assert second_receipts[0].job_id > first.job_id
    hand = Hand(app)
    heads = {job.id for job in hand.claim()}
    assert first.job_id in heads
    assert second_receipts[0].job_id not in heads


def waiting_for_locks(app: Effects) -> int:
    waiting = "FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()"
    with app.engine.connect() as connection:
        return int(connection.exec_driver_sql(f"SELECT count(*) {waiting}").scalar_one())


def test_a_rolled_back_first_leaves_the_group_to_the_second(app: Effects) -> None:
    with Session(app.engine) as session:
        enqueue("scripted", {}, group_key="g", session=session, effects=app)
        session.rollback()
    receipt = enqueue("scripted", {}, group_key="g", effects=app)
    assert Hand(app).claim_one().id == receipt.job_id


def test_many_workers_keep_the_order_of_many_groups(app: Effects, app_factory: AppFactory) -> None:
    names = [f"g{n}" for n in range(6)]
    receipts = enqueue_many([grouped(names[n % len(names)]) for n in range(120)], effects=app)
    expected = {
        name: [one.job_id for place, one in enumerate(receipts) if names[place % len(names)] == name] for name in names
    }
    hands = [Hand(app_factory(), f"w{n}") for n in range(3)]
    ran: list[tuple[str | None, int]] = []  # list.append is atomic; a job's entry is made before it is settled

    def work(number: int) -> None:
        hand = hands[number]
        while rows(app, "jobs"):
            for job in hand.claim(16):
                running = rows(app, "jobs", "status = 'running' AND group_key = :group", group=job.group_key)
                assert [one["id"] for one in running] == [job.id]
                ran.append((job.group_key, job.id))
                hand.settle((job, Done()))

    at_once(len(hands), work)
    assert {name: [job for group, job in ran if group == name] for name in names} == expected


def test_every_group_of_many_gets_its_turn(app: Effects) -> None:
    count = PROBES_PER_ROUND * 2 + 5
    enqueue_many([grouped(f"g{n:04}") for n in range(count)], effects=app)
    hand = Hand(app)
    seen: set[str | None] = set()
    for _ in range(6):
        seen |= {job.group_key for job in hand.claim()}
    assert len(seen) == count


@pytest.mark.parametrize("ending", [GivenBack(), Retry("busy", after_seconds=0.0)], ids=["given back", "retry"])
def test_a_head_that_went_back_is_the_head_again(app: Effects, ending: Any) -> None:
    first, _ = enqueue_many([grouped(), grouped()], effects=app)
    hand = Hand(app)
    hand.settle((hand.claim_one(), ending))
    app.store.shift_clock(60)
    assert hand.claim_one().id == first.job_id


def test_a_group_named_by_a_plain_insert_runs(app: Effects) -> None:
    run_sql(app, "INSERT INTO effects_jobs (job_type, payload, group_key) VALUES ('scripted', '{}', 'sql')")
    run_sql(app, "INSERT INTO effects_jobs (job_type, payload, group_key) VALUES ('scripted', '{}', 'sql')")
    hand = Hand(app)
    for _ in range(2):
        [job] = hand.claim()
        assert job.group_key == "sql"
        hand.settle((job, Done()))


def test_a_plain_insert_runs_in_the_group_where_its_type_places_it(app: Effects) -> None:
    run_sql(app, """INSERT INTO effects_jobs (job_type, payload) VALUES ('scripted', '{"group": "g"}')""")
    hand = Hand(app)
    job = hand.claim_one()
    hand.settle((job, Unready(queue="default", priority=5, group_key="g", limit_key=None)))
    again = hand.claim_one()
    assert (again.id, again.group_key, again.prepared, again.attempts) == (job.id, "g", True, 1)
