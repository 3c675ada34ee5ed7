"""Which Effects a call means: the one it names, else that of the session's engine, else the process's own."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.engine import make_url
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column, scoped_session, sessionmaker

from effects import ConfigurationError, Effects, EnqueueError, enqueue, set_default
from effects.store.db.engine import create_engine
from tests.support.manual_workers import rows
from tests.support.scripted import Scripted


class Base(DeclarativeBase):
    """The tables of an app."""


class Order(Base):
    """A row of an app."""

    __tablename__ = "orders"
    id: Mapped[int] = mapped_column(primary_key=True)


@pytest.fixture
def engine(database_url: str) -> Iterator[sa.Engine]:
    """The app's own engine, to the database of the test."""
    engine = create_engine(database_url)
    yield engine
    engine.dispose()


@pytest.fixture
def elsewhere(tmp_path: Path) -> Effects:
    """The process's own Effects, which has another database."""
    app = Effects(f"sqlite:///{tmp_path / 'elsewhere.db'}", job_types=[Scripted()])
    app.create_tables()
    set_default(app)
    return app


@pytest.fixture
def mine_on(engine: sa.Engine) -> Iterator[Callable[..., Effects]]:
    """Makes Effects on the app's engine."""
    with ExitStack() as ending:

        def make(**options: Any) -> Effects:
            app = Effects(engine=engine, job_types=[Scripted()], **options)
            ending.callback(app.dispose)
            return app

        yield make


def _with_session(engine: sa.Engine, stack: ExitStack) -> Any:
    return stack.enter_context(Session(engine))


def _with_options(engine: sa.Engine, stack: ExitStack) -> Any:
    return stack.enter_context(Session(engine.execution_options(logging_token="shop")))


def _with_binds(engine: sa.Engine, stack: ExitStack) -> Any:
    return stack.enter_context(Session(binds={Order: engine}))


def _with_scoped(engine: sa.Engine, stack: ExitStack) -> Any:
    registry = scoped_session(sessionmaker(engine))
    stack.callback(registry.remove)
    return registry


def _with_connection(engine: sa.Engine, stack: ExitStack) -> Any:
    return stack.enter_context(engine.connect())


def _with_connection_of_options(engine: sa.Engine, stack: ExitStack) -> Any:
    return stack.enter_context(engine.connect()).execution_options(logging_token="shop")


def _with_session_on_connection(engine: sa.Engine, stack: ExitStack) -> Any:
    return stack.enter_context(Session(stack.enter_context(engine.connect())))


KINDS = [
    _with_session, _with_options, _with_binds, _with_scoped, _with_connection, _with_connection_of_options,
    _with_session_on_connection,
]  # fmt: skip


@pytest.mark.parametrize("kind", KINDS)
def test_the_sessions_engine_decides(
    kind: Any, engine: sa.Engine, elsewhere: Effects, mine_on: Callable[..., Effects]
) -> None:
    own = mine_on()
    with ExitStack() as stack:
        session = kind(engine, stack)
        enqueue("scripted", {}, session=session)
        session.commit()
    assert len(rows(own, "jobs")) == 1
    assert rows(elsewhere, "jobs") == []


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind is not _with_binds])
def test_the_default_is_used_on_its_own_database(kind: Any, engine: sa.Engine, app: Effects) -> None:
    set_default(app)  # it has an engine of its own
    with ExitStack() as stack:
        session = kind(engine, stack)
        enqueue("scripted", {}, session=session)
        session.commit()
    assert len(rows(app, "jobs")) == 1


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind is not _with_binds])
def test_an_unknown_engine_is_an_error_and_never_the_default(kind: Any, engine: sa.Engine, elsewhere: Effects) -> None:
    with ExitStack() as stack, pytest.raises(EnqueueError, match="pass effects=") as caught:
        enqueue("scripted", {}, session=kind(engine, stack))
    assert "elsewhere.db" in str(caught.value)
    assert rows(elsewhere, "jobs") == []


def test_effects_wins_and_must_have_the_database_of_the_session(
    engine: sa.Engine, elsewhere: Effects, mine_on: Callable[..., Effects]
) -> None:
    first, second = mine_on(), mine_on()
    with Session(engine) as session:
        enqueue("scripted", {}, session=session, effects=second)
        with pytest.raises(EnqueueError, match="session speaks to"):
            enqueue("scripted", {}, session=session, effects=elsewhere)
        session.commit()
    assert len(rows(first, "jobs")) == 1


def test_two_on_one_engine_need_effects(engine: sa.Engine, mine_on: Callable[..., Effects]) -> None:
    first, _second = mine_on(), mine_on()
    set_default(first)
    with Session(engine) as session, pytest.raises(EnqueueError, match="2 Effects were made for the engine"):
        enqueue("scripted", {}, session=session)


def test_a_disposed_or_collected_effects_is_no_candidate(engine: sa.Engine, mine_on: Callable[..., Effects]) -> None:
    mine_on().dispose()
    Effects(engine=engine)
    own = mine_on()
    with Session(engine) as session, session.begin():
        enqueue("scripted", {}, session=session)
    assert len(rows(own, "jobs")) == 1


@pytest.mark.parametrize("database_url", ["postgresql"], indirect=True)
def test_two_on_one_engine_may_differ_by_schema(engine: sa.Engine, mine_on: Callable[..., Effects]) -> None:
    public, jobs = mine_on(schema="public"), mine_on(schema="jobs")
    with engine.begin() as connection:
        connection.exec_driver_sql("CREATE SCHEMA jobs")
    jobs.create_tables()
    with Session(engine) as session, session.begin():
        enqueue("scripted", {}, session=session)
        session.execute(sa.text("SET LOCAL search_path = jobs"))
        enqueue("scripted", {}, session=session)
        enqueue("scripted", {}, session=session)
        session.execute(sa.text("SET LOCAL search_path = pg_catalog"))
        with pytest.raises(EnqueueError, match="pass effects="):
            enqueue("scripted", {}, session=session)
        set_default(jobs)
        enqueue("scripted", {}, session=session)
    assert (len(rows(public, "jobs")), len(rows(jobs, "jobs"))) == (1, 3)


def test_a_session_without_a_bind_is_refused(app: Effects) -> None:
    with Session() as session, pytest.raises(EnqueueError, match="bound to no engine"):
        enqueue("scripted", {}, session=session, effects=app)


@pytest.mark.parametrize("database_url", ["postgresql"], indirect=True)
def test_another_name_of_the_same_server_is_asked_for_once(app: Effects, database_url: str, tmp_path: Path) -> None:
    set_default(app)
    url, link = make_url(database_url), tmp_path / "s"
    folder = str(url.query.get("host", url.host))
    if not folder.startswith("/"):
        pytest.skip("the server has no socket that could have a second name")
    link.symlink_to(folder)
    renamed = create_engine(url.set(query={"host": str(link)}, host=None).render_as_string(hide_password=False))
    statements: list[str] = []
    sa.event.listen(renamed, "before_cursor_execute", lambda *arguments: statements.append(arguments[2]))
    for _ in range(3):
        with Session(renamed) as session, session.begin():
            enqueue("scripted", {}, session=session)
    renamed.dispose()
    assert len(rows(app, "jobs")) == 3
    assert len([statement for statement in statements if "postmaster" in statement]) == 1


def test_the_database_of_a_forgotten_variable_is_named(
    engine: sa.Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    with Session(engine) as session, pytest.raises(EnqueueError, match="EFFECTS_DATABASE_URL is not set"):
        enqueue("scripted", {}, session=session)


@pytest.mark.parametrize("engine", ["sqlite:///x.db", 7, sa.create_engine], ids=["url", "number", "function"])
def test_an_engine_is_an_engine(engine: Any) -> None:
    with pytest.raises(ConfigurationError, match="engine is a"):
        Effects(engine=engine)


@pytest.mark.parametrize("database_url", ["postgresql"], indirect=True)
def test_an_engine_of_another_driver_lends_its_url(database_url: str) -> None:
    url = make_url(database_url).set(drivername="postgresql+psycopg2")
    engine = sa.create_engine(url)
    app = Effects(engine=engine, job_types=[Scripted()])
    with Session(engine) as session, session.begin():
        enqueue("scripted", {}, session=session)
    assert len(rows(app, "jobs")) == 1
    app.dispose()
    engine.dispose()
