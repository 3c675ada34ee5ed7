"""NOTIFY as a hint: after the commit, many in one, none after a rollback."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import psycopg
import pytest
from sqlalchemy import Engine, text
from sqlalchemy.engine import make_url
from sqlalchemy.ext.asyncio import create_async_engine
from sqlalchemy.orm import Session

from effects import Effects, enqueue, enqueue_async
from effects.store.migrations import migrate
from effects.store.notifier import WATCHED_MAX, EndListener, channel, end_channel, job_ids
from effects.store.sessions.joining import _PENDING
from effects.worker import Worker
from tests.peers.saboteur import Sabotage, Saboteur
from tests.support import databases
from tests.support.running import running
from tests.support.scripted import Scripted
from tests.support.waiting import wait_until

LAST = "last"  # the queue of a job that is enqueued when everything to be heard has been said
NAMED_QUEUES = ("a", "b", "c", "first", "gone", "gone too", "kept", "inner", "it's", "farewell", LAST)


@dataclass
class Listener:
    app: Effects
    connection: psycopg.Connection[object]

    def heard(self) -> list[set[str]]:
        """The queues of each notification up to that of `LAST`."""
        self.connection.execute("SELECT 1")
        enqueue("scripted", {}, queue=LAST, effects=self.app)
        notifications = []
        for note in self.connection.notifies(timeout=30):
            notifications.append(set(note.payload.split(",")))
            if LAST in notifications[-1]:
                return notifications
        raise AssertionError("the last hint never came")


@contextmanager
def listening(url: str, through: str, schema: str | None = None) -> Iterator[Listener]:
    """A listener at `url`, and an app whose URL is `through`."""
    app = Effects(through, job_types=[Scripted()], schema=schema, queues=NAMED_QUEUES)
    migrate.init(app.store)
    plain = make_url(url).render_as_string(hide_password=False)
    with psycopg.connect(plain, autocommit=True) as connection:
        connection.execute(f"LISTEN {channel(schema)}".encode())
        yield Listener(app, connection)
    app.dispose()


@pytest.fixture(params=[None, "jobs"], ids=["no schema", "schema"])
def listener(request: pytest.FixtureRequest, postgresql_server: str) -> Iterator[Listener]:
    with databases.postgresql_database(postgresql_server) as url, listening(url, url, request.param) as listener:
        yield listener


def test_a_hint_that_the_server_rejects_is_not_the_last(postgresql_server: str) -> None:
    """Its thread stays: jobs of hints to come would wait for polling, and nobody would know why."""
    hint = f"SET LOCAL synchronous_commit = off; NOTIFY {channel(None)}, 'first'"
    with (
        databases.postgresql_database(postgresql_server) as url,
        Saboteur(url) as saboteur,
        listening(url, saboteur.url) as listener,
    ):
        saboteur.prepare(Sabotage(hint, "0A000"))
        enqueue("scripted", {}, queue="first", effects=listener.app)
        assert saboteur.done.wait(60)
        assert listener.heard() == [{LAST}]


def test_a_commit_of_a_session_is_notified(listener: Listener) -> None:
    with Session(listener.app.engine) as session, session.begin():
        enqueue("scripted", {}, queue="a", session=session, effects=listener.app)
        enqueue("scripted", {}, queue="b", session=session, effects=listener.app)
    assert set().union(*listener.heard()) == {"a", "b", LAST}


@pytest.mark.parametrize("kind", [Session, Engine.connect], ids=["Session", "Connection"])
def test_many_calls_of_a_transaction_are_remembered_as_one(listener: Listener, kind: Any) -> None:
    """A loop that enqueues a million jobs keeps as little in memory as one that enqueues ten."""
    with kind(listener.app.engine) as session:
        for _ in range(3):
            enqueue("scripted", {}, queue="a", session=session, effects=listener.app)
        assert len(session.info[_PENDING]) == 1
        session.commit()
    assert set().union(*listener.heard()) == {"a", LAST}


@pytest.mark.slow
def test_many_commits_share_a_notification(listener: Listener) -> None:
    for _ in range(100):
        enqueue("scripted", {}, queue="a", effects=listener.app)
    heard = listener.heard()
    assert {"a"} <= set().union(*heard)
    assert len(heard) < 80


def test_a_rollback_is_not_notified(listener: Listener) -> None:
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


def test_a_commit_of_a_connection_is_notified(listener: Listener) -> None:
    with listener.app.engine.connect() as connection:
        with connection.begin():
            enqueue("scripted", {}, queue="a", session=connection, effects=listener.app)
        with connection.begin() as transaction:
            enqueue("scripted", {}, queue="gone", session=connection, effects=listener.app)
            transaction.rollback()
        enqueue("scripted", {}, queue="b", session=connection, effects=listener.app)
        savepoint = connection.begin_nested()
        enqueue("scripted", {}, queue="c", session=connection, effects=listener.app)
        savepoint.rollback()
        connection.commit()
        enqueue("scripted", {}, queue="gone too", session=connection, effects=listener.app)
    with listener.app.engine.begin():
        """What the closed one has left is not this one's."""
    heard = set().union(*listener.heard())
    assert {"a", "b", LAST} <= heard
    assert not {"gone", "gone too"} & heard


def test_a_commit_of_an_asynchronous_connection_is_notified(listener: Listener) -> None:
    async def commit() -> None:
        engine = create_async_engine(listener.app.engine.url.set(drivername="postgresql+asyncpg"))
        async with engine.begin() as connection:
            await enqueue_async("scripted", {}, queue="a", session=connection, effects=listener.app)
        await engine.dispose()

    asyncio.run(commit())
    assert set().union(*listener.heard()) == {"a", LAST}


@pytest.mark.parametrize("inside", [False, True])
def test_a_drivers_connection_notifies_inside_its_transaction(listener: Listener, inside: bool) -> None:
    app = listener.app
    app.settings = replace(app.settings, notify_in_transaction=inside)
    with psycopg.connect(app.engine.url.set(drivername="postgresql").render_as_string(hide_password=False)) as driver:
        enqueue("scripted", {}, queue="it's", session=driver, effects=app)
    with psycopg.connect(app.engine.url.set(drivername="postgresql").render_as_string(hide_password=False)) as driver:
        enqueue("scripted", {}, queue="gone", session=driver, effects=app)
        driver.rollback()
    assert set().union(*listener.heard()) == ({"it's", LAST} if inside else {LAST})


def test_a_closed_app_has_sent_all_notifications(listener: Listener) -> None:
    enqueue("scripted", {}, queue="farewell", effects=listener.app)
    listener.app.dispose()
    [note] = listener.connection.notifies(timeout=30, stop_after=1)
    assert note.payload == "farewell"


def test_a_notification_just_after_another_is_sent_before_the_app_closes(listener: Listener) -> None:
    """The notifier pauses after each."""
    listener.app.notifier.send(["first"])
    for _ in listener.connection.notifies(timeout=30, stop_after=1):
        listener.app.notifier.send(["farewell"])
        listener.app.dispose()
    [note] = listener.connection.notifies(timeout=30, stop_after=1)
    assert note.payload == "farewell"


# -- the end of a job ------------------------------------------------------------------------------------


def test_a_worker_announces_the_end_that_someone_waits_for(listener: Listener) -> None:
    app = listener.app
    scripted = app.job_types.get("scripted")
    assert isinstance(scripted, Scripted)
    ids = [enqueue("scripted", {"moves": ["wait"]}, effects=app).job_id for _ in range(2)]
    listener.connection.execute(f"LISTEN {end_channel(app.store.schema)}".encode())
    with running(Worker(app)), EndListener(app.store) as end_listener:
        wait_until(lambda: end_listener.wait(ids[1], 0.05) or ids[1] in app.notifier._watched)
        waiter = threading.Thread(target=lambda: end_listener.wait(ids[1], 3600), daemon=True)
        waiter.start()
        scripted.gate.set()
        waiter.join(60)
        assert not waiter.is_alive()
    ends = [note.payload for note in listener.connection.notifies(timeout=0.2) if "$end" in note.channel]
    assert ends == [str(ids[1])]  # and nothing of the job that no one waits for


def test_a_caller_that_can_no_longer_listen_waits_out_its_time(
    listener: Listener, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("DEBUG", "effects")
    with EndListener(listener.app.store) as end_listener:
        end_listener._driver.close()
        end_listener.wait(1, 0.01)
        end_listener.wait(1, 0.01)
    assert caplog.messages == ["no longer listening: OperationalError"]  # said once; the second wait only waits


def test_invalid_ids_in_notifications_are_ignored(listener: Listener) -> None:
    assert job_ids("17,x,-3,²,,18," + "9" * 30) == {17, 18}
    notifier = listener.app.notifier
    notifier.watch(range(WATCHED_MAX + 5))
    assert len(notifier._watched) == WATCHED_MAX
    assert 0 not in notifier._watched


def test_sqlite_has_nothing_to_send(tmp_path: Path) -> None:
    app = Effects(databases.migrated(f"sqlite:///{tmp_path / 'x.db'}"), job_types=[Scripted()])
    with Session(app.engine) as session, session.begin():
        enqueue("scripted", {}, session=session, effects=app)
        assert session.info == {}
    app.dispose()
