"""A queue that no one serves is refused where it is named; what a live worker serves is known."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, TypeAlias

import pytest
from sqlalchemy import Connection
from sqlalchemy.orm import Session

from effects import ConfigurationError, Effects, EnqueueError, NewJob, enqueue, enqueue_async, enqueue_many
from effects.store.limits.holds import KNOWN_MAX, KnownQueues
from tests.conftest import AppFactory
from tests.support.manual_workers import ManualWorker, row, rows, run_sql
from tests.support.query_plans import recorded
from tests.support.scripted import Scripted

Call: TypeAlias = Callable[[Effects, str], object]


def _function(app: Effects, queue: str, **options: Any) -> object:
    if "pager.page" in app.job_types:
        app.job_types.remove("pager.page")

    @app.job("pager.page")
    def page() -> None: ...

    return page.using(queue=queue, **options).enqueue()


CALLS: dict[str, Call] = {
    "enqueue": lambda app, queue: enqueue("scripted", {}, queue=queue, effects=app),
    "with a key": lambda app, queue: enqueue("scripted", {}, queue=queue, key="k", effects=app),
    "enqueue_many": lambda app, queue: enqueue_many([_new(None), _new(queue)], effects=app),
    "a function": _function,
    "async": lambda app, queue: asyncio.run(enqueue_async("scripted", {}, queue=queue, effects=app)),
    "routed": lambda app, queue: enqueue("scripted", {"queue": queue}, effects=app),
}
calls = pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)


def _new(queue: str | None) -> NewJob:
    return NewJob(job_type="scripted", payload={}, queue=queue)


@calls
def test_a_queue_that_no_one_serves_is_refused(app: Effects, call: Call) -> None:
    with pytest.raises(EnqueueError, match=r"queue 'emials': .*; is it 'emails'\? .*Effects\(queues=\['emials'\]\)"):
        call(app, "emials")
    assert rows(app, "jobs") == []


@calls
@pytest.mark.parametrize("known_by", ["the app", "a job type", "a setting", "a live worker", "a worker of before"])
def test_a_queue_that_someone_serves_is_taken(app_factory: AppFactory, call: Call, known_by: str) -> None:
    """A worker's, too, while it is down for a moment: this process has seen it."""
    types = [Scripted(), *([Scripted("more", queue="media")] if known_by == "a job type" else [])]
    options = {"the app": {"queues": ["media"]}, "a setting": {"queues": "media=3"}}.get(known_by, {})
    app = app_factory(job_types=types, **options)
    if "worker" in known_by:
        ManualWorker(app, queue="media")
    call(app, "media")
    if known_by == "a worker of before":
        for table in ("workers", "jobs", "effect_ledger"):
            run_sql(app, f"DELETE FROM effects_{table}")
        call(app, "media")
    assert "media" in {job["queue"] for job in rows(app, "jobs")}


def test_a_worker_that_is_long_gone_serves_nothing(app: Effects) -> None:
    ManualWorker(app, queue="media")
    run_sql(app, f"UPDATE effects_workers SET seen_at = {app.store.sql.after('-600')}")
    with pytest.raises(EnqueueError):
        enqueue("scripted", {}, queue="media", effects=app)


def _in_session(app: Effects, work: Callable[[Session], object]) -> None:
    with Session(app.engine) as session:
        work(session)
        session.commit()


def _in_connection(app: Effects, work: Callable[[Connection], object]) -> None:
    with app.engine.begin() as connection:
        work(connection)


@pytest.mark.parametrize("transaction", [_in_session, _in_connection], ids=["session", "connection"])
def test_the_callers_transaction_goes_on_after_a_refusal(app: Effects, transaction: Callable[..., None]) -> None:
    def work(session: Any) -> None:
        enqueue("scripted", {"name": "before"}, session=session, effects=app)
        with pytest.raises(EnqueueError):
            enqueue("scripted", {}, queue="emials", session=session, effects=app)
        enqueue("scripted", {"name": "after"}, session=session, effects=app)

    transaction(app, work)
    assert len(rows(app, "jobs")) == 2


def test_only_a_name_that_is_new_costs_a_query(app: Effects) -> None:
    ManualWorker(app, queue="media")
    with recorded(app) as statements:
        for queue in (None, "default", "emails", "effects", "media", "media"):
            enqueue("scripted", {}, queue=queue, effects=app)
    assert sum("effects_workers" in statement for statement, _ in statements) == 1


def test_what_is_remembered_has_a_bound(app: Effects) -> None:
    queues = KnownQueues(app.store, lambda: app.queues, 60.0)
    for worker in range(4):
        ManualWorker(app, f"w{worker}", queue=",".join(f"q{worker}_{number}" for number in range(KNOWN_MAX)))
        with app.store.read() as connection:
            queues.check(connection, [f"q{worker}_0"])
        run_sql(app, "DELETE FROM effects_workers")
    assert len(queues._names) < 2 * KNOWN_MAX


@pytest.mark.parametrize(
    ("queues", "says"),
    [(["a,b"], "has a comma"), ([""], "must have 1 to"), ([1], r"queues\[0\] is an int"), (5, "give a list")],
)
def test_names_that_no_queue_has_are_refused(tmp_path: Any, queues: Any, says: str) -> None:
    with pytest.raises(ConfigurationError, match=says):
        Effects(f"sqlite:///{tmp_path / 'x.db'}", queues=queues)


def test_a_row_by_plain_sql_waits(app: Effects) -> None:
    run_sql(app, "INSERT INTO effects_jobs (job_type, payload, queue) VALUES ('scripted', '{}', 'emials')")
    assert ManualWorker(app).claim() == []
    assert row(app, "jobs")["status"] == "queued"
