"""A forgotten `session=` is named where it happens; what is no mistake passes without a word."""

from __future__ import annotations

import asyncio
import contextvars
import threading
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

from effects import Effects, SessionForgotten, SessionForgottenWarning, cancel, enqueue
from tests.conftest import AppFactory
from tests.support.manual_workers import rows

POSTGRESQL = pytest.mark.parametrize("database_url", ["postgresql"], indirect=True)
INSERT = sa.text("INSERT INTO orders (item) VALUES ('chair')")


class Base(DeclarativeBase):
    """The tables of an app."""


class Order(Base):
    """A row of an app."""

    __tablename__ = "orders"
    id: Mapped[int] = mapped_column(primary_key=True)
    item: Mapped[str]


@pytest.fixture
def shop(app_factory: AppFactory) -> Iterator[Effects]:
    """An app with a table of its own, which is warned."""
    app = app_factory(sessions="warn")
    Base.metadata.create_all(app.engine)
    yield app
    Base.metadata.drop_all(app.engine)


def _text(session: Session) -> None:
    session.execute(INSERT)


def _flush(session: Session) -> None:
    session.add(Order(item="chair"))
    session.flush()


def _pending(session: Session) -> None:
    session.add(Order(item="chair"))


def _core(session: Session) -> None:
    session.execute(sa.insert(Order).values(item="chair"))


def _common_table_expression(session: Session) -> None:
    session.execute(sa.text("WITH new AS (SELECT 'chair' AS item) INSERT INTO orders (item) SELECT item FROM new"))


def _driver_sql(session: Session) -> None:
    session.connection().exec_driver_sql("DELETE FROM orders")


def _savepoint(session: Session) -> None:
    with session.begin_nested():
        session.execute(INSERT)


@POSTGRESQL
@pytest.mark.parametrize("write", [_text, _flush, _pending, _core, _common_table_expression, _driver_sql, _savepoint])
def test_a_forgotten_session_is_warned_of_where_it_happens(shop: Effects, write: Callable[[Session], None]) -> None:
    with Session(shop.engine) as session:
        write(session)
        with pytest.warns(SessionForgottenWarning, match="session= is missing") as caught:
            enqueue("scripted", {}, effects=shop)
        session.rollback()
    [warning] = caught
    line = Path(__file__).read_text(encoding="utf-8").splitlines()[warning.lineno - 1]
    assert (warning.filename, line.strip()) == (__file__, 'enqueue("scripted", {}, effects=shop)')
    assert len(rows(shop, "jobs")) == 1


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
@pytest.mark.parametrize("write", [_text, _flush, _core, _savepoint])
def test_a_lock_of_the_callers_own_is_named_at_once(shop: Effects, write: Callable[[Session], None]) -> None:
    with Session(shop.engine) as session:
        write(session)
        with pytest.raises(SessionForgotten, match="locked by this thread's own transaction: pass session="):
            enqueue("scripted", {}, effects=shop)
        enqueue("scripted", {}, session=session, effects=shop)
        session.commit()
    enqueue("scripted", {}, effects=shop)
    assert len(rows(shop, "jobs")) == 2


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
@pytest.mark.parametrize("write", [_text, _flush, _core])
def test_a_lock_by_another_engine_is_named_at_once(shop: Effects, write: Callable[[Session], None]) -> None:
    engine = sa.create_engine(shop.settings.database_url)
    with Session(engine) as session:
        write(session)
        with pytest.raises(SessionForgotten, match="locked by this thread's own transaction: pass session="):
            enqueue("scripted", {}, effects=shop)
        enqueue("scripted", {}, session=session, effects=shop)
        session.commit()
    engine.dispose()
    assert len(rows(shop, "jobs")) == 1


@pytest.mark.parametrize("write", [_text, _pending])
def test_sessions_are_required(app: Effects, write: Callable[[Session], None]) -> None:
    Base.metadata.create_all(app.engine)
    enqueue("scripted", {}, effects=app, key="outside")
    with Session(app.engine) as session:
        write(session)
        calls = [partial(enqueue, "scripted", {}), partial(cancel, key="outside", actor="app:shop")]
        for call in calls:
            with pytest.raises(SessionForgotten, match=r"pass session=|session= is missing"):
                call(effects=app)
    Base.metadata.drop_all(app.engine)
    assert len(rows(app, "jobs")) == 1


@POSTGRESQL
def test_the_warning_can_be_turned_off(app_factory: AppFactory) -> None:
    app = app_factory(sessions="off")
    Base.metadata.create_all(app.engine)
    with Session(app.engine) as session, warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        session.execute(INSERT)
        enqueue("scripted", {}, effects=app)
    assert [str(warning.message) for warning in caught] == []
    assert len(rows(app, "jobs")) == 1
    Base.metadata.drop_all(app.engine)


@POSTGRESQL
def test_a_forgotten_session_in_a_task_is_seen(shop: Effects) -> None:
    from effects import enqueue_async  # noqa: PLC0415

    async def handle() -> None:
        with Session(shop.engine) as session:
            session.execute(INSERT)
            with pytest.warns(SessionForgottenWarning) as caught:
                await enqueue_async("scripted", {}, effects=shop)
            assert caught[0].filename == __file__

    asyncio.run(handle())


# -- what is no mistake --------------------------------------------------------------------------------------


def _with_its_session(app: Effects) -> None:
    with Session(app.engine) as session, session.begin():
        session.execute(INSERT)
        enqueue("scripted", {}, session=session, effects=app)


def _with_its_connection(app: Effects) -> None:
    with app.engine.begin() as connection:
        connection.execute(INSERT)
        enqueue("scripted", {}, session=connection, effects=app)


def _after_the_commit(app: Effects) -> None:
    with Session(app.engine) as session, session.begin():
        session.execute(INSERT)
    enqueue("scripted", {}, effects=app)


def _after_the_commit_on_the_same_session(app: Effects) -> None:
    with Session(app.engine) as session:
        session.execute(INSERT)
        session.commit()
        enqueue("scripted", {}, effects=app)


def _after_the_rollback(app: Effects) -> None:
    with Session(app.engine) as session:
        session.execute(INSERT)
        session.rollback()
        enqueue("scripted", {}, effects=app)


def _after_a_commit_on_the_same_connection(app: Effects) -> None:
    with app.engine.connect() as connection:
        connection.execute(INSERT)
        connection.commit()
        enqueue("scripted", {}, effects=app)


def _after_an_error(app: Effects) -> None:
    with suppress(sa.exc.DBAPIError), Session(app.engine) as session, session.begin():
        session.execute(INSERT)
        session.execute(sa.text("SELECT * FROM missing"))
    enqueue("scripted", {}, effects=app)


def _without_any_session(app: Effects) -> None:
    enqueue("scripted", {}, effects=app)


def _while_reading(app: Effects) -> None:
    with Session(app.engine.execution_options(effects_readonly=True)) as session:
        session.execute(sa.select(Order)).all()
        enqueue("scripted", {}, effects=app)


def _beside_a_second_engine(app: Effects) -> None:
    engine = sa.create_engine("sqlite://")
    Base.metadata.create_all(engine)
    with Session(engine) as session:
        session.execute(INSERT)
        session.add(Order(item="table"))
        enqueue("scripted", {}, effects=app)
    engine.dispose()


def _after_a_table_was_created_that_sqlite_has_committed(app: Effects) -> None:
    engine = sa.create_engine(app.settings.database_url)
    if not app.store.is_postgresql:
        with Session(engine) as session:
            session.execute(sa.text("CREATE TABLE IF NOT EXISTS orders (id INTEGER)"))
            enqueue("scripted", {}, effects=app)
    engine.dispose()


def _beside_a_writer_of_logs(app: Effects) -> None:
    if not app.store.is_postgresql:
        return
    with app.engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        connection.execute(INSERT)
        enqueue("scripted", {}, effects=app)


def _beside_a_writer_in_another_thread(app: Effects) -> None:
    if not app.store.is_postgresql:
        return
    written, over = threading.Event(), threading.Event()

    def write() -> None:
        with Session(app.engine) as session:
            session.execute(INSERT)
            written.set()
            over.wait()

    thread = threading.Thread(target=write)
    thread.start()
    written.wait()
    enqueue("scripted", {}, effects=app)
    over.set()
    thread.join()


@contextmanager
def _session_of_a_request(app: Effects) -> Iterator[Session]:
    with Session(app.engine) as session:
        session.execute(INSERT)
        yield session


def _in_a_thread_that_another_requests_dependency_used(app: Effects) -> None:
    """As in web frameworks: each step of a request runs in a thread of a pool, in a copy of the request's context."""
    if not app.store.is_postgresql:
        return
    with ThreadPoolExecutor(1) as pool:
        dependency = _session_of_a_request(app)
        pool.submit(contextvars.copy_context().run, dependency.__enter__).result()
        pool.submit(contextvars.copy_context().run, lambda: enqueue("scripted", {}, effects=app)).result()
        pool.submit(contextvars.copy_context().run, dependency.__exit__, None, None, None).result()


def _with_the_session_of_a_dependency_in_another_thread(app: Effects) -> None:
    with ThreadPoolExecutor(2) as pool:
        dependency = _session_of_a_request(app)
        if not app.store.is_postgresql:  # SQLite's connections stay in their thread
            with dependency as session:
                enqueue("scripted", {}, session=session, effects=app)
            return
        session = pool.submit(contextvars.copy_context().run, dependency.__enter__).result()
        pool.submit(
            contextvars.copy_context().run, lambda: enqueue("scripted", {}, session=session, effects=app)
        ).result()
        pool.submit(contextvars.copy_context().run, dependency.__exit__, None, None, None).result()


def _in_a_task_beside(app: Effects) -> None:
    if not app.store.is_postgresql:
        return

    async def notify() -> None:
        enqueue("scripted", {}, effects=app)

    async def handle() -> None:
        with Session(app.engine) as session:
            session.execute(INSERT)
            await asyncio.create_task(notify())

    asyncio.run(handle())


def _with_a_session_of_its_own(app: Effects) -> None:
    if not app.store.is_postgresql:
        return
    with Session(app.engine) as session, Session(app.engine) as own:
        session.execute(INSERT)
        enqueue("scripted", {}, session=own, effects=app)
        own.commit()


CORRECT: list[Callable[[Effects], Any]] = [
    _with_its_session, _with_its_connection, _after_the_commit, _after_the_commit_on_the_same_session,
    _after_the_rollback, _after_a_commit_on_the_same_connection, _after_an_error, _without_any_session,
    _while_reading, _beside_a_second_engine,
    _after_a_table_was_created_that_sqlite_has_committed, _beside_a_writer_of_logs, _beside_a_writer_in_another_thread,
    _in_a_thread_that_another_requests_dependency_used, _with_the_session_of_a_dependency_in_another_thread,
    _in_a_task_beside, _with_a_session_of_its_own,
]  # fmt: skip


def test_correct_patterns_cause_no_warning(shop: Effects) -> None:
    messages = {}
    for pattern in CORRECT:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            pattern(shop)
        messages[pattern.__name__] = [str(warning.message) for warning in caught]
    assert {name: texts for name, texts in messages.items() if texts} == {}
