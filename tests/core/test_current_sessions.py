"""Calls without `session=` join the transaction that the app has named once, by `Effects(current=…)`."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session, scoped_session, sessionmaker

from effects import (
    ALONE,
    ConfigurationError,
    Effects,
    EnqueueError,
    JobNotFound,
    SessionForgotten,
    cancel,
    enqueue,
    enqueue_async,
    enqueue_many,
    status,
)
from effects.keys.encryption import generate_key
from effects_email import send_email
from effects_reports import report, request_report
from effects_webhooks import WebhookEvent, add_endpoint, deliver_webhook
from tests.conftest import AppFactory
from tests.support.manual_workers import rows

current: ContextVar[Any] = ContextVar("current")
KEYS = f"k1={generate_key()},digest={generate_key()}"


@pytest.fixture
def app(app_factory: AppFactory) -> Effects:
    return app_factory(current=current.get, email_from="Shop <shop@example.com>", reports=[numbers], keys=KEYS)


@report("numbers", key=("n",), formats=("csv",))
def numbers(params: None) -> Any:
    return sa.select(sa.literal(1).label("n"))


@pytest.fixture
def session(app: Effects) -> Iterator[Session]:
    with Session(app.engine) as session:
        token = current.set(session)
        yield session
        current.reset(token)


def _function(app: Effects) -> object:
    if "shop.label" in app.job_types:
        app.job_types.remove("shop.label")

    @app.job("shop.label")
    def label(order: int) -> None: ...

    return label.enqueue(order=3), enqueue_many([label.job(order=4)], effects=app)


CALLS: dict[str, tuple[Callable[[Effects], object], int]] = {
    "enqueue": (lambda app: enqueue("scripted", {}, effects=app), 1),
    "a function": (_function, 2),
    "mail": (lambda app: send_email(to="a@example.com", subject="s", text="t", effects=app), 1),
    "webhook": (lambda app: deliver_webhook(WebhookEvent("order.paid", {}), effects=app), 1),
    "report": (lambda app: request_report("numbers", effects=app), 1),
}


@pytest.mark.parametrize("call", CALLS)
def test_what_is_written_is_part_of_the_current_transaction(app: Effects, session: Session, call: str) -> None:
    add_endpoint("https://partner.example/hooks", ["order.*"], session=session, effects=app)
    session.commit()
    carry_out, jobs = CALLS[call]
    carry_out(app)
    session.rollback()
    assert rows(app, "jobs") == []
    carry_out(app)
    session.commit()
    assert len(rows(app, "jobs")) == jobs


def test_an_effect_is_found_and_withdrawn_in_the_current_transaction(app: Effects, session: Session) -> None:
    enqueue("scripted", {}, key="k", effects=app)
    assert status(key="k", effects=app).state == "intended"
    with pytest.raises(JobNotFound):
        status(key="k", session=ALONE, effects=app)
    session.commit()
    assert cancel(key="k", actor="app", effects=app).result == "cancelled"
    session.rollback()
    assert len(rows(app, "jobs")) == 1


def test_a_session_that_is_given_comes_first(app: Effects, session: Session) -> None:
    with Session(app.engine) as own, own.begin():
        enqueue("scripted", {}, session=own, effects=app)
    session.rollback()
    assert len(rows(app, "jobs")) == 1


def _unset() -> Any:
    raise LookupError


def _without_context() -> Any:
    raise RuntimeError("Working outside of application context.")


@pytest.mark.parametrize("function", [lambda: None, _unset, _without_context])
def test_where_there_is_none_a_call_is_alone_unless_one_is_forgotten(app_factory: AppFactory, function: Any) -> None:
    app = app_factory(current=function)
    enqueue("scripted", {}, effects=app)
    with Session(app.engine) as session:
        session.execute(sa.text("CREATE TABLE notes (note TEXT)"))
        session.execute(sa.text("INSERT INTO notes VALUES ('x')"))
        with pytest.raises(SessionForgotten, match="pass session="):
            enqueue("scripted", {}, effects=app)
    assert len(rows(app, "jobs")) == 1


def test_alone_is_a_transaction_of_its_own(app: Effects, session: Session) -> None:
    enqueue("scripted", {}, session=ALONE, effects=app)
    assert len(rows(app, "jobs")) == 1
    session.execute(sa.text("UPDATE effects_jobs SET priority = 3"))
    if app.store.is_postgresql:
        enqueue_many([], session=ALONE, effects=app)
        enqueue("scripted", {}, session=ALONE, effects=app)
        assert len(rows(app, "jobs")) == 2
    else:
        with pytest.raises(SessionForgotten, match="locked by this thread's own transaction"):
            enqueue("scripted", {}, session=ALONE, effects=app)


def test_the_session_of_a_scope_is_joined(app_factory: AppFactory) -> None:
    """As Flask-SQLAlchemy's `db.session` is one."""
    scope: scoped_session[Session] = scoped_session(sessionmaker())
    app = app_factory(current=scope)
    scope.configure(bind=app.engine)
    enqueue("scripted", {}, effects=app)
    scope.rollback()
    assert rows(app, "jobs") == []
    enqueue("scripted", {}, effects=app)
    scope.commit()
    scope.remove()
    assert len(rows(app, "jobs")) == 1


def test_what_cannot_be_called_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="current is a str; give a function"):
        Effects(f"sqlite:///{tmp_path}/shop.db", current="session")  # type: ignore[arg-type]


def test_async_calls_join_the_current_async_session(app: Effects) -> None:
    driver = "postgresql+psycopg" if app.store.is_postgresql else "sqlite+aiosqlite"
    engine = create_async_engine(app.engine.url.set(drivername=driver))

    @app.job("shop.label")
    def label(order: int) -> None: ...

    async def visit(end: str) -> None:
        async with AsyncSession(engine) as session:
            token = current.set(session)
            await enqueue_async("scripted", {}, effects=app)
            await label.enqueue_async(order=3)
            with pytest.raises(EnqueueError, match=r"await enqueue_async\(…, session=session\)"):
                label.enqueue(order=3)
            await getattr(session, end)()
            await label.using(session=ALONE).enqueue_async(order=4)
            current.reset(token)

    async def both() -> None:
        await visit("rollback")
        assert len(rows(app, "jobs")) == 1
        await visit("commit")
        assert len(rows(app, "jobs")) == 4
        await engine.dispose()

    asyncio.run(both())
