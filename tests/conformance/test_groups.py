"""`group_key`: strict order, one in flight, whatever the callers' transactions do."""

from __future__ import annotations

import threading
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from sqlalchemy.orm import Session

from effects import Done, Effects, NewJob, Refused, Retry, enqueue, enqueue_many
from effects.kit import crashpoints
from effects.model.settlement import Returned, Unrouted
from effects.store.claim.claim import PROBES_PER_ROUND, Claimed
from effects.worker import Worker
from tests.conftest import AppFactory
from tests.support.manual_workers import ManualWorker, rows, run_sql
from tests.support.threads import at_once
from tests.support.waiting import wait_until


def grouped(group: str = "g", **options: Any) -> NewJob:
    return NewJob(job_type="scripted", payload={}, group_key=group, **options)


def test_a_group_runs_one_at_a_time_in_its_order(app: Effects) -> None:
    receipts = enqueue_many([grouped() for _ in range(5)], effects=app)
    manual_worker = ManualWorker(app)
    ran = []
    for _ in receipts:
        job = manual_worker.claim_one()
        assert manual_worker.claim() == []
        manual_worker.settle((job, Done()))
        ran.append(job.id)
    assert ran == [receipt.job_id for receipt in receipts]


def test_priority_and_due_time_do_not_reorder_a_group(app: Effects) -> None:
    soon = datetime.now(UTC) + timedelta(minutes=10)
    first, second = enqueue_many([grouped(run_at=soon, priority=9), grouped(priority=0)], effects=app)
    manual_worker = ManualWorker(app)
    assert manual_worker.claim() == []
    app.store.shift_clock(601)
    assert manual_worker.claim_one().id == first.job_id
    assert manual_worker.claim() == []
    assert second.job_id > first.job_id


def test_a_failed_group_head_holds_its_group_until_it_ends(app: Effects) -> None:
    first, second = enqueue_many([grouped(), grouped()], effects=app)
    manual_worker = ManualWorker(app)
    manual_worker.settle((manual_worker.claim_one(), Retry("busy", after_seconds=100)))
    assert manual_worker.claim() == []
    app.store.shift_clock(101)
    job = manual_worker.claim_one()
    assert job.id == first.job_id
    manual_worker.settle((job, Refused("no")))
    assert manual_worker.claim_one().id == second.job_id


def test_a_blocked_group_waits_and_others_do_not(app: Effects) -> None:
    enqueue_many([grouped("blocked"), grouped("open")], effects=app)
    run_sql(app, "UPDATE effects_job_groups SET blocked = true WHERE group_key = 'blocked'")
    manual_worker = ManualWorker(app)
    assert [job.group_key for job in manual_worker.claim()] == ["open"]
    run_sql(app, "UPDATE effects_job_groups SET blocked = false")
    assert [job.group_key for job in manual_worker.claim()] == ["blocked"]


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
    manual_worker = ManualWorker(app)
    heads = {job.id for job in manual_worker.claim()}
    assert first.job_id in heads
    assert second_receipts[0].job_id not in heads


def waiting_for_locks(app: Effects) -> int:
    waiting = "FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()"
    with app.engine.connect() as connection:
        return int(connection.exec_driver_sql(f"SELECT count(*) {waiting}").scalar_one())


def test_a_rolled_back_first_job_leaves_the_group_to_the_second(app: Effects) -> None:
    with Session(app.engine) as session:
        enqueue("scripted", {}, group_key="g", session=session, effects=app)
        session.rollback()
    receipt = enqueue("scripted", {}, group_key="g", effects=app)
    assert ManualWorker(app).claim_one().id == receipt.job_id


@pytest.mark.slow
def test_many_workers_keep_the_order_of_many_groups(app: Effects, app_factory: AppFactory) -> None:
    names = [f"g{n}" for n in range(6)]
    receipts = enqueue_many([grouped(names[n % len(names)]) for n in range(120)], effects=app)
    expected = {
        name: [receipt.job_id for place, receipt in enumerate(receipts) if names[place % len(names)] == name]
        for name in names
    }
    manual_workers = [ManualWorker(app_factory(), f"w{n}") for n in range(3)]
    ran: list[tuple[str | None, int]] = []  # list.append is atomic; a job's entry is made before it is settled

    def work(number: int) -> None:
        manual_worker = manual_workers[number]
        while rows(app, "jobs"):
            for job in manual_worker.claim(16):
                running = rows(app, "jobs", "status = 'running' AND group_key = :group", group=job.group_key)
                assert [job_row["id"] for job_row in running] == [job.id]
                ran.append((job.group_key, job.id))
                manual_worker.settle((job, Done()))

    at_once(len(manual_workers), work)
    assert {name: [job for group, job in ran if group == name] for name in names} == expected


def test_every_group_of_many_gets_its_turn(app: Effects) -> None:
    count = PROBES_PER_ROUND * 2 + 5
    enqueue_many([grouped(f"g{n:04}") for n in range(count)], effects=app)
    manual_worker = ManualWorker(app)
    seen: set[str | None] = set()
    for _ in range(6):
        seen |= {job.group_key for job in manual_worker.claim()}
    assert len(seen) == count


@pytest.mark.parametrize("ending", [Returned(), Retry("busy", after_seconds=0.0)], ids=["given back", "retry"])
def test_a_returned_group_head_is_the_head_again(app: Effects, ending: Any) -> None:
    first, _ = enqueue_many([grouped(), grouped()], effects=app)
    manual_worker = ManualWorker(app)
    manual_worker.settle((manual_worker.claim_one(), ending))
    app.store.shift_clock(60)
    assert manual_worker.claim_one().id == first.job_id


def test_a_group_named_by_a_plain_insert_runs(app: Effects) -> None:
    run_sql(app, "INSERT INTO effects_jobs (job_type, payload, group_key) VALUES ('scripted', '{}', 'sql')")
    run_sql(app, "INSERT INTO effects_jobs (job_type, payload, group_key) VALUES ('scripted', '{}', 'sql')")
    manual_worker = ManualWorker(app)
    for _ in range(2):
        [job] = manual_worker.claim()
        assert job.group_key == "sql"
        manual_worker.settle((job, Done()))


def test_a_plain_insert_runs_in_the_group_of_its_routing(app: Effects) -> None:
    run_sql(app, """INSERT INTO effects_jobs (job_type, payload) VALUES ('scripted', '{"group": "g"}')""")
    manual_worker = ManualWorker(app)
    job = manual_worker.claim_one()
    manual_worker.settle((job, Unrouted(queue="default", priority=5, group_key="g", limit_key=None)))
    again = manual_worker.claim_one()
    assert (again.id, again.group_key, again.routed, again.attempts) == (job.id, "g", True, 1)


# -- beside what enqueuers, operators and other claims hold -----------------------------------------------


def plain_insert(app: Effects, group: str = "g", **columns: object) -> None:
    """What another program writes."""
    names = "".join(f", {name}" for name in columns)
    values = "".join(f", {value}" for value in columns.values())
    into = f"INSERT INTO effects_jobs (job_type, routed, group_key{names})"
    run_sql(app, f"{into} VALUES ('scripted', true, '{group}'{values})")


@pytest.mark.parametrize("database_url", ["postgresql"], indirect=True)
def test_a_claim_needs_nothing_that_enqueuers_hold(app: Effects) -> None:
    """Of a group into which some transaction is always enqueuing, the jobs run all the same, in the order of commit."""
    manual_worker = ManualWorker(app)
    expected, ran = [enqueue("scripted", {}, group_key="g", effects=app).job_id], []
    for _ in range(5):
        with Session(app.engine) as session, session.begin():
            expected.append(enqueue("scripted", {}, group_key="g", session=session, effects=app).job_id)
            job = manual_worker.claim_one()
            assert manual_worker.claim() == []  # neither the running one again nor the one that is not committed
            manual_worker.settle((job, Done()))
            assert manual_worker.claim() == []
            ran.append(job.id)
    assert ran == expected[:-1] == sorted(ran)


@pytest.mark.parametrize("older", ["due", "not due", "expired"])
def test_a_running_job_of_a_group_blocks_an_older_one(app: Effects, older: str) -> None:
    """A lower id may become visible later: another program's transaction committed late, or its job type placed it."""
    columns: dict[str, dict[str, object]] = {
        "due": {"id": 5},
        "not due": {"id": 5, "run_at": app.store.sql.after("60")},
        "expired": {"id": 5, "expires_at": app.store.sql.after("-60")},
    }
    plain_insert(app, id=7)
    manual_worker = ManualWorker(app)
    running = manual_worker.claim_one()
    plain_insert(app, **columns[older])
    app.store.shift_clock(61)
    for _ in range(3):
        assert manual_worker.claim() == []
    manual_worker.settle((running, Done()))
    assert manual_worker.claim_one().id == 5


@pytest.mark.parametrize("database_url", ["postgresql"], indirect=True)
def test_two_claims_that_see_different_group_heads_raise_no_error(app: Effects, app_factory: AppFactory) -> None:
    """The unique index decides; the claim that came second looks again, and its other jobs are not lost to it."""
    plain_insert(app, id=7)
    leased, go_on = threading.Event(), threading.Event()

    def stop_before_commit(name: str) -> None:
        if name == "claim.before_commit" and threading.current_thread().name == "first":
            leased.set()
            go_on.wait(30)

    crashpoints.install(stop_before_commit)
    claimed: dict[str, Claimed] = {}
    manual_workers = {name: ManualWorker(app_factory(), name) for name in ("first", "second")}
    for manual_worker in manual_workers.values():
        manual_worker.request.keyed = True  # so that each round is one transaction
    threads = {
        name: threading.Thread(
            target=lambda name=name: claimed.update({name: manual_workers[name].claim_round()}), name=name
        )
        for name in manual_workers
    }
    threads["first"].start()
    assert leased.wait(30)
    plain_insert(app, id=5)
    plain_insert(app, "h", id=9)
    threads["second"].start()
    wait_until(lambda: waiting_for_locks(app) == 1)  # on the first's entry in the index
    go_on.set()
    for thread in threads.values():
        thread.join(30)
    assert [job.id for job in claimed["first"].jobs] == [7]
    assert (claimed["second"].jobs, claimed["second"].more) == ([], True)
    assert [job.id for job in manual_workers["second"].claim()] == [9]


WAITING = {
    "not due": "UPDATE effects_jobs SET run_at = {later}",
    "another queue": "UPDATE effects_jobs SET queue = 'other'",
    "another job type": "UPDATE effects_jobs SET job_type = 'other'",
    "blocked": "UPDATE effects_job_groups SET blocked = true",
    "behind a job that waits": "UPDATE effects_jobs SET run_at = {later} WHERE id % 2 = 1",
    "behind a job that runs": "UPDATE effects_jobs SET status = 'running', locked_by = 'w', locked_until = {later}, "
    "started_at = {later} WHERE id % 2 = 1",
}


@pytest.mark.parametrize("database_url", ["postgresql"], indirect=True)
@pytest.mark.parametrize("state", WAITING)
@pytest.mark.parametrize("limit", [None, "l"])
def test_waiting_jobs_are_not_locked(app: Effects, state: str, limit: str | None) -> None:
    """A lock is written into the row that it is on, and so into the database's log; an idle worker writes nothing."""
    run_sql(app, "INSERT INTO effects_job_groups (group_key) SELECT 'g' || i FROM generate_series(1, 5) AS i")
    run_sql(app, "INSERT INTO effects_limits (limit_key, max_in_flight) VALUES ('l', 1000)")
    columns = "id, job_type, routed, group_key, limit_key"
    values = "2 * i + n, 'scripted', true, 'g' || i, :limit FROM generate_series(1, 5) AS i, generate_series(1, 2) AS n"
    run_sql(app, f"INSERT INTO effects_jobs ({columns}) SELECT {values}", limit=limit)
    run_sql(app, WAITING[state].format(later=app.store.sql.after("3600")))
    manual_worker = ManualWorker(app)

    def touched() -> list[str]:
        tables = ("effects_jobs", "effects_job_groups", "effects_limits")
        with app.store.read() as connection:
            return [
                str(versions)
                for table in tables
                for versions in connection.exec_driver_sql(f"SELECT ctid, xmin, xmax FROM {table} ORDER BY 1").all()
            ]

    before = touched()
    for _ in range(3):
        assert manual_worker.claim() == []
    assert touched() == before


@pytest.mark.parametrize("database_url", ["postgresql"], indirect=True)
def test_a_limited_job_that_is_not_due_locks_no_limit(app: Effects) -> None:
    run_sql(app, "INSERT INTO effects_limits (limit_key, max_in_flight) VALUES ('l', 1)")
    later = datetime.now(UTC) + timedelta(hours=1)
    enqueue("scripted", {}, limit_key="l", run_at=later, effects=app)
    manual_worker = ManualWorker(app)
    for _ in range(3):
        assert manual_worker.claim() == []
    with app.store.read() as connection:
        assert connection.exec_driver_sql("SELECT xmax::text FROM effects_limits").scalar_one() == "0"


def test_a_job_falling_due_is_found_among_many_waiting_groups(app: Effects) -> None:
    """At once, in the first round, though the scan of the groups comes to it last."""
    later = datetime.now(UTC) + timedelta(days=1)
    waiting = [grouped(f"a{n:04}", run_at=when) for n in range(PROBES_PER_ROUND * 2) for when in (later, None)]
    enqueue_many(waiting, effects=app)
    manual_worker = ManualWorker(app)
    assert manual_worker.claim() == []
    receipt = enqueue("scripted", {}, group_key="z", effects=app)
    assert [job.id for job in manual_worker.claim()] == [receipt.job_id]


def test_an_older_job_is_found_among_many_waiting_groups(app: Effects) -> None:
    """What fell due long ago is found by the scan, and by the hint of whoever settled the one before it."""
    earlier, later = (datetime.now(UTC) + timedelta(days=days) for days in (-1, 1))
    enqueue_many([grouped("z", run_at=earlier), grouped("z", run_at=earlier)], effects=app)
    waiting = [grouped(f"a{n:04}", run_at=when) for n in range(PROBES_PER_ROUND * 2) for when in (later, None)]
    enqueue_many(waiting, effects=app)
    manual_worker = ManualWorker(app)
    rounds = [manual_worker.claim_round() for _ in range(3)]
    assert [len(claimed.jobs) for claimed in rounds] == [0, 0, 1]
    assert [claimed.unseen for claimed in rounds] == [True, True, False]
    manual_worker.settle((rounds[-1].jobs[0], Done()))
    manual_worker.request.moved.append("z")
    assert [job.group_key for job in manual_worker.claim()] == ["z"]


def test_a_drain_ends_behind_many_waiting_groups(app: Effects) -> None:
    later = datetime.now(UTC) + timedelta(days=1)
    waiting = [grouped(f"a{n:04}", run_at=when) for n in range(PROBES_PER_ROUND * 2) for when in (later, None)]
    last = enqueue_many([*waiting, grouped("z"), grouped("z")], effects=app)[-2:]
    run_sql(app, f"UPDATE effects_jobs SET run_at = {app.store.sql.after('-86400')} WHERE group_key = 'z'")
    result = Worker(app).drain(60)
    assert (result.finished, result.counts) == (True, {"succeeded": 2})
    assert {job["id"] for job in rows(app, "job_history")} == {receipt.job_id for receipt in last}
