"""No thread of a worker dies or stands still in silence: it says so, ends with 70, and loses no answer."""

from __future__ import annotations

import itertools
import logging
import signal
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import pytest

from effects import Done, Effects, JobType, RetryPolicy, enqueue
from effects.model.registry import HOOKS
from effects.model.schedules import Schedule
from effects.model.settlement import Settlement
from effects.operate.evidence import job_evidence
from effects.operate.tables.audit import audit
from effects.store import schedules as schedule_definitions
from effects.worker import Observer, Worker
from effects.worker.machine.runtime import Runtime
from tests.conftest import AppFactory
from tests.peers.proxy import Proxy
from tests.support.manual_workers import rows
from tests.support.processes import Fleet
from tests.support.query_plans import queues_asked, recorded
from tests.support.sampling import sample
from tests.support.scripted import AsyncScripted, Scripted
from tests.support.staged import StagedRuntime
from tests.support.waiting import wait_until
from tests.support.worker_parts import HardEnd

LEASE_SECONDS = 12.0
QUEUES = {"default": 3}
OPTIONS: dict[str, Any] = {
    "lease_seconds": LEASE_SECONDS, "heartbeat_seconds": 2.0, "poll_seconds": 0.5, "grace_seconds": 5.0,
}  # fmt: skip
RUNNER = "runner"  # the thread that called `run`: the dispatcher's
QUEUE = "effects-default-"
AT_REST = 8  # a ninth is `effects work`'s, for signals
IDLE_SECONDS, STATEMENTS_A_SECOND = 20, 2
BOUND_SECONDS = 110.0  # the longest: the scheduler's ten rounds


class Stage:
    """A worker whose time and threads are the test's, with two attempts that the gate holds, and a job behind them."""

    def __init__(self, app: Effects, scripted: Scripted, queues: Mapping[str, int]) -> None:
        self.app, self.scripted, self.runtime = app, scripted, StagedRuntime()
        self.codes: list[int] = []
        self.forced: list[int] = []
        self.worker = Worker(app, queues=queues, runtime=self.runtime, process=HardEnd(self.forced))
        self.thread = self.runtime.start(lambda: self.codes.append(self.worker.run()), RUNNER)

    def put(self, move: str) -> int:
        return enqueue("scripted", {"moves": [move]}, effects=self.app).job_id

    def begin(self) -> None:
        """Two attempts are past their point of no return, and wait at the gate."""
        for _ in range(2):
            self.put("release wait")
        self.runtime.advance(5.0, until=lambda: self.scripted.at_gate == 2)
        assert self.scripted.at_gate == 2

    def alive(self, prefix: str = "") -> list[str]:
        return sorted(
            thread.name for thread in self.runtime.threads if thread.is_alive() and thread.name.startswith(prefix)
        )

    def names(self) -> list[str]:
        """Of all threads that the running worker has, as the interpreter knows them."""
        ours = set(self.alive())
        started = {thread.name for thread in threading.enumerate() if thread.name.startswith(("effects-", RUNNER))}
        assert ours == started - {"effects-notifier"}  # that one is the app's, which enqueues here
        return sorted(ours)

    def ended(self) -> bool:
        return bool(self.codes)


@pytest.fixture
def scripted() -> Scripted:
    return Scripted(on_unknown="hold", time_limit_seconds=600.0)


@pytest.fixture
def app(app_factory: AppFactory, scripted: Scripted) -> Effects:
    return app_factory(job_types=[scripted], **OPTIONS)


@contextmanager
def staged(app: Effects, scripted: Scripted, queues: Mapping[str, int] = QUEUES) -> Iterator[Stage]:
    stage = Stage(app, scripted, queues)
    try:
        yield stage
    finally:
        scripted.gate.set()
        stage.runtime.thaw()
        stage.worker.stop()
        stage.runtime.advance(120.0, until=lambda: not stage.thread.is_alive())
        assert not stage.thread.is_alive()


def every_thread(app: Effects, scripted: Scripted) -> list[str]:
    with staged(app, scripted) as stage:
        stage.begin()
        names = stage.names()
    _finish(app, scripted)
    assert len(names) >= 8, names
    return names


def _finish(app: Effects, scripted: Scripted) -> None:
    """Whoever comes next finds nothing but work: all is done, once, and known."""
    scripted.gate.set()
    Worker(app).drain(30)
    assert rows(app, "jobs") == []
    assert {row["outcome"] for row in rows(app, "job_attempts")} == {"succeeded"}
    assert audit(app.store, app.ledgers) == []
    scripted.gate.clear()
    scripted.at_gate = 0


def test_the_death_of_any_thread_ends_the_worker_and_loses_no_answer(
    app: Effects, scripted: Scripted, caplog: pytest.LogCaptureFixture
) -> None:
    for name in sample(every_thread(app, scripted), 5):
        caplog.clear()
        with staged(app, scripted) as stage:
            stage.begin()
            stage.runtime.kill(name)
            scripted.gate.set()
            stage.runtime.advance(2.0, until=lambda: stage.worker.fault is not None)
            wait_until(lambda: stage.worker.fault is not None)  # the one that listens asks nothing of the runtime
            late = stage.put("done")
            stage.runtime.advance(60.0, until=stage.ended)
            assert stage.codes == [70], name
            assert stage.forced == []
            [kept] = rows(app, "workers", "id = :id", id=stage.worker.id)
            assert (kept["exit_code"], kept["end_reason"]) == (70, str(stage.worker.fault)), name
        [line, *_] = [record for record in caplog.records if record.message == "worker.part_failed"]
        assert line.levelno == logging.ERROR
        assert "KilledError" in str(vars(line)["error"]), name
        assert "staged.py" in str(vars(line)["at"]), name
        assert [row["attempts"] for row in rows(app, "jobs", "id = :late", late=late)] == [0], name
        assert rows(app, "jobs", "status = 'running'") == [], name
        _finish(app, scripted)


def test_threads_are_started_for_jobs_and_end_when_idle(app: Effects, scripted: Scripted) -> None:
    with staged(app, scripted) as stage:
        stage.runtime.advance(5.0, until=lambda: "effects-wakeup" in stage.alive())
        assert stage.alive(QUEUE) == []
        assert len(stage.alive()) <= AT_REST
        stage.begin()
        assert len(stage.alive(QUEUE)) == 2
        scripted.gate.set()
        stage.runtime.advance(60.0, until=lambda: not stage.alive(QUEUE))
        assert stage.alive(QUEUE) == []
        assert len(stage.alive()) <= AT_REST
        stage.put("done")
        stage.runtime.advance(5.0, until=lambda: not rows(app, "jobs"))
        assert rows(app, "jobs") == []


def test_an_idle_worker_polls_all_queues_with_one_statement(app_factory: AppFactory) -> None:
    """By default it sends at most two statements a second, all told."""
    app, runtime = app_factory(), StagedRuntime()
    worker = Worker(app, queues={"default": 1, "a": 1, "b": 1}, runtime=runtime)
    thread = runtime.start(worker.run, RUNNER)
    runtime.advance(5.0, until=lambda: any(alive.name == "effects-wakeup" for alive in runtime.threads))
    runtime.advance(5.0)  # past the claims of its start
    with recorded(app) as statements:

        def looks_at_all() -> int:
            queues = ["effects", "default", "a", "b", "quarantine"]
            return sum(queues_asked(parameters) == queues for _, parameters in statements)

        runtime.advance(IDLE_SECONDS)
    worker.stop()
    runtime.advance(60.0, until=lambda: not thread.is_alive())
    assert looks_at_all() >= 3
    assert len(statements) <= STATEMENTS_A_SECOND * IDLE_SECONDS, statements


def test_another_thread_writes_what_a_dead_settler_held(app: Effects, scripted: Scripted) -> None:
    with staged(app, scripted) as stage:
        stage.begin()
        stage.runtime.kill("effects-settler")
        scripted.gate.set()
        stage.runtime.advance(15.0, until=stage.ended)
        assert stage.codes == [70]
    assert [row["outcome"] for row in rows(app, "job_attempts")] == ["succeeded", "succeeded"]


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
def test_a_stalled_thread_ends_the_worker_and_loses_no_outcome(
    app: Effects, scripted: Scripted, caplog: pytest.LogCaptureFixture
) -> None:
    """But those that need no watch: a queue's thread has its handler's time limit, and polling covers a wake-up."""
    standing = set()
    for name in every_thread(app, scripted):
        caplog.clear()
        with staged(app, scripted) as stage:
            stage.begin()
            stage.runtime.freeze(name)
            scripted.gate.set()
            stage.runtime.advance(BOUND_SECONDS, until=lambda: stage.worker.fault is not None)
            if stage.worker.fault is not None:
                standing.add(name)
                [line, *_] = [record for record in caplog.records if record.message == "worker.part_failed"]
                assert "staged.py" in str(vars(line)["at"]), f"where {name} stands"
                late = stage.put("done")
                stage.runtime.advance(60.0, until=lambda: stage.ended() or stage.forced)
                assert stage.codes or stage.forced == [70], name
                assert rows(app, "jobs", "status = 'running'") == [], (name, stage.worker.fault, vars(line)["at"])
                assert [row["attempts"] for row in rows(app, "jobs", "id = :late", late=late)] == [0], name
                stage.runtime.thaw()
                stage.runtime.advance(60.0, until=stage.ended)
                assert stage.codes == [70], name
        _finish(app, scripted)
    silent = {name for name in every_thread(app, scripted) if name not in standing}
    assert {name.rstrip("0123456789") for name in silent} == {
        QUEUE,
        "effects-last-resort",
        "effects-wakeup",
    }


def test_a_process_that_was_suspended_has_no_fault(app: Effects, scripted: Scripted) -> None:
    with staged(app, scripted) as stage:
        stage.begin()
        stage.runtime.jump(1000.0)
        stage.runtime.advance(5.0)
        assert stage.worker.fault is None
        scripted.gate.set()
        stage.worker.stop()
        stage.runtime.advance(60.0, until=stage.ended)
        assert stage.codes == [0]


# -- what does not end a worker --------------------------------------------------------------------------------


class Rude(JobType[dict[str, Any]]):
    """A job type whose hooks raise when a worker starts and ends; not Ctrl-C, which those who press it mean."""

    name = "rude"
    payload = dict

    def __init__(self, error: type[BaseException]) -> None:
        self.error = error

    def perform(self, payload: dict[str, Any], attempt: Any) -> Done:
        return Done()

    def worker_starts(self) -> None:
        if not issubclass(self.error, KeyboardInterrupt):
            raise self.error("secret: rosebud")

    worker_ends = worker_starts


@pytest.mark.parametrize("error", [ValueError, UnicodeDecodeError, MemoryError, SystemExit, KeyboardInterrupt])
def test_no_hook_or_callback_ends_a_worker(
    error: type[BaseException], app_factory: AppFactory, caplog: pytest.LogCaptureFixture
) -> None:
    class Raised(error):  # type: ignore[misc, valid-type]
        def __init__(self, text: str) -> None:
            BaseException.__init__(self, text)

    class Failed(Observer):
        def recorded(self, settlements: Sequence[Settlement]) -> None:
            raise Raised("secret: rosebud")

    app = app_factory(job_types=[Rude(Raised)], **OPTIONS)
    for _ in range(3):
        enqueue("rude", {}, effects=app)
    result = Worker(app, observers=[Failed()]).drain(30)
    assert (result.exit_code, result.counts) == (0, {"succeeded": 3})
    assert "observer.failed" in caplog.messages
    assert "rosebud" not in caplog.text + "".join(str(vars(record)) for record in caplog.records)


class Failing(JobType[dict[str, Any]]):
    """A job type to which the test gives a hook that raises."""

    name = "failing"
    payload = dict
    on_unknown = "hold"
    retry = RetryPolicy(max_attempts=1)
    keep_error_text = True

    def perform(self, payload: dict[str, Any], attempt: Any) -> Done:
        attempt.release()
        raise OSError("with a text")


# Called by commands alone, whose users see the error.
OF_COMMANDS = {
    "limit_keys_of", "instead_of_requeue", "prune", "check_followers", "declared_jobs", "why_retry_fails",
    "before_retry", "retry_effect", "cancel_effect",
}  # fmt: skip


@pytest.mark.parametrize(
    "error", [ValueError("x"), SystemExit(0), GeneratorExit()], ids=lambda error: type(error).__name__
)
@pytest.mark.parametrize("hook", sorted(set(HOOKS) - OF_COMMANDS))
def test_an_error_of_a_hook_ends_neither_the_worker_nor_its_neighbours(
    hook: str, error: BaseException, app_factory: AppFactory
) -> None:
    """Every hook that a job type may have, found in the list by which they are checked."""
    calls: list[str] = []

    def fail(*_: Any, **__: Any) -> Any:
        calls.append(hook)
        raise error

    failing, neighbour = type("Failing", (Failing,), {hook: fail})(), Scripted()
    app = app_factory(job_types=[failing, neighbour], **OPTIONS)
    schedule_definitions.add(app.store, Schedule("yearly", "failing", payload={}, cron="0 0 1 1 *"), actor="ann")
    with app.store.begin() as connection:  # past `route`, which enqueue would call
        connection.exec_driver_sql(
            "INSERT INTO effects_jobs (job_type, payload, limit_key) VALUES ('failing', '{}', 'l')"
        )
    enqueue("scripted", {}, effects=app)
    result = Worker(app).drain(30)
    assert result.finished
    assert result.exit_code in (0, 1)
    assert neighbour.performed.total() == 1
    assert job_evidence(app, 1).facts.jobs
    assert calls or hook == "can_ask", "it was called"


# -- the end by force --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
@pytest.mark.parametrize("where", ["load", "worker_ends"])
def test_a_second_signal_ends_what_hangs(where: str, database_url: str, processes: Fleet) -> None:
    """The main thread hangs in C, where Python calls no signal handler."""
    app = Effects(database_url)
    worker = processes.worker(app="tests.support.hanging_app:app", HANG=where)
    worker.wait_logged("worker.started")
    enqueue_plain(app)
    worker.wait_logged("hang.begins" if where == "load" else "job.succeeded")
    worker.send(signal.SIGTERM)
    worker.wait_logged("worker.stopping")
    if where == "worker_ends":
        worker.wait_logged("hang.begins")
    worker.send(signal.SIGINT)
    assert worker.wait(20) == 143
    app.dispose()


def enqueue_plain(app: Effects) -> None:
    with app.store.begin() as connection:
        connection.exec_driver_sql("INSERT INTO effects_jobs (job_type, payload) VALUES ('hang', '{}')")


@pytest.mark.parametrize("database_url", ["postgresql"], indirect=True)
def test_releasing_behind_another_thread_during_an_outage_is_no_fault(
    proxy: Proxy, caplog: pytest.LogCaptureFixture
) -> None:
    """The thread that releases for the event loop waits for one that waits for the database."""
    on_thread, on_loop = (
        kind(name, on_unknown="hold", time_limit_seconds=600.0)
        for kind, name in ((Scripted, "thread"), (AsyncScripted, "loop"))
    )
    app = Effects(proxy.url, job_types=[on_thread, on_loop], **OPTIONS)
    with staged(app, on_thread, {"default": 1, "async": 10}) as stage:
        for name in ("thread", "loop"):
            enqueue(name, {"moves": ["wait release"]}, effects=app)
        stage.runtime.advance(5.0, until=lambda: on_thread.at_gate and on_loop.at_gate)
        proxy.refuse()
        on_thread.gate.set()
        stage.runtime.advance(3.0)
        on_loop.gate.set()
        stage.runtime.advance(LEASE_SECONDS + 2)
        assert "effects-releases" in stage.alive()
        proxy.accept()
        stage.runtime.advance(2.0)
        assert not stage.ended()
    assert "worker.part_failed" not in caplog.messages
    app.dispose()


class _SuspendedHost(Runtime):
    """A host that is suspended for a quarter of an hour as soon as the worker has written its row."""

    def __init__(self) -> None:
        looks = itertools.count()
        self.lease_clock = lambda: time.monotonic() + (900.0 if next(looks) > 1 else 0.0)


def test_a_drain_that_does_not_know_its_lease_does_not_report_that_nothing_is_due(
    app_factory: AppFactory, scripted: Scripted
) -> None:
    """It claims nothing until its next heartbeat, and goes on then."""
    app = app_factory(job_types=[scripted], **{**OPTIONS, "heartbeat_seconds": 0.2})
    enqueue("scripted", {"moves": []}, effects=app)

    result = Worker(app, runtime=_SuspendedHost()).drain(30)

    assert (result.finished, result.counts) == (True, {"succeeded": 1})
