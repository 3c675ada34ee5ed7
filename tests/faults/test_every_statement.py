"""Every statement that a worker sends meets each fault of a server, on the wire; on SQLite each error code.

The statements are recorded from a worker at work, not listed. After each fault the worker lives and its jobs end; what
arrived twice is on record, what must not be repeated arrived once at most, and nothing is recorded that is not so.
"""

from __future__ import annotations

import itertools
import json
import sqlite3
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from sqlalchemy import event

from effects import Effects, enqueue
from effects.operate.tables.audit import audit
from effects.worker import Worker, context
from tests.peers.saboteur import Sabotage, Saboteur
from tests.peers.stub_server import StubServer
from tests.support.manual_workers import rows, run_sql
from tests.support.running import running
from tests.support.sampling import sample
from tests.support.step_jobs import StepJob, step_jobs_app
from tests.support.waiting import wait_until

OPTIONS: dict[str, Any] = {"lease_seconds": 3.0, "heartbeat_seconds": 0.2, "poll_seconds": 0.1, "threads": 3}
SAMPLE_SIZE, HANGS_SIZE, SHARDS = 6, 2, 2

_STATES = """
08000 08003 08006 0A000 21000 22003 22007 22021 22P02 23502 23503 23505 23514 25006 25P02 25P03 26000 28000 3F000
40001 40P01 42501 42601 42703 42704 42883 42P01 42P10 44000 53000 53100 53200 53300 54000 55000 55006 55P03 57014
57P01 57P02 57P03 58030 P0001 XX000 XX001
"""
FAULTS = [*_STATES.split(), "before", "after"]
_CODES = """
SQLITE_ERROR SQLITE_PERM SQLITE_ABORT SQLITE_BUSY SQLITE_BUSY_SNAPSHOT SQLITE_LOCKED SQLITE_NOMEM SQLITE_READONLY
SQLITE_INTERRUPT SQLITE_IOERR SQLITE_IOERR_WRITE SQLITE_IOERR_FSYNC SQLITE_FULL SQLITE_CANTOPEN SQLITE_PROTOCOL
SQLITE_SCHEMA SQLITE_TOOBIG SQLITE_CONSTRAINT SQLITE_CONSTRAINT_UNIQUE SQLITE_MISMATCH SQLITE_NOLFS SQLITE_AUTH
"""
CODES = {name: int(getattr(sqlite3, name)) for name in _CODES.split()}


class Case:
    """One worker's work under one fault."""

    def __init__(self, app: Effects, stub_server: StubServer, number: int) -> None:
        self.app, self.stub_server = app, stub_server
        self._prefix = f"case{number}"

    def enqueue(self) -> None:
        """Jobs of every way that there is through a worker."""
        port, name = self.stub_server.port, self._prefix
        self.stub_server.busy[f"{name}-again"] = 1
        ways: dict[str, dict[str, Any]] = {
            "plain": {}, "again": {}, "keyed": {"key": f"{name}-keyed"}, "one": {"group_key": name},
            "two": {"group_key": name}, "limited": {"limit_key": "l"},
        }  # fmt: skip
        for what, options in ways.items():
            enqueue("step_job", StepJob(f"{name}-{what}", port), effects=self.app, **options)
        enqueue("step_job", StepJob(f"{name}-first", port, ("do", "follow keyed")), effects=self.app)
        held = StepJob(f"{name}-held", port, ("release", "do"))
        enqueue("step_job.held", held, key=f"{name}-held", effects=self.app)
        cast = "CAST(:payload AS jsonb)" if self.app.store.is_postgresql else ":payload"
        run_sql(
            self.app,
            f"INSERT INTO effects_jobs (job_type, payload, idempotency_key) VALUES ('step_job', {cast}, :key)",
            payload=f'{{"name": "{name}-inserted", "port": {port}}}', key=f"{name}-inserted",
        )  # fmt: skip

    def check(self) -> None:
        """Nothing is lost, doubled without record, or recorded wrongly."""
        ended = {row["payload"]["name"]: row for row in _history(self.app) if _is_of(row, self._prefix)}
        parts = ["plain", "again", "keyed", "one", "two", "limited", "first", "held", "inserted"]
        assert {f"{self._prefix}-{part}" for part in parts} <= set(ended)
        for name, job in ended.items():
            attempts = rows(self.app, "job_attempts", "job_id = :id", id=job["id"])
            arrived = self.stub_server.done.count(name)
            recorded = [attempt["verdict"] for attempt in attempts if attempt["verdict"] in ("done", "unknown")]
            assert arrived <= len(recorded), name
            assert (job["status"] == "succeeded") == ("done" in recorded), name
            assert arrived >= recorded.count("done"), name
            if job["job_type"] == "step_job.held":
                assert arrived <= 1, name
            else:
                assert job["status"] == "succeeded", name


def _history(app: Effects) -> list[dict[str, Any]]:
    return [{**row, "payload": _decoded(row["payload"])} for row in rows(app, "job_history")]


def _decoded(payload: Any) -> Any:
    return json.loads(payload) if isinstance(payload, str) else payload


def _is_of(row: dict[str, Any], prefix: str) -> bool:
    return str(row["payload"].get("name", "")).startswith(f"{prefix}-")


def _work(app: Effects, direct: Effects, stub_server: StubServer, number: int) -> None:
    case = Case(direct, stub_server, number)
    with running(Worker(app)):
        case.enqueue()
        wait_until(lambda: not rows(direct, "jobs", "job_type LIKE 'step_job%'"))
    case.check()


@pytest.fixture
def direct(database_url: str) -> Iterator[Effects]:
    step_app = step_jobs_app(database_url, **OPTIONS)
    yield step_app
    step_app.dispose()


@pytest.mark.parametrize("database_url", ["postgresql"], indirect=True)
@pytest.mark.parametrize("shard", range(SHARDS))
def test_on_postgresql(
    shard: int, direct: Effects, database_url: str, stub_server: StubServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(context, "TRANSACTION_SECONDS_MIN", 1.0)
    numbers = itertools.count()
    with Saboteur(database_url) as saboteur:
        _through(saboteur, direct, stub_server, next(numbers))
        cases = [Sabotage(kind, fault) for kind in sorted(saboteur.kinds) for fault in FAULTS]
        hangs = [Sabotage(kind, "hang") for kind in sorted(saboteur.kinds)]  # the gravest: more than its share
        assert len(saboteur.kinds) > 30
        reached = 0
        chosen = sample(cases, SAMPLE_SIZE * SHARDS) + sample(hangs, HANGS_SIZE * SHARDS)
        for sabotage in chosen[shard::SHARDS]:
            print(sabotage)
            saboteur.prepare(sabotage)
            _through(saboteur, direct, stub_server, next(numbers))
            reached += saboteur.done.is_set()
        assert reached >= SAMPLE_SIZE // 2
    assert audit(direct.store, direct.ledgers) == []


def _through(saboteur: Saboteur, direct: Effects, stub_server: StubServer, number: int) -> None:
    app = step_jobs_app(saboteur.url, **OPTIONS)
    try:
        _work(app, direct, stub_server, number)
    finally:
        app.dispose()


class _Failing:
    """Raises an error of SQLite's at one statement of this engine, as its driver would."""

    def __init__(self, app: Effects) -> None:
        self.kinds: set[str] = set()
        self._armed: Sabotage | None = None
        self._lock = threading.Lock()
        event.listen(app.engine, "before_cursor_execute", self._before)

    def prepare(self, sabotage: Sabotage) -> None:
        self._armed = sabotage

    @property
    def done(self) -> bool:
        return self._armed is None

    def _before(self, connection: Any, cursor: Any, statement: str, *rest: object) -> None:
        kind = " ".join(statement.split())
        with self._lock:
            self.kinds.add(kind)
            if self._armed is None or self._armed.kind != kind:
                return
            name, self._armed = self._armed.fault, None
        error = sqlite3.OperationalError("no such table: sabotage" if name == "SQLITE_ERROR" else "sabotage")
        error.sqlite_errorcode, error.sqlite_errorname = CODES[name], name
        raise error


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
def test_on_sqlite(direct: Effects, database_url: str, stub_server: StubServer) -> None:
    app = step_jobs_app(database_url, **OPTIONS)
    failing = _Failing(app)
    numbers = itertools.count()
    _work(app, direct, stub_server, next(numbers))
    cases = [Sabotage(kind, code) for kind in sorted(failing.kinds) for code in CODES]
    assert len(failing.kinds) > 30
    reached = 0
    for sabotage in sample(cases, SAMPLE_SIZE):
        print(sabotage)
        failing.prepare(sabotage)
        _work(app, direct, stub_server, next(numbers))
        reached += failing.done
    assert reached >= SAMPLE_SIZE // 2
    assert audit(direct.store, direct.ledgers) == []
    app.dispose()
