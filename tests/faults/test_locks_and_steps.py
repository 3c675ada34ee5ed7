"""Any lock that the app can hold × each step of a worker: it lives, and everything is done once the lock ends."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import pytest
from sqlalchemy import Connection, MetaData, create_engine, event, text
from sqlalchemy.exc import OperationalError
from sqlalchemy.pool import NullPool

from effects import Attempt, Done, Effects, NewJob, Outcome, enqueue_many
from effects.kit import crashpoints
from effects.model.limits import Rate
from effects.operate.tables.audit import audit
from effects.store.db.faults import Fault, fault_of
from effects.store.limits import key_limits as limits
from effects.store.schema.tables import build_tables
from effects.worker import Worker
from tests.conftest import AppFactory
from tests.support.manual_workers import ManualWorker, rows, run_sql
from tests.support.running import running
from tests.support.sampling import sample
from tests.support.scripted import Script, Scripted
from tests.support.waiting import wait_until

TABLES = sorted(table.name for table in dict(build_tables(MetaData())).values())
HELD_SECONDS = 6.0  # at most, where nothing waits for it
ROWS = {f"rows of {table}": f"SELECT * FROM {table} FOR UPDATE" for table in TABLES}
WHOLE = {
    f"{mode} {table}": f"LOCK TABLE {table} IN {mode} MODE"
    for table in TABLES
    for mode in ("SHARE", "EXCLUSIVE", "ACCESS EXCLUSIVE")
}
LOCKS = {**ROWS, **WHOLE, "file": "BEGIN IMMEDIATE"}
STEPS = (
    "claim.before_commit", "claim.committed", "heartbeat.before", "release.before", "perform.before", "perform.after",
    "settle.before", "settle.applied", "rescue.selected", "rescue.committed",
)  # fmt: skip
SAMPLED = 4
CASES = [
    *(("sqlite", "file", step) for step in STEPS),
    *(("postgresql", lock, step) for lock in LOCKS if lock != "file" for step in STEPS),
]
ONES = sample([case for case in CASES if case[0] == "sqlite"], 2) + sample(
    [case for case in CASES if case[0] == "postgresql"], SAMPLED
)


class Counting(Scripted):
    """Counts its effects: what comes after a release."""

    def __init__(self) -> None:
        super().__init__(on_unknown="hold")
        self.effects: Counter[str] = Counter()

    def perform(self, payload: Script, attempt: Attempt) -> Outcome:
        attempt.release()
        self.effects[payload.name] += 1
        return Done()


class Lock:
    """Taken by the thread that passes a step, the first time; held until the test ends it."""

    def __init__(self, app: Effects, name: str, step: str) -> None:
        self.step, self.statement = step, LOCKS[name]
        self._engine = create_engine(app.engine.url, poolclass=NullPool, connect_args=_impatient(app))
        self._connection: Connection | None = None
        self._once = threading.Lock()
        self.tried = threading.Event()

    def at(self, step: str) -> None:
        if step != self.step or not self._once.acquire(blocking=False):
            return
        self._connection = self._engine.connect()
        with suppress(OperationalError):  # the worker itself holds it at this step
            self._connection.execute(text(self.statement))
        self.tried.set()

    def end(self) -> None:
        if self._connection is not None:
            self._connection.rollback()
            self._connection.close()


def _impatient(app: Effects) -> dict[str, Any]:
    return {"options": "-c lock_timeout=500"} if app.store.is_postgresql else {"timeout": 0.5}


@contextmanager
def conflicts(app: Effects) -> Iterator[list[str]]:
    """What the worker's statements ran into."""
    met: list[str] = []

    def note(context: Any) -> None:
        if fault_of(context.sqlalchemy_exception) is Fault.CONFLICT:
            met.append(str(context.statement))

    for engine in app.store.engines:
        event.listen(engine, "handle_error", note)
    yield met
    for engine in app.store.engines:
        event.remove(engine, "handle_error", note)


def fill(app: Effects) -> int:
    """Jobs of every kind, one of a worker that is gone among them; how many."""
    with app.store.begin() as connection:
        limits.ensure_limit(app.store, connection, "l", max_in_flight=2, rate=Rate(100, 1.0))
    kinds: tuple[dict[str, Any], ...] = ({}, {"key": "k"}, {"group_key": "g"}, {"limit_key": "l"})
    jobs = [
        NewJob(job_type="scripted", payload=Script(name=f"{number} {kind}"), **options)
        for number in range(3)
        for kind, options in enumerate(kinds)
        if not (number and "key" in options)
    ]
    enqueue_many([NewJob(job_type="scripted", payload=Script(name="lost"))], effects=app)
    ManualWorker(app, "gone").claim_one()
    run_sql(app, "DELETE FROM effects_workers")
    enqueue_many(jobs, effects=app)
    run_sql(app, """INSERT INTO effects_jobs (job_type, payload) VALUES ('scripted', '{"name": "plain"}')""")
    return len(jobs) + 2


@pytest.mark.timeout(150)
@pytest.mark.parametrize(("database_url", "lock", "step"), ONES, indirect=["database_url"])
def test_no_lock_of_the_app_ends_a_worker_or_loses_a_job(app_factory: AppFactory, lock: str, step: str) -> None:
    scripted = Counting()
    app = app_factory(job_types=[scripted], poll_seconds=0.1, lease_seconds=3.0, heartbeat_seconds=0.5, threads=2)
    count = fill(app)
    held = Lock(app, lock, step)
    crashpoints.install(held.at)
    with conflicts(app) as met, running(Worker(app)):
        try:
            wait_until(held.tried.is_set)
            with suppress(AssertionError):  # nothing need wait for this lock
                wait_until(lambda: met or scripted.effects.total() >= count, seconds=HELD_SECONDS)
        finally:
            held.end()
        wait_until(lambda: not rows(app, "jobs"), seconds=90)
    ended = rows(app, "job_history")
    assert len(ended) == count
    doubtful = [job for job in ended if job["status"] != "succeeded"]
    assert all("held for an operator" in job["last_error"] for job in doubtful), "as its type says"
    assert all(times == 1 for times in scripted.effects.values()), scripted.effects
    assert audit(app.store, app.ledgers) == []
