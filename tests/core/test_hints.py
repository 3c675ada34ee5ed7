"""NOTIFY as a hint: after the commit, many in one, none after a rollback."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import psycopg
import pytest
from sqlalchemy import text
from sqlalchemy.engine import make_url
from sqlalchemy.orm import Session

from effects import Effects, enqueue
from effects.hints import channel
from effects.store import migrate
from tests.support import databases
from tests.support.scripted import Scripted

LAST = "last"  # the queue of a job that is enqueued when everything to be heard has been said


@dataclass
class Listener:
    app: Effects
    connection: psycopg.Connection[object]

    def heard(self) -> list[set[str]]:
        """The queues of each notification up to that of `LAST`."""
        self.connection.execute("SELECT 1")
        enqueue("scripted", {}, queue=LAST, effects=self.app)
        found = []
        for note in self.connection.notifies(timeout=30):
            found.append(set(note.payload.split(",")))
            if LAST in found[-1]:
                return found
        raise AssertionError("the last hint never came")


@pytest.fixture(params=[None, "jobs"], ids=["no schema", "schema"])
def listener(request: pytest.FixtureRequest, postgresql_server: str) -> Iterator[Listener]:
    with databases.postgresql_database(postgresql_server) as url:
        app = Effects(url, job_types=[Scripted()], schema=request.param)
        migrate.init(app.store)
        plain = make_url(url).render_as_string(hide_password=False)
        with psycopg.connect(plain, autocommit=True) as connection:
            connection.execute(f"LISTEN {channel(request.param)}".encode())
            yield Listener(app, connection)
        app.dispose()


def test_a_commit_of_a_session_is_heard(listener: Listener) -> None:
    with Session(listener.app.engine) as session, session.begin():
        enqueue("scripted", {}, queue="a", session=session, effects=listener.app)
        enqueue("scripted", {}, queue="b", session=session, effects=listener.app)
    assert set().union(*listener.heard()) == {"a", "b", LAST}


def test_many_commits_share_a_hint(listener: Listener) -> None:
    for _ in range(100):
        enqueue("scripted", {}, queue="a", effects=listener.app)
    heard = listener.heard()
    assert {"a"} <= set().union(*heard)
    assert len(heard) < 80


def test_nothing_is_heard_of_a_rollback(listener: Listener) -> None:
    with Session(listener.app.engine) as session:
        enqueue("scripted", {}, queue="gone", session=session, effects=listener.app)
        session.rollback()
        enqueue("scripted", {}, queue="kept", session=session, effects=listener.app)
        session.commit()
    assert set().union(*listener.heard()) == {"kept", LAST}


def test_a_released_savepoint_waits_for_the_commit(listener: Listener) -> None:
    with Session(listener.app.engine) as session:
        with session.begin_nested():
            enqueue("scripted", {}, queue="inner", session=session, effects=listener.app)
        session.rollback()
        with session.begin_nested():
            enqueue("scripted", {}, queue="kept", session=session, effects=listener.app)
        session.commit()
    assert set().union(*listener.heard()) == {"kept", LAST}


def test_a_rolled_back_savepoint_does_not_silence_the_rest(listener: Listener) -> None:
    with Session(listener.app.engine) as session:
        enqueue("scripted", {}, queue="kept", session=session, effects=listener.app)
        savepoint = session.begin_nested()
        savepoint.rollback()
        session.commit()
    assert "kept" in set().union(*listener.heard())


def test_a_rollback_under_an_open_savepoint_forgets_everything(listener: Listener) -> None:
    with Session(listener.app.engine) as session:
        enqueue("scripted", {}, queue="gone", session=session, effects=listener.app)
        session.begin_nested()
        enqueue("scripted", {}, queue="gone too", session=session, effects=listener.app)
        session.rollback()
        session.execute(text("SELECT 1"))
        session.commit()
    assert set().union(*listener.heard()) == {LAST}


def test_a_closed_app_has_said_all_it_had_to_say(listener: Listener) -> None:
    enqueue("scripted", {}, queue="farewell", effects=listener.app)
    listener.app.dispose()
    [note] = listener.connection.notifies(timeout=30, stop_after=1)
    assert note.payload == "farewell"


def test_sqlite_has_nothing_to_send(tmp_path: Path) -> None:
    app = Effects(databases.migrated(f"sqlite:///{tmp_path / 'x.db'}"), job_types=[Scripted()])
    with Session(app.engine) as session, session.begin():
        enqueue("scripted", {}, session=session, effects=app)
        assert session.info == {}
    app.dispose()
