"""A call that names neither an Effects nor a session means the process's own: set, the only one made, or built."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.orm import Session

from effects import (
    ConfigurationError,
    Effects,
    EnqueueError,
    SessionForgotten,
    SessionForgottenWarning,
    UnknownJobType,
    cancel,
    default,
    enqueue,
    set_default,
)
from effects.store.db.engine import create_engine
from effects.testing import Toolkit
from tests.support.manual_workers import rows
from tests.support.scripted import Scripted

pytestmark = pytest.mark.slow  # each looks for garbage in all that the process holds

POSTGRESQL = pytest.mark.parametrize("database_url", ["postgresql"], indirect=True)
Make = Callable[..., Effects]


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """What the environment names: another database."""
    set_default(None)
    monkeypatch.setenv("EFFECTS_DATABASE_URL", url := f"sqlite:///{tmp_path / 'elsewhere.db'}")
    return url


@pytest.fixture
def engine(database_url: str) -> Iterator[sa.Engine]:
    """The app's own engine, with a table of its own."""
    engine = create_engine(database_url)
    with engine.begin() as connection:
        connection.exec_driver_sql("CREATE TABLE notes (text TEXT)")
    yield engine
    with engine.begin() as connection:
        connection.exec_driver_sql("DROP TABLE notes")
    engine.dispose()


@pytest.fixture
def make() -> Iterator[Make]:
    """Makes Effects with a job type, disposed of at the end. One with an engine refuses another database's variable."""
    with ExitStack() as ending:

        def make(url: str | None = None, **options: Any) -> Effects:
            with pytest.MonkeyPatch.context() as meanwhile:
                if "engine" in options:
                    meanwhile.delenv("EFFECTS_DATABASE_URL")
                app = Effects(url, job_types=[Scripted()], **options)
            ending.callback(app.dispose)
            return app

        yield make


def test_the_only_effects_is_the_default(engine: sa.Engine, make: Make) -> None:
    app = make(engine=engine)
    assert default() is app
    enqueue("scripted", {})
    assert len(rows(app, "jobs")) == 1


def test_without_an_effects_the_environment_makes_the_default(elsewhere: str) -> None:
    app = default()
    assert app.settings.database_url == elsewhere
    assert default() is app
    app.dispose()
    assert default() is not app


def test_an_effects_set_as_default_wins(engine: sa.Engine, make: Make, elsewhere: str) -> None:
    make(engine=engine)
    app = make(elsewhere)
    set_default(app)
    assert default() is app


def test_several_effects_need_an_explicit_one(engine: sa.Engine, make: Make, tmp_path: Path) -> None:
    app, archive = make(engine=engine), make(f"sqlite:///{tmp_path / 'archive.db'}")
    with pytest.raises(ConfigurationError, match="2 Effects were made in this process") as caught:
        enqueue("scripted", {})
    assert "archive.db" in str(caught.value)
    assert "set_default(app)" in str(caught.value)
    enqueue("scripted", {}, effects=app)
    archive.dispose()
    enqueue("scripted", {})
    assert len(rows(app, "jobs")) == 2


def test_a_garbage_collected_effects_is_not_the_default(engine: sa.Engine, make: Make, tmp_path: Path) -> None:
    Effects(f"sqlite:///{tmp_path / 'dropped.db'}")
    app = make(engine=engine)
    assert default() is app


def test_a_default_of_the_environment_used_before_counts_as_another(engine: sa.Engine, make: Make) -> None:
    used = default()
    make(engine=engine)
    with pytest.raises(ConfigurationError, match=r"elsewhere\.db"):
        enqueue("scripted", {})
    used.dispose()
    enqueue("scripted", {})


def test_the_apps_own_effects_replaces_the_same_one_of_the_environment(make: Make, elsewhere: str) -> None:
    of_environment = default()
    app = make(elsewhere)
    assert default() is app
    assert of_environment is not app


def test_a_session_leads_to_the_one_of_its_database(engine: sa.Engine, make: Make, database_url: str) -> None:
    """Each has an engine of its own, and so has the session."""
    app, twin_app = make(database_url), make()
    with Session(engine) as session, session.begin():
        enqueue("scripted", {}, session=session)
    assert len(rows(app, "jobs")) == 1
    twin_app.dispose()
    second = make(database_url)
    with Session(engine) as session, pytest.raises(EnqueueError, match="2 Effects have the database of this session"):
        enqueue("scripted", {}, session=session)
    second.dispose()
    app.dispose()


def test_a_session_of_the_environments_database(make: Make, database_url: str, elsewhere: str) -> None:
    archive = make(database_url)
    make(elsewhere).create_tables()
    set_default(None)
    engine = create_engine(elsewhere)
    with Session(engine) as session, pytest.raises(UnknownJobType, match="no job type"):
        enqueue("scripted.unknown", {}, session=session)
    engine.dispose()
    assert rows(archive, "jobs") == []


@POSTGRESQL
def test_a_forgotten_session_is_seen_without_effects(engine: sa.Engine, make: Make) -> None:
    app = make(engine=engine, sessions="warn")
    with Session(engine) as session:
        session.execute(sa.text("INSERT INTO notes VALUES ('x')"))
        with pytest.warns(SessionForgottenWarning, match="session= is missing"):
            enqueue("scripted", {})
    assert len(rows(app, "jobs")) == 1


def test_a_required_session_is_missed_without_effects(engine: sa.Engine, make: Make) -> None:
    app = make(engine=engine)
    job = enqueue("scripted", {}, key="k")
    with Session(engine) as session:
        session.execute(sa.text("INSERT INTO notes VALUES ('x')"))
        for call in (lambda: enqueue("scripted", {}), lambda: cancel(key="k", actor="ann")):
            with pytest.raises(SessionForgotten, match="pass session="):
                call()
    assert [row["id"] for row in rows(app, "jobs")] == [job.job_id]


def test_correct_calls_without_effects_cause_no_warning(engine: sa.Engine, make: Make) -> None:
    app = make(engine=engine)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with Session(engine) as session, session.begin():
            session.execute(sa.text("INSERT INTO notes VALUES ('x')"))
            enqueue("scripted", {}, session=session)
        enqueue("scripted", {})
        with Session(engine) as session:
            session.execute(sa.text("SELECT 1 FROM notes")).all()
            session.commit()
            enqueue("scripted", {})
    assert len(rows(app, "jobs")) == 3


def test_a_toolkit_without_an_app_uses_the_only_effects(make: Make, elsewhere: str) -> None:
    app = make(elsewhere)
    with Toolkit() as toolkit:
        assert toolkit.app is app
        enqueue("scripted", {})
        [job] = toolkit.jobs
    assert job.job_type == "scripted"
    assert default() is app
