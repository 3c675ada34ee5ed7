"""Many jobs at once: by COPY where the driver can, and as by the statements in everything that a caller sees."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any

import pytest
from sqlalchemy import Engine, create_engine, event, text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import create_async_engine
from sqlalchemy.orm import Session

from effects import (
    Effects,
    IdempotencyConflict,
    NewJob,
    Receipt,
    SessionForgotten,
    enqueue,
    enqueue_many,
    enqueue_many_async,
)
from effects.errors import StoreRejected
from effects.store.enqueue.copy import ROWS_MAX, ROWS_MIN
from tests.support.callers import KINDS, Caller, RollBackError
from tests.support.manual_workers import rows, run_sql

on_postgresql = pytest.mark.parametrize("database_url", ["postgresql"], indirect=True)
NAMED_QUEUES = ("slow \\.",)
TIMES = ("run_at", "expires_at")
OWN = ("id", "n", "idempotency_key", "run_at", "age_from", "created_at", "updated_at")


def new(name: str = "", **options: Any) -> NewJob:
    return NewJob(job_type="scripted", payload={"name": name}, **options)


def fill(count: int = ROWS_MIN) -> list[NewJob]:
    return [new(f"filler {number}") for number in range(count)]


@pytest.fixture
def copies(app: Effects) -> Iterator[list[str]]:
    """The statements that carry rows of jobs by themselves; SQLAlchemy does not see a COPY."""
    inserts: list[str] = []

    def note(*arguments: Any) -> None:
        if "INSERT INTO" in arguments[2] and "effects_jobs " in arguments[2]:
            inserts.append(arguments[2])

    event.listen(Engine, "before_cursor_execute", note)
    yield inserts
    event.remove(Engine, "before_cursor_execute", note)


EVERY_KIND = pytest.mark.parametrize(
    ("database_url", "kind"),
    [pytest.param(database, kind, id=name) for name, (database, kind) in KINDS.items()],
    indirect=["database_url"],
)


@EVERY_KIND
def test_many_jobs_are_copied_in_the_callers_transaction(
    app: Effects, database_url: str, kind: type[Caller], copies: list[str]
) -> None:
    caller = kind(database_url)
    with caller.transaction():
        receipts = enqueue_many(fill(ROWS_MAX + 7), session=caller.session, effects=app)
        enqueue("scripted", {"name": "after"}, session=caller.session, effects=app)
    with suppress(RollBackError), caller.transaction():
        enqueue_many(fill(), session=caller.session, effects=app)
        raise RollBackError
    caller.close()
    written = rows(app, "jobs")
    assert [receipt.job_id for receipt in receipts] == [job["id"] for job in written[:-1]]
    assert [receipt.job_id for receipt in receipts] == sorted({receipt.job_id for receipt in receipts})
    assert len(written) == ROWS_MAX + 8
    can = app.store.is_postgresql and "2" not in kind.__name__
    assert (len(copies) == 1) == can, copies[:3]


@on_postgresql
@pytest.mark.parametrize("name", ["asyncpg", "psycopg_async"])
def test_an_asynchronous_driver_gets_statements(app: Effects, database_url: str, name: str) -> None:
    async def enqueue_them() -> list[Receipt]:
        engine = create_async_engine(database_url.replace("postgresql:", f"postgresql+{name}:"))
        async with engine.begin() as connection:
            receipts = await enqueue_many_async(fill(), session=connection, effects=app)
        await engine.dispose()
        return receipts

    receipts = asyncio.run(enqueue_them())
    assert [receipt.job_id for receipt in receipts] == [job["id"] for job in rows(app, "jobs")]


def test_each_field_is_written_as_by_the_statement(app: Effects) -> None:
    odd = "50 % of \\N, a\ttab,\nline, {brace}, \\\\, é \U0001f40c \x7f \\."
    far = datetime(2031, 5, 1, 12, 30, 0, 250_000, tzinfo=UTC)
    every: dict[str, Any] = {
        "group_key": r"back\slash", "limit_key": "\\N", "queue": "slow \\.", "priority": -3, "max_attempts": 4,
        "run_at": far, "expires_at": far.replace(year=2032), "trace_context": "a-b", "on_unknown": "hold",
    }  # fmt: skip
    different = [{}, {"delay": 3600.5}, {"run_at": datetime(1970, 1, 1, tzinfo=UTC)}, {"max_attempts": 1}, every]
    jobs = [new(odd, **options) for options in different]
    enqueue_many(jobs, effects=app)
    enqueue_many([*jobs, *fill()], effects=app)
    written = rows(app, "jobs")
    by_statement, by_copy = written[: len(jobs)], written[len(jobs) : 2 * len(jobs)]
    assert [{**job, **dict.fromkeys(OWN)} for job in by_statement] == [{**job, **dict.fromkeys(OWN)} for job in by_copy]
    assert [job["run_at"] for job in by_copy[2:3]] == [job["run_at"] for job in by_statement[2:3]]
    assert (by_copy[4]["run_at"], by_copy[4]["expires_at"]) == (
        by_statement[4]["run_at"],
        by_statement[4]["expires_at"],
    )
    assert all(job["age_from"] == job["run_at"] for job in by_copy)
    assert _waits(by_copy[1]) == _waits(by_statement[1])


def _waits(job: dict[str, Any]) -> Any:
    return job["run_at"] - job["created_at"]


def test_a_shifted_clock_applies_to_copied_jobs(app: Effects) -> None:
    app.store.shift_clock(86_400)
    enqueue_many(fill(), effects=app)
    enqueue("scripted", {}, effects=app)
    *copied, by_statement = rows(app, "jobs")
    ahead = by_statement["created_at"] - copied[0]["created_at"]
    assert abs(ahead if isinstance(ahead, int) else ahead.total_seconds()) < 60_000
    assert {job["run_at"] - job["created_at"] for job in copied} == {copied[0]["run_at"] - copied[0]["created_at"]}


def test_keys_mean_one_effect_each(app: Effects) -> None:
    before = enqueue("scripted", {"name": "a"}, key="taken", effects=app)
    jobs = [new("a", key="taken"), new("b", key="twice"), new("b", key="twice"), *fill(), new("c", key="once")]
    receipts = enqueue_many(jobs, effects=app)
    assert receipts[0].job_id == before.job_id
    assert receipts[1].job_id == receipts[2].job_id
    assert [number for number, receipt in enumerate(receipts) if receipt.existing] == [0, 2]
    ledger = {row["key"]: row["job_id"] for row in rows(app, "effect_ledger")}
    assert ledger == {"taken": before.job_id, "twice": receipts[1].job_id, "once": receipts[-1].job_id}
    assert len(rows(app, "jobs")) == len(jobs) - 1
    again = enqueue_many(jobs, effects=app)
    assert [receipt.job_id for receipt in again if receipt.key] == [
        receipt.job_id for receipt in receipts if receipt.key
    ]


def test_a_conflict_writes_none_and_leaves_the_callers_work(app: Effects) -> None:
    enqueue("scripted", {"name": "x"}, key="k", effects=app)
    with app.engine.begin() as connection:
        enqueue("scripted", {}, key="mine", session=connection, effects=app)
        with pytest.raises(IdempotencyConflict, match="'k' belongs to job"):
            enqueue_many([*fill(), new("y", key="k")], session=connection, effects=app)
    assert [job["idempotency_key"] for job in rows(app, "jobs")] == ["k", "mine"]


def test_groups_are_locked_before_ids_are_taken(app: Effects) -> None:
    enqueue_many([new(group_key=f"g{number % 3}") for number in range(ROWS_MIN)], effects=app)
    assert sorted(row["group_key"] for row in rows(app, "job_groups")) == ["g0", "g1", "g2"]


@on_postgresql
def test_a_refusal_of_the_database_reads_as_that_of_the_statement(app: Effects) -> None:
    run_sql(app, "ALTER TABLE effects_jobs ADD CONSTRAINT no_odd CHECK (payload ->> 'name' <> 'odd')")
    errors = []
    for jobs in ([new("odd"), new()], [*fill(), new("odd")]):
        with Session(app.engine) as session:
            enqueue("scripted", {"name": "mine"}, session=session, effects=app)
            with pytest.raises(DBAPIError) as caught:
                enqueue_many(jobs, session=session, effects=app)
        errors.append((type(caught.value), type(caught.value.orig), "no_odd" in str(caught.value.orig)))
    assert errors[0] == errors[1]
    assert rows(app, "jobs") == []


@on_postgresql
def test_without_permission_to_copy_statements_are_used(app: Effects, copies: list[str]) -> None:
    run_sql(
        app, "ALTER TABLE effects_jobs ENABLE ROW LEVEL SECURITY; ALTER TABLE effects_jobs FORCE ROW LEVEL SECURITY"
    )
    run_sql(app, "CREATE POLICY everything ON effects_jobs USING (true)")
    run_sql(app, "DO $$ BEGIN CREATE ROLE effects_writer; EXCEPTION WHEN duplicate_object THEN NULL; END $$")
    for what in ("ALL TABLES", "ALL SEQUENCES"):
        run_sql(app, f"GRANT ALL ON {what} IN SCHEMA public TO effects_writer")
    with app.engine.begin() as connection:
        connection.execute(text("SET LOCAL ROLE effects_writer"))
        receipts = enqueue_many(fill(), session=connection, effects=app)
    assert copies
    run_sql(app, "ALTER TABLE effects_jobs DISABLE ROW LEVEL SECURITY; DROP POLICY everything ON effects_jobs")
    run_sql(app, "DROP OWNED BY effects_writer")
    assert [receipt.job_id for receipt in receipts] == [job["id"] for job in rows(app, "jobs")]


@on_postgresql
def test_a_lost_server_is_an_error_of_sqlalchemy(app: Effects) -> None:
    with Session(app.engine) as session:
        own = session.execute(text("SELECT pg_backend_pid()")).scalar()
        run_sql(app, "SELECT pg_terminate_backend(:pid)", pid=own)
        with pytest.raises(DBAPIError) as caught:
            enqueue_many(fill(), session=session, effects=app)
    assert caught.value.connection_invalidated


@on_postgresql
def test_a_session_forgotten_after_a_copy_is_noticed(app: Effects) -> None:
    with Session(app.engine) as session:
        enqueue_many(fill(), session=session, effects=app)
        with pytest.raises(SessionForgotten):
            enqueue("scripted", {}, effects=app)


@on_postgresql
def test_statements_and_rows_are_in_no_log(app: Effects, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    enqueue_many([*fill(), new("secret")], effects=app)
    assert "secret" not in caplog.text


@on_postgresql
def test_latin1_sessions_name_what_cannot_be_encoded(database_url: str, app: Effects) -> None:
    engine = create_engine(app.engine.url, connect_args={"client_encoding": "latin1"})
    with engine.begin() as connection:
        receipts = enqueue_many([*fill(), new("é")], session=connection, effects=app)
    with pytest.raises(StoreRejected, match="client_encoding"), engine.begin() as connection:
        enqueue_many([*fill(), new("\N{SNOWMAN}")], session=connection, effects=app)
    engine.dispose()
    written = rows(app, "jobs")
    assert [receipt.job_id for receipt in receipts] == [job["id"] for job in written]
    assert "é" in str(written[-1]["payload"])
