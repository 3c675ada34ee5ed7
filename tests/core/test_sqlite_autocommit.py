"""SQLite in the AUTOCOMMIT that Python has from 3.12 on: nothing in its isolation level says so."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session

from effects import Effects, EnqueueError, StoreUnavailable, enqueue, enqueue_async
from tests.support.manual_workers import rows
from tests.support.scripted import Scripted

pytestmark = pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)


class AutocommitConnection(sqlite3.Connection):
    """As `sqlite3.connect(…, autocommit=True)` gives it, on any version of Python."""

    autocommit = True
    isolation_level = ""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **{**options, "isolation_level": None})

    def commit(self) -> None:
        """Do nothing, as Python does."""

    def rollback(self) -> None:
        """Do nothing, as Python does."""


OPTIONS: dict[str, Any] = {"connect_args": {"factory": AutocommitConnection}}


@pytest.fixture
def engine(database_url: str) -> Iterator[sa.Engine]:
    engine = sa.create_engine(database_url, pool_size=1, max_overflow=0, **OPTIONS)
    yield engine
    engine.dispose()


def _in_a_session(app: Effects, engine: sa.Engine) -> None:
    with Session(engine) as session:
        enqueue("scripted", {}, session=session, effects=app)


def _in_a_connection(app: Effects, engine: sa.Engine) -> None:
    with engine.connect() as connection:
        enqueue("scripted", {}, session=connection, effects=app)


def _in_a_connection_of_sqlite3(app: Effects, engine: sa.Engine) -> None:
    connection = sqlite3.connect(str(engine.url.database), factory=AutocommitConnection)
    try:
        enqueue("scripted", {}, session=connection, effects=app)
    finally:
        connection.close()


def _in_an_async_session(app: Effects, engine: sa.Engine) -> None:
    async def enqueue_there() -> None:
        asynchronous = create_async_engine(engine.url.set(drivername="sqlite+aiosqlite"), **OPTIONS)
        try:
            async with AsyncSession(asynchronous) as session:
                await enqueue_async("scripted", {}, session=session, effects=app)
        finally:
            await asynchronous.dispose()

    asyncio.run(enqueue_there())


@pytest.mark.parametrize("act", [_in_a_session, _in_a_connection, _in_a_connection_of_sqlite3, _in_an_async_session])
def test_a_session_that_commits_each_statement_is_refused(
    app: Effects, engine: sa.Engine, act: Callable[[Effects, sa.Engine], None]
) -> None:
    with pytest.raises(EnqueueError, match="AUTOCOMMIT"):
        act(app, engine)
    assert rows(app, "jobs") == []


def test_a_transaction_that_the_app_has_begun_is_joined(app: Effects, engine: sa.Engine) -> None:
    for ending in ("ROLLBACK", "COMMIT"):
        with engine.connect() as connection:
            connection.exec_driver_sql("BEGIN")
            enqueue("scripted", {}, session=connection, effects=app)
            connection.exec_driver_sql(ending)
    assert len(rows(app, "jobs")) == 1


def _fail(app: Effects) -> None:
    with app.store.begin() as connection:
        connection.exec_driver_sql("DELETE FROM effects_jobs")
        raise KeyError


def test_our_own_transaction_that_fails_leaves_none_behind(app: Effects, engine: sa.Engine) -> None:
    own = Effects(engine=engine, job_types=[Scripted()])
    with pytest.raises(KeyError):
        _fail(own)
    enqueue("scripted", {}, effects=own)  # on the same connection
    assert len(rows(app, "jobs")) == 1
    own.dispose()


def _be_refused_while_reading(app: Effects) -> None:
    with app.store.begin() as connection:
        driver: Any = connection.connection.driver_connection
        reading = driver.execute("SELECT id FROM effects_jobs")
        reading.fetchone()
        connection.exec_driver_sql("PRAGMA query_only = ON")
        connection.exec_driver_sql("DELETE FROM effects_jobs")


def test_a_connection_that_is_given_up_keeps_no_lock(app: Effects, engine: sa.Engine) -> None:
    for _ in range(2):
        enqueue("scripted", {}, effects=app)
    own = Effects(engine=engine, job_types=[Scripted()])
    with pytest.raises(StoreUnavailable) as refusal:
        _be_refused_while_reading(own)
    with closing(sqlite3.connect(str(engine.url.database), timeout=0)) as another:
        another.execute("BEGIN IMMEDIATE")
    assert refusal.value.read_only
    own.dispose()
