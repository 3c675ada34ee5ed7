"""Enqueue: a row of the caller's own transaction, a receipt, and a key that means one effect."""

from __future__ import annotations

import threading
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from sqlalchemy import Connection, create_engine, event
from sqlalchemy.orm import Session
from sqlalchemy.pool import NullPool

from effects import (
    Effects,
    EnqueueError,
    IdempotencyConflict,
    NewJob,
    PayloadInvalid,
    SchemaMismatch,
    UnknownJobType,
    enqueue,
    enqueue_many,
    set_default,
)
from effects.model.outcome import Done
from tests.conftest import AppFactory
from tests.support.manual_workers import ManualWorker, row, rows, run_sql
from tests.support.scripted import EVERY_FIELD, Script, Scripted

NAMED_QUEUES = ("slow", "mine", "placed")


def new(**options: Any) -> NewJob:
    return NewJob(job_type="scripted", payload=options.pop("payload", {}), **options)


@pytest.mark.parametrize(
    "options",
    [{}, {"limit_key": "shop"}, {"key": "order:1"}, {"group_key": "orders"}, {"delay": 5}, EVERY_FIELD],
    ids=["plain", "limited", "keyed", "grouped", "delayed", "every field"],
)
def test_it_is_one_statement_of_the_callers_transaction(app: Effects, options: dict[str, Any]) -> None:
    """On SQLite, with no round trips to save, the key's row and the group's are written by one each."""
    allowed = 1 if app.store.is_postgresql else 1 + ("key" in options) + ("group_key" in options)
    with Session(app.engine) as session:
        session.connection()
        statements: list[str] = []
        event.listen(app.engine, "before_cursor_execute", lambda *arguments: statements.append(arguments[2]))
        enqueue("scripted", {}, session=session, effects=app, **options)
        assert len(statements) == allowed, statements
        session.commit()
    assert row(app, "jobs")


def test_a_single_job_is_written_as_one_of_many(app: Effects) -> None:
    payload = {"name": "50 % of \N{SNOWMAN}, :all and 'quoted'"}
    for options in ({}, EVERY_FIELD):
        arguments = {**options, "key": "another"} if "key" in options else options
        enqueue("scripted", payload, effects=app, **arguments)
        enqueue_many([new(payload=payload, **options), new()], effects=app)
    written = rows(app, "jobs")
    own = ("id", "idempotency_key", "run_at", "age_from", "created_at", "updated_at")
    plain, _, _, full, batched, _ = written
    assert [{**job, **dict.fromkeys(own)} for job in (plain, full)] == [
        {**job, **dict.fromkeys(own)} for job in (written[1], batched)
    ]
    assert (full["run_at"], full["age_from"], full["expires_at"]) == (
        batched["run_at"], batched["age_from"], batched["expires_at"],
    )  # fmt: skip


def test_a_receipt_names_the_row(app: Effects) -> None:
    receipt = enqueue("scripted", Script(name="a"), effects=app)
    written = row(app, "jobs")
    assert (receipt.job_id, receipt.job_type, receipt.key, receipt.existing) == (
        written["id"], "scripted", None, False,
    )  # fmt: skip
    assert (written["status"], written["attempts"], written["queue"]) == ("queued", 0, "default")


def test_the_default_app_is_used_when_none_is_given(app: Effects) -> None:
    set_default(app)
    receipt = enqueue("scripted", {})
    assert row(app, "jobs")["id"] == receipt.job_id


def test_options_of_a_job_reach_its_row(app: Effects) -> None:
    tomorrow = datetime.now(UTC) + timedelta(days=1)
    enqueue(
        "scripted", {}, queue="slow", priority=-7, max_attempts=3, run_at=tomorrow, expires_at=tomorrow,
        group_key="g", limit_key="l", trace_context="00-aa-bb-01", key="k", effects=app,
    )  # fmt: skip
    written = row(app, "jobs")
    expected = {"queue": "slow", "priority": -7, "max_attempts": 3, "group_key": "g", "limit_key": "l"}
    assert {name: written[name] for name in expected} == expected
    assert (written["trace_context"], written["idempotency_key"]) == ("00-aa-bb-01", "k")
    assert written["run_at"] == written["expires_at"]
    [job] = rows(app, "jobs", f"run_at > {app.store.sql.after('86000')}")
    assert job["id"] == written["id"]


def test_the_job_type_routes_what_its_caller_did_not(app: Effects) -> None:
    payload = {"queue": "placed", "group": "g", "limit": "l"}
    enqueue("scripted", payload, effects=app)
    enqueue("scripted", payload, queue="mine", group_key="mine", limit_key="mine", effects=app)
    placed = [(job["queue"], job["group_key"], job["limit_key"]) for job in rows(app, "jobs")]
    assert placed == [("placed", "g", "l"), ("mine", "mine", "mine")]


def test_many_jobs_give_a_receipt_each_in_their_order(app: Effects) -> None:
    receipts = enqueue_many([new(payload={"name": str(n)}) for n in range(2345)], effects=app)
    ids = [receipt.job_id for receipt in receipts]
    assert ids == sorted(set(ids))
    assert [job["id"] for job in rows(app, "jobs")] == ids
    jobs = ManualWorker(app).claim(100)
    assert [app.job_types.get("scripted").decode(job.payload).name for job in jobs[:3]] == ["0", "1", "2"]


def test_an_empty_list_of_jobs_does_nothing(app: Effects) -> None:
    assert enqueue_many([], effects=app) == []


# -- the caller's transaction ----------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["session", "connection"])
@pytest.mark.parametrize("ends", ["commit", "rollback"])
def test_the_callers_transaction_decides(app: Effects, kind: str, ends: str) -> None:
    with app.engine.connect() as connection:
        target = Session(bind=connection) if kind == "session" else connection
        enqueue("scripted", {}, key="k", session=target, effects=app)
        enqueue_many([new(key="k2"), new(group_key="g")], session=target, effects=app)
        assert connection.in_transaction()
        getattr(target, ends)()
    count = 3 if ends == "commit" else 0
    assert len(rows(app, "jobs")) == count
    assert len(rows(app, "effect_ledger")) == (2 if count else 0)


def test_a_rolled_back_savepoint_leaves_nothing_and_the_rest_stays(app: Effects) -> None:
    with Session(app.engine) as session, session.begin():
        enqueue("scripted", {}, key="kept", session=session, effects=app)
        savepoint = session.begin_nested()
        enqueue("scripted", {}, key="gone", session=session, effects=app)
        savepoint.rollback()
    assert [job["idempotency_key"] for job in rows(app, "jobs")] == ["kept"]
    assert [entry["key"] for entry in rows(app, "effect_ledger")] == ["kept"]
    assert not enqueue("scripted", {}, key="gone", effects=app).existing


def test_a_worker_sees_nothing_before_the_commit(app: Effects, app_factory: AppFactory) -> None:
    reader = app_factory()
    manual_worker = ManualWorker(reader)
    with app.engine.begin() as connection:
        enqueue("scripted", {}, session=connection, effects=app)
        assert rows(reader, "jobs") == []
        if app.store.is_postgresql:  # on SQLite, which has one writer, a claim would wait here
            assert manual_worker.claim() == []
    assert len(manual_worker.claim()) == 1


class ForeignSession:
    """Of another library."""


def test_an_invalid_session_is_refused_with_advice(app: Effects) -> None:
    with pytest.raises(EnqueueError, match=r"session is a .*ForeignSession; pass a SQLAlchemy Session"):
        enqueue("scripted", {}, session=ForeignSession(), effects=app)  # type: ignore[arg-type]
    assert rows(app, "jobs") == []


def test_a_database_without_tables_names_the_command(empty_database_url: str) -> None:
    app = Effects(empty_database_url, job_types=[Scripted()])
    with pytest.raises(SchemaMismatch, match=r"run `effects .*init`"):
        enqueue("scripted", {}, effects=app)
    app.dispose()


# -- idempotency -----------------------------------------------------------------------------------


def test_the_same_key_again_gives_the_first_receipt(app: Effects) -> None:
    first = enqueue("scripted", {"name": "x", "moves": ["done"]}, key="k", effects=app)
    again = enqueue("scripted", {"moves": ["done"], "name": "x"}, key="k", effects=app)
    assert (again.job_id, again.existing) == (first.job_id, True)
    assert len(rows(app, "jobs")) == 1


def test_the_key_outlives_its_job(app: Effects) -> None:
    first = enqueue("scripted", {}, key="k", effects=app)
    manual_worker = ManualWorker(app)
    manual_worker.settle((manual_worker.claim_one(), Done()))
    again = enqueue("scripted", {}, key="k", effects=app)
    assert (again.job_id, again.existing) == (first.job_id, True)
    assert rows(app, "jobs") == []


def test_another_payload_under_the_key_is_a_conflict(app: Effects) -> None:
    first = enqueue("scripted", {"name": "x"}, key="k", effects=app)
    with pytest.raises(IdempotencyConflict, match="belongs to job") as caught:
        enqueue("scripted", {"name": "secret"}, key="k", effects=app)
    assert caught.value.job_id == first.job_id
    assert "secret" not in str(caught.value)


def test_a_conflict_in_a_batch_writes_none_of_it_and_leaves_the_callers_work(app: Effects) -> None:
    enqueue("scripted", {"name": "x"}, key="k", effects=app)
    with app.engine.begin() as connection:
        enqueue("scripted", {}, key="mine", session=connection, effects=app)
        with pytest.raises(IdempotencyConflict):
            enqueue_many([new(key="other"), new(key="k", payload={"name": "y"})], session=connection, effects=app)
    assert [job["idempotency_key"] for job in rows(app, "jobs")] == ["k", "mine"]


def test_a_key_twice_in_one_batch_is_one_job(app: Effects) -> None:
    receipts = enqueue_many([new(key="k"), new(), new(key="k")], effects=app)
    assert [receipt.existing for receipt in receipts] == [False, False, True]
    assert receipts[0].job_id == receipts[2].job_id
    assert len(rows(app, "jobs")) == 2


def test_keys_of_two_job_types_are_independent(app_factory: AppFactory) -> None:
    app = app_factory(job_types=[Scripted("one"), Scripted("two")])
    assert not enqueue("one", {"name": "x"}, key="k", effects=app).existing
    assert not enqueue("two", {"name": "y"}, key="k", effects=app).existing


def test_only_one_of_many_callers_with_one_key_enqueues(app: Effects) -> None:
    start = threading.Barrier(8)
    receipts = []

    def call() -> None:
        start.wait(20)
        receipts.append(enqueue("scripted", {}, key="k", effects=app))

    threads = [threading.Thread(target=call) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert len(receipts) == 8
    assert len({receipt.job_id for receipt in receipts}) == 1
    assert [receipt.existing for receipt in receipts].count(False) == 1


# -- what is refused -------------------------------------------------------------------------------

NAIVE = datetime(2026, 11, 21)  # noqa: DTZ001 - that is the point


@pytest.mark.parametrize(
    ("job", "error", "says"),
    [
        (NewJob(job_type="nobody", payload={}), UnknownJobType, "no job type 'nobody'"),
        (new(payload={"moves": 7}), PayloadInvalid, "payload is not valid"),
        (new(payload={"name": "x" * 70_000}), PayloadInvalid, "the limit is 65,536"),
        (new(payload={"name": "a\0b"}), PayloadInvalid, "NUL"),
        (new(key=""), EnqueueError, "key must have 1 to 255"),
        (new(key="k" * 256), EnqueueError, "key must have 1 to 255"),
        (new(key="a\nb"), EnqueueError, "printable"),
        (new(group_key=""), EnqueueError, "group_key must have"),
        (new(limit_key="l" * 256), EnqueueError, "limit_key must have"),
        (new(queue=""), EnqueueError, "queue must have"),
        (new(max_attempts=0), EnqueueError, "max_attempts is 0"),
        (new(priority=40_000), EnqueueError, "priority is 40000"),
        (new(run_at=NAIVE), EnqueueError, "run_at has no time zone"),
        (new(expires_at=NAIVE), EnqueueError, "expires_at has no time zone"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_wrong_job_is_refused_and_none_of_its_batch_is_written(
    app: Effects, job: NewJob, error: type[Exception], says: str
) -> None:
    with pytest.raises(error, match=says):
        enqueue_many([new(), job], effects=app)
    assert rows(app, "jobs") == []


# -- plain SQL -------------------------------------------------------------------------------------


def test_a_plain_insert_is_a_job(app: Effects) -> None:
    run_sql(app, """INSERT INTO effects_jobs (job_type, payload) VALUES ('scripted', '{"name": "sql"}')""")
    job = ManualWorker(app).claim_one()
    assert app.job_types.get("scripted").decode(job.payload) == Script(name="sql")
    assert (job.routed, job.attempts, job.queue, job.expired) == (False, 1, "default", False)


def test_an_enqueued_job_is_routed(app: Effects) -> None:
    enqueue("scripted", {}, effects=app)
    assert ManualWorker(app).claim_one().routed


# -- connections that commit by themselves ---------------------------------------------------------------


def autocommitting(app: Effects, how: str) -> Session | Connection:
    url = app.engine.url
    if how == "engine":
        return Session(create_engine(url, isolation_level="AUTOCOMMIT", poolclass=NullPool))
    engine = create_engine(url, poolclass=NullPool)
    if how == "engine option":
        return engine.execution_options(isolation_level="AUTOCOMMIT").connect()
    if how == "connection option":
        return engine.connect().execution_options(isolation_level="AUTOCOMMIT")
    session = Session(engine)
    session.connection(execution_options={"isolation_level": "AUTOCOMMIT"})
    return session


@pytest.mark.parametrize("how", ["engine", "engine option", "connection option", "session option"])
@pytest.mark.parametrize("many", [False, True], ids=["one", "many"])
def test_an_autocommit_connection_is_refused(app: Effects, how: str, many: bool) -> None:
    jobs = [new(key="k"), new(key="l")][: 2 if many else 1]
    with autocommitting(app, how) as session, pytest.raises(EnqueueError, match="AUTOCOMMIT"):
        enqueue_many(jobs, session=session, effects=app)
    assert rows(app, "effect_ledger") == rows(app, "jobs") == []


@pytest.mark.parametrize("begun", [False, True])
def test_an_engine_of_the_apps_own_is_taken_as_it_is(app: Effects, begun: bool) -> None:
    """With SQLAlchemy's defaults: on SQLite its transaction begins with the first statement that writes."""
    with create_engine(app.engine.url, poolclass=NullPool).connect() as connection:
        if begun:
            connection.begin()
        receipt = enqueue("scripted", {}, key="k", session=connection, effects=app)
        connection.rollback()
        assert rows(app, "jobs") == []
        assert enqueue("scripted", {}, key="k", session=connection, effects=app).existing is False
        connection.commit()
    assert len(rows(app, "jobs")) == 1
    assert receipt.job_id
