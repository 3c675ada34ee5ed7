"""An open transaction of the app holds up only its own jobs, however long it lasts."""

from __future__ import annotations

import threading

import pytest
from sqlalchemy import create_engine
from sqlalchemy.orm import Session

from effects import Effects, NewJob, enqueue, enqueue_many
from effects.operate.tables.audit import audit
from effects.store.db import store
from effects.worker import Worker, context
from tests.conftest import AppFactory
from tests.peers.proxy import Proxy
from tests.peers.stub_server import StubServer
from tests.support.manual_workers import rows, run_sql
from tests.support.running import running
from tests.support.scripted import Scripted
from tests.support.step_jobs import StepJob, step_jobs_app
from tests.support.waiting import wait_until

pytestmark = pytest.mark.parametrize("database_url", ["postgresql"], indirect=True)

OTHERS = 20
HELD = {
    "a key": ({"key": "held"}, "idempotency_key", 1),
    "keys": ({"key": "held"}, "idempotency_key", 8),  # more than one batch waits for
    "a group": ({"group_key": "held"}, "group_key", 1),
    "a group without jobs": ({"group_key": "held"}, "limit_key", 1),
}


@pytest.mark.parametrize("held", HELD)
def test_jobs_run_beside_what_an_open_transaction_holds(app_factory: AppFactory, held: str) -> None:
    """Plain INSERTs name what is held; they wait or not, and the others are done meanwhile."""
    options, column, count = HELD[held]
    # The jobs of others are enqueued by the thread that holds the transaction: on purpose, so without a warning.
    app = app_factory(job_types=[Scripted()], poll_seconds=0.1, sessions="off")
    with Session(app.engine) as session, session.begin():
        for number in range(count):
            named = {name: f"{value}{number}" for name, value in options.items()}
            enqueue("scripted", {}, session=session, effects=app, **named)  # type: ignore[arg-type]
            run_sql(app, f"INSERT INTO effects_jobs (job_type, {column}) VALUES ('scripted', 'held{number}')")
        others = {
            receipt.job_id for receipt in enqueue_many([NewJob(job_type="scripted", payload={})] * OTHERS, effects=app)
        }
        with running(Worker(app)):
            wait_until(lambda: others <= {job["id"] for job in rows(app, "job_history", "status = 'succeeded'")})
            session.commit()
            wait_until(lambda: not rows(app, "jobs"))
    ended = [job["status"] for job in rows(app, "job_history")]
    assert ended.count("cancelled") == (count if column == "idempotency_key" else 0)  # the key is another job's
    assert ended.count("succeeded") + ended.count("cancelled") == OTHERS + 2 * count
    assert audit(app.store, app.ledgers) == []


def test_the_longer_a_key_is_held_the_longer_its_job_waits_for_the_next_try(app_factory: AppFactory) -> None:
    """Each try holds up the dispatcher for a moment."""
    app = app_factory(job_types=[Scripted()], poll_seconds=0.1)
    waits = "run_at - updated_at >= interval '8 seconds' AND status = 'queued'"
    with Session(app.engine) as session, session.begin():
        enqueue("scripted", {}, key="held", session=session, effects=app)
        run_sql(
            app,
            "INSERT INTO effects_jobs (job_type, idempotency_key, age_from) "
            "VALUES ('scripted', 'held', now() - interval '8 seconds')",
        )
        with running(Worker(app)):
            wait_until(lambda: rows(app, "jobs", waits))


class _Vanishing(Proxy):
    """Nothing more passes from the transaction that first enqueues by a key, and its connection stays open."""

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self.vanished = threading.Event()

    def verdict(self, statement: str, transaction: str | None) -> str | None:
        if transaction is None or self.vanished.is_set() or not statement.startswith("WITH intended"):
            return None
        self.vanished.set()
        return "hang"


def test_locks_of_a_worker_that_vanished_within_a_transaction_are_released(
    database_url: str, stub_server: StubServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server hears neither the worker nor that its connection is gone, as when a host loses its power."""
    monkeypatch.setattr(store, "IDLE_MS", 1000)
    monkeypatch.setattr(context, "TRANSACTION_SECONDS_MIN", 1.0)
    direct = step_jobs_app(database_url)
    with _Vanishing(database_url) as proxy:
        app = step_jobs_app(proxy.url, lease_seconds=3.0, heartbeat_seconds=0.2, poll_seconds=0.1)
        enqueue("step_job", StepJob("one", stub_server.port, ("do", "follow keyed")), key="one", effects=direct)
        with running(Worker(app)):
            wait_until(proxy.vanished.is_set)
            wait_until(lambda: not rows(direct, "jobs"))
        app.dispose()
    assert [job["status"] for job in rows(direct, "job_history")] == ["succeeded", "succeeded"]
    assert audit(direct.store, direct.ledgers) == []
    direct.dispose()


def test_each_transaction_of_a_worker_tells_the_server_how_long_it_may_wait_for_it(app_factory: AppFactory) -> None:
    """With an engine of ours, and with an app's own, whose sessions others may share."""
    ours = app_factory()
    theirs = Effects(engine=create_engine(ours.engine.url))
    for app in (ours, theirs):
        for begin in (app.store.begin, app.store.begin_own):
            with app.store.within(context.bounds(60)[0]), begin() as connection:
                assert connection.exec_driver_sql("SHOW idle_in_transaction_session_timeout").scalar() == "10s"
    theirs.engine.dispose()
