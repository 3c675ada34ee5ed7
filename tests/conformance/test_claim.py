"""Claim: who gets which job, in which order, and never two of them the same."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from effects import Done, Effects, Job, NewJob, enqueue, enqueue_many
from effects.store.claim.claim import claim, quiet_queues
from effects.store.claim.lease import CLAIM_MAX, ClaimRequest
from effects.store.db.sql import TOKEN_STEP_MAX
from effects.store.limits import queue_pauses
from tests.conftest import AppFactory
from tests.support.manual_workers import ManualWorker, row, rows, run_sql
from tests.support.query_plans import blocks_read, recorded
from tests.support.scripted import Scripted
from tests.support.threads import at_once

NAMED_QUEUES = ("slow", "b", "nobody-serves-this")

PARSED_ONCE_MAX = 4096  # characters


def new(**options: Any) -> NewJob:
    return NewJob(job_type="scripted", payload=options.pop("payload", {}), **options)


def ids(jobs: list[Job]) -> list[int]:
    return [job.id for job in jobs]


def test_a_claim_records_worker_and_lease(app: Effects) -> None:
    enqueue("scripted", {}, effects=app)
    job = ManualWorker(app, "w1").claim_one()
    claimed = row(app, "jobs")
    assert (claimed["status"], claimed["attempts"], claimed["lease_token"]) == ("running", 1, job.lease_token)
    assert (job.attempts, claimed["locked_by"]) == (1, "w1")
    assert 1 <= job.lease_token <= TOKEN_STEP_MAX
    sql = app.store.sql
    assert rows(app, "jobs", f"locked_until > {sql.after('50')} AND locked_until < {sql.after('70')}")


def test_the_deadline_follows_the_job_type(app_factory: AppFactory) -> None:
    app = app_factory(job_types=[Scripted("short"), Scripted("long", time_limit_seconds=3600.0)])
    enqueue("short", {}, effects=app)
    enqueue("long", {}, effects=app)
    assert len(ManualWorker(app).claim()) == 2
    [job] = rows(app, "jobs", f"locked_until > {app.store.sql.after('3500')}")
    assert job["job_type"] == "long"


@pytest.mark.parametrize("keys", [{}, {"limit_key": "l"}], ids=["plain", "limited"])
def test_the_order_is_priority_then_due_time_then_id(app: Effects, keys: dict[str, str]) -> None:
    now = datetime.now(UTC)
    expected = [(1, 30), (1, 20), (5, 90), (5, 50), (5, 50), (9, 99)]
    shuffled = [expected[place] for place in (5, 3, 4, 2, 1, 0)]
    receipts = enqueue_many(
        [new(priority=p, run_at=now - timedelta(seconds=age), **keys) for p, age in shuffled], effects=app
    )
    by_place = dict(zip((5, 3, 4, 2, 1, 0), receipts, strict=True))
    manual_worker = ManualWorker(app)
    claimed = [manual_worker.claim_one().id for _ in expected]
    assert claimed == [by_place[place].job_id for place in range(len(expected))]


def test_one_batch_comes_in_that_order_too(app: Effects) -> None:
    receipts = enqueue_many(
        [
            new(priority=priority, limit_key=key)
            for priority, key in [(9, None), (5, "a"), (5, None), (1, "b"), (0, None)]
        ],
        effects=app,
    )
    expected = [receipts[place].job_id for place in (4, 3, 1, 2, 0)]
    assert ids(ManualWorker(app).claim(16)) == expected


def test_a_scheduled_job_is_not_claimed_early(app: Effects) -> None:
    soon = datetime.now(UTC) + timedelta(hours=1)
    enqueue_many([new(run_at=soon), new(run_at=soon, limit_key="l"), new(run_at=soon, group_key="g")], effects=app)
    manual_worker = ManualWorker(app)
    assert manual_worker.claim() == []
    app.store.shift_clock(3601)
    assert len(manual_worker.claim()) == 3


def test_a_claim_takes_jobs_of_its_queue_only(app: Effects) -> None:
    keys: list[dict[str, str]] = [{}, {"limit_key": "l"}, {"group_key": "g"}]
    receipts = enqueue_many([new(queue="slow", **key) for key in keys], effects=app)
    manual_worker = ManualWorker(app)
    assert manual_worker.claim() == []
    assert sorted(ids(manual_worker.claim(queue="slow"))) == [receipt.job_id for receipt in receipts]


def test_only_known_job_types_are_claimed(app: Effects, app_factory: AppFactory) -> None:
    for keys in ("NULL, NULL", "'l', NULL"):
        into = "INSERT INTO effects_jobs (job_type, payload, limit_key, group_key)"
        run_sql(app, f"{into} VALUES ('other', '{{}}', {keys})")
    receipt = enqueue("scripted", {}, effects=app)
    assert ids(ManualWorker(app).claim()) == [receipt.job_id]
    second_app = app_factory(job_types=[Scripted("other")])
    assert len(ManualWorker(second_app, "w2").claim()) == 2


@pytest.mark.parametrize(("want", "least", "most"), [(1, 1, 1), (3, 1, 3), (20, 16, 20), (9999, 300, 300)])
def test_a_claim_takes_at_most_what_it_wants(app: Effects, want: int, least: int, most: int) -> None:
    enqueue_many([new() for _ in range(300)], effects=app)
    assert least <= len(ManualWorker(app).claim(want)) <= most
    assert most <= CLAIM_MAX


def test_an_expired_job_is_flagged(app: Effects) -> None:
    moment = datetime.now(UTC)
    late = enqueue("scripted", {}, expires_at=moment - timedelta(seconds=5), effects=app)
    fresh = enqueue("scripted", {}, expires_at=moment + timedelta(hours=1), effects=app)
    claimed = {job.id: job.expired for job in ManualWorker(app).claim()}
    assert claimed == {late.job_id: True, fresh.job_id: False}


def test_age_counts_from_the_moment_the_job_fell_due(app: Effects) -> None:
    enqueue("scripted", {}, run_at=datetime.now(UTC) + timedelta(hours=1), effects=app)
    app.store.shift_clock(3600 + 50)
    assert 49 <= ManualWorker(app).claim_one().age_seconds < 70


# -- at once -------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_concurrent_claims_never_share_a_job(app: Effects, app_factory: AppFactory) -> None:
    kinds: list[dict[str, Any]] = [
        {}, {"priority": 1}, {"limit_key": "a"}, {"limit_key": "b"}, {"group_key": "g"},
    ]  # fmt: skip
    receipts = enqueue_many([new(**kinds[n % len(kinds)]) for n in range(1000)], effects=app)
    manual_workers = [ManualWorker(app_factory(), f"w{n}") for n in range(4)]
    claimed: list[list[Job]] = [[] for _ in manual_workers]

    def work(number: int) -> None:
        misses = 0
        while misses < 3:
            jobs = manual_workers[number].claim((3, 16, 64, 7)[number])
            misses = 0 if jobs else misses + 1
            claimed[number].extend(jobs)

    at_once(len(manual_workers), work)
    everyone = [job for jobs in claimed for job in jobs]
    assert len({job.id for job in everyone}) == len(everyone)
    assert len({job.lease_token for job in everyone}) == len(everyone)  # each row draws its own step
    assert sum(job.group_key == "g" for job in everyone) == 1
    assert len(everyone) == len(receipts) - 199  # all but those of the group behind its head
    for number, jobs in enumerate(claimed):
        held = rows(app, "jobs", "locked_by = :worker AND status = 'running'", worker=f"w{number}")
        assert [job["id"] for job in held] == sorted(ids(jobs))


def test_a_job_of_an_unknown_queue_waits(app: Effects) -> None:
    enqueue("scripted", {}, queue="nobody-serves-this", effects=app)
    request = ClaimRequest("default", {"scripted": 60.0})
    assert claim(app.store, request, "w1", 10).jobs == []


POLLED: list[dict[str, Any]] = [
    {},
    {"priority": 9},
    {"limit_key": "k"},
    {"group_key": "g"},
    {"run_at": datetime(2999, 1, 1, tzinfo=UTC)},
]


@pytest.mark.parametrize("options", POLLED, ids=["plain", "priority", "limit", "group", "later"])
def test_a_poll_finds_what_a_notified_claim_finds(app: Effects, options: dict[str, Any]) -> None:
    enqueue_many([new(**options)], effects=app)
    worker = ManualWorker(app)
    claims = []
    for polled in (True, False):
        worker.request = worker.request_of("default")
        worker.request.polled = polled
        claimed = worker.claim()
        claims.append((len(claimed), worker.request.keyed))
        assert not worker.request.polled
        run_sql(app, "UPDATE effects_jobs SET status = 'queued', locked_by = NULL")
    assert claims[0] == claims[1]
    assert claims[0][0] == int("run_at" not in options)


@pytest.mark.parametrize("options", POLLED, ids=["plain", "priority", "limit", "group", "later"])
def test_one_poll_of_many_queues_finds_the_same_as_one_of_each(app: Effects, options: dict[str, Any]) -> None:
    enqueue_many([new(queue="b", **options)], effects=app)
    worker = ManualWorker(app)
    requests = [worker.request_of(queue) for queue in ("a", "b", "c")]
    with recorded(app) as statements:
        quiet = quiet_queues(app.store, requests)
    keyed = bool({"limit_key", "group_key"} & set(options))
    assert quiet == ({"a", "b", "c"} if "run_at" in options else {"a", "c"})
    assert [request.keyed for request in requests] == [False, keyed, False]
    [(statement, _)] = statements
    assert len(statement) <= PARSED_ONCE_MAX, "psycopg parses a longer one each time again"


def test_a_paused_queue_is_not_reported_as_due(app: Effects) -> None:
    enqueue_many([new()], effects=app)
    with app.store.begin() as connection:
        queue_pauses.pause(app.store, connection, "default", actor="test", reason="test")
    assert quiet_queues(app.store, [ManualWorker(app).request_of("default")]) == {"default"}


def test_a_poll_of_an_empty_queue_is_one_statement_that_locks_nothing(app: Effects) -> None:
    worker = ManualWorker(app)
    worker.request.polled = True
    with recorded(app) as statements:
        assert worker.claim() == []
    [(statement, _)] = statements
    assert "UPDATE" not in statement


def test_a_claim_that_took_all_it_could_is_followed_by_one_that_does_not_look(app: Effects) -> None:
    enqueue_many([new() for _ in range(3)], effects=app)
    worker = ManualWorker(app)
    worker.request.polled = True
    statements = []
    for want in (1, 1, 4):
        with recorded(app) as said:
            assert len(worker.claim(want)) == 1
        statements.append(len(said))
    looks = statements[0] - statements[1]
    assert looks == 1
    assert statements[2] == statements[1]


def test_a_claim_that_found_too_little_is_followed_by_a_look_again(app: Effects) -> None:
    enqueue_many([new()], effects=app)
    worker = ManualWorker(app)
    assert len(worker.claim(4)) == 1
    worker.request.polled = True
    with recorded(app) as statements:
        assert worker.claim() == []
    assert len(statements) == 1


def test_a_claim_from_the_floors_passes_over_what_lies_before_them_but_no_priority(app: Effects) -> None:
    manual_worker = ManualWorker(app)
    now = datetime.now(UTC)
    first = enqueue("scripted", {}, effects=app)
    assert ids(manual_worker.claim()) == [first.job_id]
    minute_ago = now - timedelta(seconds=60)
    hindmost, urgent, late, old = enqueue_many(
        [new(priority=9, run_at=minute_ago), new(priority=1, run_at=minute_ago), new(run_at=now - timedelta(seconds=1)),
         new(run_at=minute_ago)], effects=app,
    )  # fmt: skip
    behind = enqueue("scripted", {}, effects=app)
    manual_worker.request.from_floors = True
    jobs = ids(manual_worker.claim())
    passed_over = [old.job_id] if app.store.is_postgresql else []
    assert jobs == [job.job_id for job in (urgent, old, late, behind, hindmost) if job.job_id not in passed_over]
    manual_worker.request.from_floors = False
    assert ids(manual_worker.claim()) == passed_over


def test_a_claim_from_the_floors_sees_pauses_and_keys(app: Effects) -> None:
    manual_worker = ManualWorker(app)
    enqueue("scripted", {}, effects=app)
    manual_worker.claim()
    plain = enqueue("scripted", {}, effects=app)
    with app.store.begin() as connection:
        queue_pauses.pause(app.store, connection, "default", actor="cli:ann")
    manual_worker.request.from_floors = True
    assert manual_worker.claim() == []
    with app.store.begin() as connection:
        queue_pauses.resume(app.store, connection, "default", actor="cli:ann")
    limited = enqueue("scripted", {}, limit_key="l", effects=app)
    manual_worker.request.from_floors = True
    assert ids(manual_worker.claim()) == [plain.job_id, limited.job_id]


@pytest.mark.parametrize("database_url", ["postgresql"], indirect=True)
def test_a_claim_from_the_floors_does_not_read_what_a_held_snapshot_keeps(app: Effects) -> None:
    manual_worker = ManualWorker(app)
    run_sql(app, "ALTER TABLE effects_jobs SET (autovacuum_enabled = false)")
    with app.engine.connect().execution_options(isolation_level="REPEATABLE READ") as reader:
        reader.exec_driver_sql("SELECT 1 FROM effects_jobs")
        hour_ago = datetime.now(UTC) - timedelta(hours=1)
        for _ in range(4):
            enqueue_many([new(run_at=hour_ago) for _ in range(512)], effects=app)
            manual_worker.settle(*((job, Done()) for job in manual_worker.claim()))
        enqueue_many([new() for _ in range(4)], effects=app)
        manual_worker.request.floors[5] = datetime.now(UTC).timestamp()
        blocks = []
        for from_floors in (True, False):
            manual_worker.request.from_floors = from_floors
            with recorded(app) as statements:
                assert len(manual_worker.claim(1)) == 1
            blocks.append(blocks_read(app, statements[:1]))
    assert 0 < blocks[0] < 100 < blocks[1], blocks
