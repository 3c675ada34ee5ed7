"""States of a server and locks of an app: a worker waits, goes round them, and never ends for them."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from sqlalchemy.orm import Session

from effects import Effects, NewJob, enqueue, enqueue_many
from effects.errors import StoreConflict, StoreRejected, WorkerCannotContinue
from effects.kit.exit_codes import ExitCode
from effects.operate.tables.audit import audit
from effects.store.db.faults import Fault
from effects.worker import Worker, context
from effects.worker.context import Outage
from effects.worker.machine.runtime import Runtime
from tests.peers.proxy import Proxy
from tests.peers.stub_server import StubServer
from tests.support.manual_workers import rows, run_sql
from tests.support.running import running
from tests.support.step_jobs import StepJob, step_jobs_app
from tests.support.waiting import wait_until

# What the tests enqueue beside a transaction of their own is meant to be outside of it.
OPTIONS: dict[str, Any] = {"lease_seconds": 3.0, "heartbeat_seconds": 0.3, "poll_seconds": 0.1, "sessions": "off"}
on_postgresql = pytest.mark.parametrize("database_url", ["postgresql"], indirect=True)


@pytest.fixture
def app(database_url: str) -> Iterator[Effects]:
    step_app = step_jobs_app(database_url, **OPTIONS)
    yield step_app
    step_app.dispose()


@on_postgresql
def test_a_key_in_an_open_transaction_keeps_back_its_own_job_alone(app: Effects, stub_server: StubServer) -> None:
    """The worker writes the intent of a job from a plain INSERT, and the app has not yet committed the same key."""
    with Session(app.engine) as held:
        enqueue("step_job", StepJob("held", stub_server.port), key="k", session=held, effects=app)
        _insert(app, stub_server, "blocked", key="k")
        with running(Worker(app)):
            enqueue_many(
                [NewJob(job_type="step_job", payload=StepJob(f"{n}", stub_server.port)) for n in range(20)], effects=app
            )
            wait_until(lambda: len(stub_server.done) == 20)
            held.rollback()
            run_sql(app, "UPDATE effects_jobs SET run_at = now() WHERE status <> 'running'")
            wait_until(lambda: "blocked" in stub_server.done)
            wait_until(lambda: not rows(app, "jobs"))
    assert {row["outcome"] for row in rows(app, "job_attempts")} <= {"succeeded", "snoozed", ""}


@on_postgresql
@pytest.mark.parametrize("commits", [True, False])
def test_an_outcome_that_waits_for_a_lock_keeps_back_no_other(
    commits: bool, app: Effects, stub_server: StubServer
) -> None:
    """`Done(apply=…)` enqueues with a key that an open transaction of the app has used."""
    with Session(app.engine) as held:
        enqueue("step_job", StepJob("one-then", stub_server.port), key="one-then", session=held, effects=app)
        with running(Worker(app)):
            enqueue("step_job", StepJob("one", stub_server.port, ("do", "follow keyed")), effects=app)
            wait_until(lambda: "one" in stub_server.done)
            enqueue_many(
                [NewJob(job_type="step_job", payload=StepJob(f"{n}", stub_server.port)) for n in range(20)], effects=app
            )
            wait_until(lambda: len(rows(app, "job_history")) == 20)
            assert [row["status"] for row in rows(app, "jobs")] == ["running"]  # it alone waits
            held.commit() if commits else held.rollback()
            wait_until(lambda: not rows(app, "jobs"))
    assert sorted(stub_server.done) == sorted(["one", "one-then", *(f"{n}" for n in range(20))])
    assert {row["outcome"] for row in rows(app, "job_attempts")} == {"succeeded"}
    assert audit(app.store, app.ledgers) == []


@on_postgresql
def test_a_server_that_turns_read_only_is_waited_out_on_fresh_connections(
    app: Effects, stub_server: StubServer, caplog: pytest.LogCaptureFixture
) -> None:
    """As after a switchover: the connections lead to a server that is no longer the right one."""
    with running(Worker(app)):
        enqueue("step_job", StepJob("before", stub_server.port), effects=app)
        wait_until(lambda: stub_server.done == ["before"] and not rows(app, "jobs"))
        _read_only(app, "on")
        wait_until(lambda: "database.read_only" in caplog.messages)
        _read_only(app, "off", hang_up=False)  # those that were opened meanwhile stay as they are
        outside = _other(app)
        enqueue("step_job", StepJob("after", stub_server.port), effects=outside)
        outside.dispose()
        wait_until(lambda: not rows(app, "jobs"))
    assert stub_server.done == ["before", "after"]
    said = next(record for record in caplog.records if record.getMessage() == "database.read_only")
    assert "target_session_attrs=read-write" in vars(said)["error"]
    _assert_calm(caplog)


@on_postgresql
def test_a_server_that_hangs_is_left_within_the_lease(
    app: Effects,
    proxy: Proxy,
    stub_server: StubServer,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Nothing is closed, and nothing is answered."""
    monkeypatch.setattr(context, "TRANSACTION_SECONDS_MIN", 1.0)
    through = step_jobs_app(proxy.url, **{**OPTIONS, "lease_seconds": 15.0})  # long enough for a busy machine
    stub_server.hold("one")
    with running(Worker(through)):
        enqueue("step_job", StepJob("one", stub_server.port, ("ask", "do")), effects=app)
        stub_server.wait_asked("one")
        proxy.freeze()
        stub_server.open("one")
        wait_until(lambda: {"database.silent", "database.away"} <= set(caplog.messages))
        proxy.thaw()
        wait_until(lambda: not rows(app, "jobs"))
    assert stub_server.done == ["one"]
    assert [row["outcome"] for row in rows(app, "job_attempts")] == ["succeeded"]
    _assert_calm(caplog)
    through.dispose()


def test_a_conflict_is_no_outage(caplog: pytest.LogCaptureFixture) -> None:
    """While there are conflicts the worker goes on rescuing: the database is there."""
    outage = Outage(_Quick())
    answers: list[Any] = [StoreConflict("in the way"), StoreConflict("in the way"), "done"]
    assert outage.retry_until_available(lambda: _next(answers), give_up=lambda: False) == "done"
    outage.began(StoreConflict("in the way"))  # as the rescuer and the scheduler tell it
    assert (outage.under_way, outage.ended_at) == (False, float("-inf"))
    assert caplog.messages == []


@pytest.mark.parametrize(
    ("fault", "seconds", "ends"),
    [
        (Fault.SCHEMA, 60, False),
        (Fault.SCHEMA, 200, True),
        (Fault.CORRUPT, 0, True),
        (Fault.DENIED, 10_000, False),
        (Fault.BUG, 10_000, False),
    ],
)
def test_what_the_database_rejects_ends_a_worker_only_where_no_retry_can_help(
    fault: Fault, seconds: float, ends: bool
) -> None:
    runtime = _Quick()
    outage = Outage(runtime, lease_seconds=120)

    def reject() -> str:
        if runtime.time > seconds and not ends:
            return "done"
        raise StoreRejected("no", fault=fault)

    if ends:
        with pytest.raises(WorkerCannotContinue):
            outage.retry_until_available(reject, give_up=lambda: False)
    else:
        assert outage.retry_until_available(reject, give_up=lambda: False) == "done"


def test_tables_that_stay_missing_end_the_worker_with_70(app: Effects, caplog: pytest.LogCaptureFixture) -> None:
    """For a lease they are waited for: a deploy may be under way."""
    codes: list[int] = []
    worker = Worker(app)
    thread = threading.Thread(target=lambda: codes.append(worker.run()))
    thread.start()
    wait_until(lambda: worker._parts.started)  # before that its start raises it
    run_sql(app, "ALTER TABLE effects_jobs RENAME TO effects_jobs_elsewhere")
    wait_until(lambda: "database.rejected" in caplog.messages)
    thread.join(60)
    assert codes == [ExitCode.PART_FAILED]
    ended = next(record for record in caplog.records if record.getMessage() == "worker.part_failed")
    assert vars(ended)["part"] in ("dispatcher", "heartbeat")  # whichever asks first
    assert vars(ended)["error"] == "WorkerCannotContinue"


class _Quick(Runtime):
    """Its time passes by sleeping alone, at once."""

    def __init__(self) -> None:
        self.time = 0.0
        self.monotonic = lambda: self.time  # type: ignore[method-assign]

    def sleep(self, seconds: float) -> None:
        self.time += seconds


def _next(answers: list[Any]) -> Any:
    answer = answers.pop(0)
    if isinstance(answer, Exception):
        raise answer
    return answer


def _insert(app: Effects, stub_server: StubServer, name: str, *, key: str) -> None:
    run_sql(
        app,
        "INSERT INTO effects_jobs (job_type, payload, idempotency_key) "
        "VALUES ('step_job', CAST(:payload AS jsonb), :key)",
        payload=f'{{"name": "{name}", "port": {stub_server.port}}}',
        key=key,
    )


def _read_only(app: Effects, value: str, *, hang_up: bool = True) -> None:
    """For connections that are opened from now on; and end the others, as a switchover does."""
    outside = _other(app)
    with outside.engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        name = connection.exec_driver_sql("SELECT current_database()").scalar()
        connection.exec_driver_sql("SET default_transaction_read_only = off")
        connection.exec_driver_sql(f'ALTER DATABASE "{name}" SET default_transaction_read_only = {value}')
        if hang_up:
            connection.exec_driver_sql(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
                "WHERE datname = current_database() AND pid <> pg_backend_pid()"
            )
    outside.dispose()


def _other(app: Effects) -> Effects:
    return step_jobs_app(app.engine.url.set(drivername="postgresql").render_as_string(hide_password=False), **OPTIONS)


def _assert_calm(caplog: pytest.LogCaptureFixture) -> None:
    """On a busy machine an outage may last for longer than the lease, which the worker then says."""
    records = [record for record in caplog.records if record.levelno >= logging.ERROR or record.exc_info]
    assert [record for record in records if record.getMessage() != "worker.fenced_off"] == []
