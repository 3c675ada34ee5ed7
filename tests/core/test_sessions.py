"""`session=` of every kind: an effect is there exactly if its caller's row is, and the session is as it was."""

from __future__ import annotations

import asyncio
import json
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from itertools import product
from pathlib import Path
from typing import Any

import psycopg
import psycopg.rows
import psycopg2
import psycopg2.extras
import pytest
import sqlalchemy as sa
from psycopg.types.string import TextLoader
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session

from effects import Effects, EnqueueError, NewJob, SchemaMismatch, enqueue, enqueue_many, enqueue_many_async, status
from effects.worker import Worker
from effects_webhooks import WebhookEvent, add_endpoint, deliver_webhook
from tests.support import databases
from tests.support.callers import EFFECTS, KEYS, KINDS, Caller, RollBackError, act, be_killed, orders, shop
from tests.support.manual_workers import rows
from tests.support.processes import Child
from tests.support.scripted import Scripted

EVERY_KIND = pytest.mark.parametrize(
    ("database_url", "kind"),
    [pytest.param(database, kind, id=name) for name, (database, kind) in KINDS.items()],
    indirect=["database_url"],
)


@pytest.fixture
def app(database_url: str, tmp_path: Path) -> Iterator[Effects]:
    """The shop, with its own table and an endpoint."""
    app = shop(database_url, tmp_path)
    orders.create(app.engine)
    add_endpoint("https://partner.example/hooks", ["order.*"], effects=app)
    yield app
    orders.drop(app.engine)
    app.dispose()


def count_of_effects(app: Effects) -> dict[str, int]:
    """The jobs that each effect led to."""
    names = [job["job_type"] for job in rows(app, "jobs")]
    return {effect: names.count(effect) for effect in EFFECTS}


def order_ids(app: Effects) -> list[int]:
    with app.store.read() as connection:
        return list(connection.execute(text("SELECT id FROM shop_orders ORDER BY id")).scalars())


def _commit(app: Effects, caller: Caller, number: int, effect: str) -> None:
    with caller.transaction():
        act(app, caller, number, effect)


def _roll_back(app: Effects, caller: Caller, number: int, effect: str) -> None:
    with suppress(RollBackError), caller.transaction():
        act(app, caller, number, effect)
        raise RollBackError


def _roll_back_to_savepoint(app: Effects, caller: Caller, number: int, effect: str) -> None:
    with caller.transaction():
        act(app, caller, number + 1000, effect)
        with suppress(RollBackError), caller.savepoint():
            act(app, caller, number, effect)
            raise RollBackError


@EVERY_KIND
def test_an_effect_exists_exactly_if_its_callers_row_does(app: Effects, kind: type[Caller], database_url: str) -> None:
    caller = kind(database_url)
    endings = (_commit, _roll_back, _roll_back_to_savepoint)
    cases = list(enumerate(product(EFFECTS, endings), 1))
    for number, (effect, ending) in cases:
        ending(app, caller, number, effect)
    caller.close()
    committed = [number for number, (_, ending) in cases if ending is _commit]
    beside = [number + 1000 for number, (_, ending) in cases if ending is _roll_back_to_savepoint]
    assert order_ids(app) == committed + beside
    assert count_of_effects(app) == dict.fromkeys(EFFECTS, 2)


@pytest.mark.slow
@pytest.mark.parametrize("when", ["before the commit", "after the commit"])
@EVERY_KIND
def test_a_killed_app_leaves_both_or_neither(
    app: Effects, request: pytest.FixtureRequest, database_url: str, kind: type[Caller], tmp_path: Path, when: str
) -> None:
    name = next(name for name, (_, known_kind) in KINDS.items() if known_kind is kind)
    child = Child(be_killed, (name, database_url, str(tmp_path), KEYS, when), {}, tmp_path / "log")
    assert child.wait(60) == -9, child.output
    child.close()
    count = 1 if when == "after the commit" else 0
    assert order_ids(app) == [1] * count
    assert count_of_effects(app) == dict.fromkeys(EFFECTS, count)


SQLITE = pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
POSTGRESQL = pytest.mark.parametrize("database_url", ["postgresql"], indirect=True)


@SQLITE
@pytest.mark.parametrize("isolation_level", ["", "DEFERRED", "IMMEDIATE", "EXCLUSIVE", None])
def test_a_connection_of_sqlite3_stays_as_it_was_set(app: Effects, database_url: str, isolation_level: Any) -> None:
    connection = sqlite3.connect(
        database_url.removeprefix("sqlite:///"), isolation_level=isolation_level, detect_types=sqlite3.PARSE_DECLTYPES
    )
    connection.row_factory, connection.text_factory = sqlite3.Row, bytes
    if isolation_level is None:
        with pytest.raises(EnqueueError, match=r"AUTOCOMMIT.*execute\('BEGIN'\)"):
            enqueue("scripted", {}, key="k", session=connection, effects=app)
        connection.execute("BEGIN")
    receipt = enqueue("scripted", {}, key="k", session=connection, effects=app)
    assert connection.in_transaction
    assert (connection.isolation_level, connection.row_factory) == (isolation_level, sqlite3.Row)
    assert connection.text_factory is bytes
    connection.rollback()
    assert rows(app, "jobs") == []
    if isolation_level is None:
        connection.execute("BEGIN")
    assert enqueue("scripted", {}, key="k", session=connection, effects=app).existing is False
    assert enqueue("scripted", {}, key="k", session=connection, effects=app).job_id >= receipt.job_id
    connection.commit()
    connection.close()
    assert len(rows(app, "jobs")) == 1
    with pytest.raises(EnqueueError, match="session cannot be used"):
        enqueue("scripted", {}, session=connection, effects=app)


def _psycopg(database_url: str, **options: Any) -> psycopg.Connection[Any]:
    return psycopg.connect(database_url, **options)


@POSTGRESQL
def test_a_connection_of_psycopg_stays_as_it_was_set(app: Effects, database_url: str) -> None:
    with _psycopg(database_url, row_factory=psycopg.rows.dict_row) as connection:
        connection.adapters.register_loader("int8", TextLoader)
        for number in range(10):  # more than the 5 times after which psycopg prepares a statement
            receipt = enqueue("scripted", {}, key=f"{number}", session=connection, effects=app)
            assert isinstance(receipt.job_id, int)
        prepared = connection.execute("SELECT count(*)::int AS prepared FROM pg_prepared_statements").fetchone()
        assert prepared == {"prepared": 0}
        assert not connection.autocommit
    assert len(rows(app, "jobs")) == 10


@POSTGRESQL
def test_psycopg_needs_a_transaction_that_can_take_the_job(app: Effects, database_url: str) -> None:
    connection = _psycopg(database_url, autocommit=True)

    def refused(reason: str) -> None:
        with pytest.raises(EnqueueError, match=reason):
            enqueue("scripted", {}, session=connection, effects=app)

    refused("with connection.transaction")
    with connection.transaction():
        enqueue("scripted", {}, session=connection, effects=app)
    with connection.pipeline():
        refused("pipeline mode")
    with suppress(psycopg.errors.UndefinedTable), connection.transaction():
        with suppress(psycopg.errors.UndefinedTable):
            connection.execute("SELECT * FROM missing")
        refused("has failed")
    connection.close()
    refused("closed")
    assert len(rows(app, "jobs")) == 1


@POSTGRESQL
def test_a_connection_of_psycopg2_stays_as_it_was_set(app: Effects, database_url: str) -> None:
    connection = psycopg2.connect(database_url, cursor_factory=psycopg2.extras.RealDictCursor)
    enqueue("scripted", {}, key="k", session=connection, effects=app)
    assert enqueue("scripted", {}, key="k", session=connection, effects=app).existing
    connection.commit()
    connection.autocommit = True
    with pytest.raises(EnqueueError, match="autocommit = False"):
        enqueue("scripted", {}, session=connection, effects=app)
    connection.autocommit = False
    with connection.cursor() as cursor:
        cursor.execute("SELECT 1 AS first")
        assert cursor.fetchone() == {"first": 1}
        with suppress(psycopg2.errors.UndefinedTable):
            cursor.execute("SELECT * FROM missing")
    with pytest.raises(EnqueueError, match="has failed"):
        enqueue("scripted", {}, session=connection, effects=app)
    connection.close()
    with pytest.raises(EnqueueError, match="closed"):
        enqueue("scripted", {}, session=connection, effects=app)
    assert len(rows(app, "jobs")) == 1


@pytest.mark.parametrize("database_url", ["sqlite", "postgresql"], indirect=True)
def test_django_needs_an_atomic_block_and_notifies_after_it(app: Effects, database_url: str) -> None:
    caller = KINDS["sqlite Django"][1](database_url)
    with pytest.raises(EnqueueError, match=r"transaction\.atomic"):
        enqueue("scripted", {}, session=caller.session, effects=app)
    with caller.transaction():
        enqueue("scripted", {}, session=caller.session, effects=app)
        assert len(caller.session.run_on_commit) == 1
        with suppress(RollBackError), caller.savepoint():
            enqueue("scripted", {}, session=caller.session, effects=app)
            raise RollBackError
        assert len(caller.session.run_on_commit) == 1
    with suppress(RollBackError), caller.transaction():
        caller.session.needs_rollback = True
        with pytest.raises(EnqueueError, match="has failed"):
            enqueue("scripted", {}, session=caller.session, effects=app)
        raise RollBackError
    caller.close()
    assert len(rows(app, "jobs")) == 1


KEYED = [NewJob(job_type="scripted", payload={}, key=key) for key in "ab"]


def _roll_back_a_session(app: Effects, url: str) -> None:
    engine = sa.create_engine(url)
    with Session(engine) as session:
        enqueue_many(KEYED, session=session, effects=app)
        session.rollback()
    engine.dispose()


def _roll_back_a_connection(app: Effects, url: str) -> None:
    engine = sa.create_engine(url)
    with engine.connect() as connection:
        enqueue_many(KEYED, session=connection, effects=app)
        connection.rollback()
    engine.dispose()


def _roll_back_an_async_session(app: Effects, url: str) -> None:
    async def roll_back() -> None:
        engine = create_async_engine(url.replace("sqlite:", "sqlite+aiosqlite:"))
        async with AsyncSession(engine) as session:
            await enqueue_many_async(KEYED, session=session, effects=app)
            await session.rollback()
        await engine.dispose()

    asyncio.run(roll_back())


@SQLITE
@pytest.mark.parametrize("roll_back", [_roll_back_a_session, _roll_back_a_connection, _roll_back_an_async_session])
def test_a_savepoint_of_ours_commits_nothing_on_an_engine_with_sqlalchemys_defaults(
    app: Effects, database_url: str, roll_back: Callable[[Effects, str], None]
) -> None:
    """Python begins no transaction before a savepoint, and then its release commits."""
    roll_back(app, database_url)
    assert rows(app, "jobs") == []


@SQLITE
def test_a_call_that_reads_before_it_writes_is_not_refused_the_lock(app: Effects, database_url: str) -> None:
    """SQLite refuses it at once to a transaction that began by reading, once another one has written."""
    path = database_url.removeprefix("sqlite:///")
    with closing(sqlite3.connect(path)) as connection, closing(sqlite3.connect(path, timeout=0)) as bystander:

        def write_meanwhile(statement: str) -> None:
            if statement.lstrip().startswith("INSERT"):
                with suppress(sqlite3.OperationalError), bystander:  # the caller has the lock
                    bystander.execute("INSERT INTO shop_orders VALUES (NULL)")

        connection.set_trace_callback(write_meanwhile)
        deliver_webhook(WebhookEvent("order.placed", {}), session=connection, effects=app)
        connection.commit()
    assert len(rows(app, "jobs")) == 1


@SQLITE
def test_an_app_may_have_python_convert_columns_of_json(
    app: Effects, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As by `sqlite3.register_converter`, which holds for the process; on the app's engine the worker's reads, too."""
    monkeypatch.setitem(sqlite3.converters, "JSON", json.loads)
    options = {"detect_types": sqlite3.PARSE_DECLTYPES}
    with closing(sqlite3.connect(database_url.removeprefix("sqlite:///"), **options)) as connection:
        assert len(deliver_webhook(WebhookEvent("order.placed", {}), session=connection, effects=app).deliveries) == 1
        connection.rollback()
    own = Effects(engine=sa.create_engine(database_url, connect_args=options), job_types=[Scripted()])
    enqueue("scripted", {"name": "x"}, effects=own)
    assert Worker(own).drain().counts == {"succeeded": 1}
    own.dispose()


@SQLITE
def test_a_call_that_only_reads_takes_no_lock(app: Effects, database_url: str) -> None:
    enqueue("scripted", {}, key="k", effects=app)
    with closing(sqlite3.connect(database_url.removeprefix("sqlite:///"))) as connection:
        assert status(key="k", session=connection, effects=app).state == "intended"
        assert not connection.in_transaction


@pytest.mark.parametrize("database_url", ["sqlite", "postgresql"], indirect=True)
def test_a_transaction_of_django_without_a_block_is_joined_too(app: Effects, database_url: str) -> None:
    """There Django takes no `on_commit`: workers find the job by polling."""
    caller = KINDS["sqlite Django"][1](database_url)
    caller.session.set_autocommit(False)
    enqueue("scripted", {}, session=caller.session, effects=app)
    caller.session.commit()
    caller.session.set_autocommit(True)
    caller.close()
    assert len(rows(app, "jobs")) == 1


@pytest.mark.parametrize("connect", [psycopg.connect, psycopg2.connect], ids=["psycopg", "psycopg2"])
def test_missing_tables_are_named_whichever_driver_reports_them(
    postgresql_server: str, connect: Callable[[str], Any], tmp_path: Path
) -> None:
    with databases.postgresql_database(postgresql_server) as url:
        app = Effects(url, job_types=[Scripted()])
        with closing(connect(url)) as connection, pytest.raises(SchemaMismatch, match="tables of effects are missing"):
            enqueue("scripted", {}, session=connection, effects=app)
        app.dispose()


@SQLITE
def test_a_connection_to_another_file_is_refused(app: Effects, tmp_path: Path) -> None:
    connection = sqlite3.connect(tmp_path / "other.db")
    with pytest.raises(EnqueueError, match=r"session speaks to file .*other\.db, and the Effects of this call to file"):
        enqueue("scripted", {}, session=connection, effects=app)
    connection.close()


@POSTGRESQL
def test_a_connection_to_another_database_is_refused(app: Effects, postgresql_server: str) -> None:
    with _psycopg(postgresql_server) as connection, pytest.raises(EnqueueError, match="session speaks to database"):
        enqueue("scripted", {}, session=connection, effects=app)


@pytest.mark.parametrize("session", [7, "session", object, {}], ids=str)
def test_an_object_that_is_not_a_session_is_refused_with_what_is(session: Any, tmp_path: Path) -> None:
    app = Effects(f"sqlite:///{tmp_path / 'x.db'}", job_types=[Scripted()])
    with pytest.raises(EnqueueError, match="pass a SQLAlchemy Session or Connection"):
        enqueue("scripted", {}, session=session, effects=app)
