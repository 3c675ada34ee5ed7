"""What the `apply` of one outcome does to its transaction, alone and among others of the same batch.

The others are written at once, the one to blame is `apply_failed` and its effect unknown, the ledgers are true, and
what it has set in its session is in no other.
"""

from __future__ import annotations

import socket
import sqlite3
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from sqlalchemy import Connection, create_engine, text
from sqlalchemy.exc import DBAPIError

from effects import Attempt, Done, Effects, JobType, NewJob, enqueue_many
from effects.errors import StoreConflict
from effects.operate.tables.audit import audit
from effects.store.queue import applies
from effects.worker import Worker, supervisor
from effects.worker.recording import settler
from tests.conftest import AppFactory
from tests.support.manual_workers import row, rows, run_sql
from tests.support.running import running
from tests.support.sampling import sample
from tests.support.waiting import wait_until

LIMIT_SECONDS = 0.4
OTHERS = 49
BY_SERVER = "SELECT pg_terminate_backend(pg_backend_pid())"
FOREVER = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT max(i) FROM n"


class Case(NamedTuple):
    """What an `apply` does. `fails`: whether it is to blame for it; None where the database has no such thing."""

    apply: Callable[[Connection, Applying], object]
    sqlite: bool | None
    postgresql: bool | None


class Applying(JobType[dict[str, str]]):
    """Its effect is done, and then its `apply` does what the payload says."""

    name = "applying"
    payload = dict[str, str]
    queue = "applying"
    on_unknown = "hold"

    def __init__(self, batch: int) -> None:
        self.all_began = threading.Barrier(batch)
        self.called: list[str] = []
        self.over = threading.Event()
        self.app: Effects | None = None

    def perform(self, payload: dict[str, str], attempt: Attempt) -> Done:
        attempt.release()
        self.all_began.wait(60)
        return Done(apply=partial(self._apply, payload["does"], attempt.job.id))

    def _apply(self, does: str, job_id: int, connection: Connection) -> None:
        connection.execute(text("INSERT INTO marks VALUES (:id)"), {"id": job_id})
        if does != "marks":
            self.called.append(does)
            CASES[does].apply(connection, self)


def driver_of(connection: Connection) -> Any:
    return connection.connection.driver_connection


def sql(statement: str, *, swallowed: bool = False) -> Callable[[Connection, Applying], None]:
    def apply(connection: Connection, _: Applying) -> None:
        with suppress(*[DBAPIError] * swallowed):
            connection.exec_driver_sql(statement)

    return apply


def raw(*statements: str) -> Callable[[Connection, Applying], None]:
    """Past SQLAlchemy."""

    def apply(connection: Connection, _: Applying) -> None:
        cursor = connection.connection.cursor()
        for statement in statements:
            cursor.execute(statement)

    return apply


def raises(error: BaseException) -> Callable[[Connection, Applying], None]:
    def apply(connection: Connection, _: Applying) -> None:
        raise error

    return apply


def rolls_back_and_goes_on(connection: Connection, _: Applying) -> None:
    connection.connection.rollback()
    connection.exec_driver_sql("INSERT INTO marks VALUES (-1)")


def asks_without_end(connection: Connection, applying: Applying) -> None:
    while not applying.over.is_set():
        connection.exec_driver_sql("SELECT 1")


def computes_without_end(connection: Connection, applying: Applying) -> None:
    while not applying.over.is_set():
        pass


def cuts_its_socket(connection: Connection, _: Applying) -> None:
    with socket.socket(fileno=socket.dup(driver_of(connection).fileno())) as end:
        end.shutdown(socket.SHUT_RDWR)


def is_in_the_way_once(connection: Connection, applying: Applying) -> None:
    if len(applying.called) == 1:
        raise StoreConflict("not now")


def is_not_serializable_once(connection: Connection, applying: Applying) -> None:
    if len(applying.called) == 1:
        connection.exec_driver_sql("DO $$ BEGIN RAISE EXCEPTION 'no' USING ERRCODE = '40001'; END $$")


def is_cut_once(connection: Connection, applying: Applying) -> None:
    if len(applying.called) == 1:
        connection.exec_driver_sql(BY_SERVER)


def writes_beside(connection: Connection, applying: Applying) -> None:
    assert applying.app is not None
    with applying.app.engine.begin() as beside:
        beside.exec_driver_sql("INSERT INTO marks VALUES (-2)")


def waits_for_itself(connection: Connection, applying: Applying) -> None:
    assert applying.app is not None
    with applying.app.engine.begin() as beside:
        beside.exec_driver_sql("UPDATE effects_jobs SET job_type = job_type WHERE job_type = 'applying'")


def works_in_a_thread(connection: Connection, _: Applying) -> None:
    thread = threading.Thread(target=connection.exec_driver_sql, args=("INSERT INTO marks VALUES (-3)",))
    thread.start()
    thread.join()


def reads_half(connection: Connection, _: Applying) -> None:
    driver_of(connection).cursor().copy("COPY (SELECT generate_series(1, 100000)) TO STDOUT").__enter__()


def rolls_back_its_transaction(connection: Connection, _: Applying) -> None:
    transaction = connection.get_transaction()
    assert transaction is not None
    transaction.rollback()


CASES = {
    "waits too long": Case(lambda connection, applying: applying.over.wait(1.5 * LIMIT_SECONDS), True, True),
    "waits for ever": Case(lambda connection, applying: applying.over.wait(), True, True),
    "computes for ever": Case(computes_without_end, True, True),
    "asks for ever": Case(asks_without_end, True, True),
    "a slow query": Case(sql(FOREVER), True, True),
    "pg_sleep": Case(sql("SELECT pg_sleep(3600)"), None, True),
    "ROLLBACK": Case(sql("ROLLBACK"), True, True),
    "raw rollback": Case(lambda connection, _: connection.connection.rollback(), True, True),
    "raw rollback, then a write": Case(rolls_back_and_goes_on, True, True),
    "raw rollback, then a transaction": Case(raw("ROLLBACK", "BEGIN", "INSERT INTO marks VALUES (-1)"), True, True),
    "its Transaction rolled back": Case(rolls_back_its_transaction, True, True),
    "COMMIT": Case(sql("COMMIT"), True, True),
    "COMMIT AND CHAIN": Case(sql("COMMIT AND CHAIN"), None, True),
    "COMMIT behind a comment": Case(raw("/* x */ END"), True, True),
    "COMMIT swallowed": Case(sql("COMMIT", swallowed=True), False, True),
    "raw commit": Case(lambda connection, _: connection.connection.commit(), True, True),
    "driver's commit": Case(lambda connection, _: driver_of(connection).commit(), True, True),
    "executescript": Case(lambda connection, _: driver_of(connection).executescript("SELECT 1"), True, None),
    "PREPARE TRANSACTION": Case(sql("PREPARE TRANSACTION 'x'"), None, True),
    "INSERT OR ROLLBACK": Case(sql("INSERT OR ROLLBACK INTO marks VALUES (NULL)", swallowed=True), True, None),
    "a savepoint of no one's": Case(sql("ROLLBACK TO SAVEPOINT sp"), True, True),
    "our savepoint rolled back": Case(sql("ROLLBACK TO SAVEPOINT effects_apply"), False, False),
    "our savepoint released": Case(sql("RELEASE SAVEPOINT effects_apply"), True, True),
    "a savepoint left open": Case(sql("SAVEPOINT sp"), False, False),
    "begin_nested left open": Case(lambda connection, _: connection.begin_nested(), False, False),
    "kills its backend": Case(sql(BY_SERVER), None, True),
    "kills its backend, swallowed": Case(sql(BY_SERVER, swallowed=True), None, True),
    "is cut once": Case(is_cut_once, None, False),
    "cuts its socket": Case(cuts_its_socket, None, True),
    "closes its connection": Case(lambda connection, _: driver_of(connection).close(), True, True),
    "AUTOCOMMIT": Case(lambda connection, _: connection.execution_options(isolation_level="AUTOCOMMIT"), True, True),
    "driver's autocommit": Case(lambda connection, _: setattr(driver_of(connection), "autocommit", True), None, True),
    "driver's isolation": Case(
        lambda connection, _: setattr(driver_of(connection), "isolation_level", None), True, None
    ),
    "READ ONLY": Case(sql("SET TRANSACTION READ ONLY"), None, False),
    "CREATE TABLE": Case(sql("CREATE TABLE more (id int)"), False, False),
    "SET statement_timeout": Case(sql("SET statement_timeout = 77"), None, False),
    "SET LOCAL statement_timeout": Case(sql("SET LOCAL statement_timeout = 77"), None, False),
    "SET ROLE": Case(sql("SET ROLE pg_monitor"), None, False),
    "SET search_path": Case(sql("SET search_path TO pg_catalog"), None, False),
    "set_config": Case(sql("SELECT set_config('TimeZone', 'Asia/Tokyo', false)"), None, False),
    "pg_advisory_lock": Case(sql("SELECT pg_advisory_lock(33)"), None, False),
    "PRAGMA query_only": Case(sql("PRAGMA query_only = ON"), True, None),
    "ATTACH": Case(sql("ATTACH ':memory:' AS beside"), True, None),
    "SystemExit": Case(raises(SystemExit()), True, True),
    "KeyboardInterrupt": Case(raises(KeyboardInterrupt()), True, True),
    "GeneratorExit": Case(raises(GeneratorExit()), True, True),
    "writes beside": Case(writes_beside, True, False),
    "waits for itself": Case(waits_for_itself, True, True),
    "works in a thread": Case(works_in_a_thread, False, False),
    "a violation swallowed": Case(sql("INSERT INTO marks VALUES (NULL)", swallowed=True), False, True),
    "a deferred violation": Case(sql("INSERT INTO children VALUES (1)"), True, True),
    "killed at COMMIT": Case(sql("INSERT INTO deadly VALUES (1)"), None, True),
    "in the way once": Case(is_in_the_way_once, False, False),
    "not serializable once": Case(is_not_serializable_once, None, False),
    "reads half": Case(reads_half, None, True),
}
LATER = "DEFERRABLE INITIALLY DEFERRED"
TABLES = ["CREATE TABLE marks (id int NOT NULL)", "CREATE TABLE parents (id int PRIMARY KEY)",
          f"CREATE TABLE children (id int REFERENCES parents {LATER})"]  # fmt: skip
ON_POSTGRESQL = [
    "CREATE TABLE deadly (id int)",
    "CREATE FUNCTION die() RETURNS trigger LANGUAGE plpgsql AS "
    "$$ BEGIN PERFORM pg_terminate_backend(pg_backend_pid()); RETURN NULL; END $$",
    f"CREATE CONSTRAINT TRIGGER die AFTER INSERT ON deadly {LATER} FOR EACH ROW EXECUTE FUNCTION die()",
]
EVERY = [
    (does, others, database)
    for does, others, database in product(CASES, (0, OTHERS), ("sqlite", "postgresql"))
    if getattr(CASES[does], database) is not None
]


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Limits of fractions of a second."""
    monkeypatch.setattr(applies, "APPLY_SECONDS", LIMIT_SECONDS)
    monkeypatch.setattr(settler, "ABANDON_SECONDS", LIMIT_SECONDS)
    monkeypatch.setattr(supervisor, "LOOK_SECONDS", 0.05)


@pytest.fixture
def applying_app(app_factory: AppFactory, others: int) -> Iterator[tuple[Effects, Applying]]:
    job_type = Applying(others + 1)
    app = app_factory(job_types=[job_type], queues=f"applying={others + 1}", poll_seconds=0.1, sessions="off")
    job_type.app = app
    for statement in TABLES + (ON_POSTGRESQL if app.store.is_postgresql else []):
        run_sql(app, statement)
    yield app, job_type
    job_type.over.set()


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize(("does", "others", "database_url"), sample(EVERY, 5), indirect=["database_url"])
def test_what_an_apply_does_is_its_own(
    does: str, others: int, applying_app: tuple[Effects, Applying], caplog: pytest.LogCaptureFixture
) -> None:
    app, job_type = applying_app
    fails = CASES[does].postgresql if app.store.is_postgresql else CASES[does].sqlite
    job = NewJob(job_type="applying", payload={"does": does}, key="it")
    beside = [NewJob(job_type="applying", payload={"does": "marks"}, key=f"k{number}") for number in range(others)]
    receipts = enqueue_many([*beside[: others // 2], job, *beside[others // 2 :]], effects=app)
    with running(Worker(app)):
        wait_until(lambda: not rows(app, "jobs"))
        job_type.over.set()
    it = row(app, "job_history", "idempotency_key = 'it'")
    expected = ("dead", "apply_failed", "unknown") if fails else ("succeeded", None, "done")
    assert (it["status"], it["error_code"], row(app, "effect_ledger", "job_id = :id", id=it["id"])["state"]) == expected
    others_ids = {receipt.job_id for receipt in receipts} - {it["id"]}
    ended = rows(app, "job_history", "idempotency_key <> 'it'")
    assert {job["id"] for job in ended if job["status"] == "succeeded"} == others_ids
    with app.store.read() as connection:
        marks = sorted(connection.exec_driver_sql("SELECT id FROM marks WHERE id > 0").scalars())
    assert [mark for mark in marks if mark != it["id"]] == sorted(others_ids)
    assert marks.count(it["id"]) == (0 if fails or does == "our savepoint rolled back" else 1)
    assert audit(app.store, app.ledgers) == []
    assert len(job_type.called) <= 8
    if fails:
        failed = next(record for record in caplog.records if record.getMessage() == "settle.failed")
        assert (vars(failed)["job"], vars(failed)["type"]) == (it["id"], "applying")
    away = [vars(record)["error"] for record in caplog.records if record.getMessage() == "database.away"]
    assert away == []
    _assert_clean(app)


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize(("others", "database_url"), [(5, "sqlite")], indirect=["database_url"])
def test_each_apply_that_never_returns_is_left_behind_alone(
    applying_app: tuple[Effects, Applying], caplog: pytest.LogCaptureFixture
) -> None:
    app, job_type = applying_app
    does = ["waits for ever", "marks", "waits for ever", "marks", "waits for ever", "marks"]
    jobs = [NewJob(job_type="applying", payload={"does": what}, key=f"k{n}") for n, what in enumerate(does)]
    enqueue_many(jobs, effects=app)
    with running(Worker(app)):
        wait_until(lambda: not rows(app, "jobs"))
        job_type.over.set()
    assert len(job_type.called) == 3
    assert [job["error_code"] for job in rows(app, "job_history")] == ["apply_failed", None] * 3
    assert "lease.lost" not in caplog.messages
    assert audit(app.store, app.ledgers) == []


class DeafConnection(sqlite3.Connection):
    """An interrupt comes too early for the statement that begins just then."""

    def interrupt(self) -> None:
        pass


@pytest.mark.parametrize("begins", ["before the cut", "after the cut"])
def test_a_query_that_an_interrupt_misses_ends_all_the_same(begins: str, tmp_path: Path) -> None:
    arguments = {"factory": DeafConnection, "check_same_thread": False}
    engine = create_engine(f"sqlite:///{tmp_path / 'deaf.db'}", connect_args=arguments)
    begun, cuts, ended, over = (threading.Event() for _ in range(4))
    with engine.connect() as connection:
        driver = driver_of(connection)
        driver.create_function("goes_on", 0, lambda: begun.set() or not over.is_set())
        connection.exec_driver_sql("BEGIN IMMEDIATE")
        guard = applies._FileGuard(connection)
        guard.begin()

        def ask() -> None:
            with pytest.raises(sqlite3.OperationalError, match="interrupted"):
                driver.execute(FOREVER.replace("FROM n)", "FROM n WHERE goes_on())")).fetchone()
            ended.set()

        def cut() -> None:
            assert guard.cut()
            cuts.set()

        asking, cutting = threading.Thread(target=ask, daemon=True), threading.Thread(target=cut, daemon=True)
        try:
            for thread, is_done in ((asking, begun), (cutting, cuts))[:: 1 if begins == "before the cut" else -1]:
                thread.start()
                wait_until(is_done.is_set)
            wait_until(ended.is_set)
        finally:
            over.set()
        guard.stop()
        assert not driver.in_transaction
    engine.dispose()


def _assert_clean(app: Effects) -> None:
    """No connection of the pool has what an `apply` has set."""
    if not app.store.is_postgresql:
        with app.store.begin() as connection:
            assert connection.exec_driver_sql("PRAGMA query_only").scalar() == 0
        return
    held = [app.engine.connect() for _ in range(app.engine.pool.checkedin() or 1)]  # type: ignore[attr-defined]
    for connection in held:
        settings = connection.exec_driver_sql(
            "SELECT current_setting('statement_timeout'), current_setting('role'), current_setting('search_path'), "
            "(SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND objid = 33), "
            "current_setting('TimeZone') = 'Asia/Tokyo'"
        ).one()
        assert settings == ("0", "none", '"$user", public', 0, False)
        connection.close()
