"""Async handlers: on one event loop, a thousand in flight, under the contract that blocking ones have."""

from __future__ import annotations

import asyncio
import logging
import subprocess
import sys
import threading
from collections.abc import Callable
from contextvars import ContextVar
from typing import Any

import pytest

from effects import Attempt, Done, Effects, JobType, NewJob, cancel, enqueue, enqueue_many
from effects.extend.process import long_call
from effects.model.outcome import Cancelled
from effects.operate.tables.audit import audit
from effects.worker import Worker
from effects.worker.attempts import attempt as running_attempt
from effects.worker.machine.event_loop import HELPERS_MAX, EventLoop
from effects.worker.machine.runtime import Runtime
from tests.conftest import AppFactory
from tests.support.manual_workers import row, rows, run_sql
from tests.support.running import running
from tests.support.scripted import ANSWERS, AsyncScripted, Scripted
from tests.support.staged import StagedRuntime
from tests.support.waiting import wait_until
from tests.support.worker_parts import HardEnd

IN_FLIGHT = 1_000
OF_THE_CALLER: ContextVar[str] = ContextVar("OF_THE_CALLER")
FREQUENT: dict[str, Any] = {"heartbeat_seconds": 0.1, "lease_seconds": 30.0, "poll_seconds": 0.1}


@pytest.fixture
def scripted() -> AsyncScripted:
    return AsyncScripted(on_unknown="hold", time_limit_seconds=60.0)


@pytest.fixture
def app(app_factory: AppFactory, scripted: AsyncScripted) -> Effects:
    return app_factory(job_types=[scripted], grace_seconds=20.0, **FREQUENT)


def put(app: Effects, *moves: str, **options: Any) -> int:
    return enqueue("scripted", {"moves": list(moves)}, effects=app, **options).job_id


def attempt_of(app: Effects, job: int) -> dict[str, Any]:
    return row(app, "job_attempts", "job_id = :job", job=job)


def test_a_thousand_are_in_flight_on_one_thread(app: Effects, scripted: AsyncScripted) -> None:
    enqueue_many([NewJob(job_type="scripted", payload={"moves": ["wait"]})] * IN_FLIGHT, effects=app)
    with running(Worker(app)):
        wait_until(lambda: scripted.in_flight == IN_FLIGHT)
        names = [thread.name for thread in threading.enumerate()]
        scripted.gate.set()
        wait_until(lambda: not rows(app, "jobs"))
    assert names.count("effects-loop") == 1
    assert not [name for name in names if name.startswith("effects-async-")]
    assert {attempt["outcome"] for attempt in rows(app, "job_attempts")} == {"succeeded"}
    assert audit(app.store, app.ledgers) == []


def test_no_more_is_claimed_than_is_free_in_flight(app: Effects, scripted: AsyncScripted) -> None:
    jobs = [put(app, "wait") for _ in range(12)]
    with running(Worker(app, queues={"async": 5})):
        wait_until(lambda: scripted.in_flight == 5)
        assert len(rows(app, "jobs", "status = 'running'")) == 5
        scripted.gate.set()
        wait_until(lambda: not rows(app, "jobs"))
    assert sorted(attempt["job_id"] for attempt in rows(app, "job_attempts")) == jobs


def test_long_calls_take_no_thread_of_brief_ones(app: Effects) -> None:
    gate = threading.Event()
    waiting: list[int] = []

    @app.job("call", queue="async", on_unknown="hold")
    async def call(attempt: Attempt, *, long: bool) -> None:
        if long:
            await long_call(lambda: waiting.append(attempt.job.id) or gate.wait())
        else:
            await asyncio.to_thread(len, ())

    enqueue_many([call.job(long=True)] * (HELPERS_MAX + 1), effects=app)
    with running(Worker(app)):
        wait_until(lambda: len(waiting) == HELPERS_MAX + 1)
        brief = call.enqueue(long=False).job_id
        wait_until(lambda: rows(app, "job_history", "id = :id", id=brief))
        assert len(rows(app, "jobs")) == HELPERS_MAX + 1
        gate.set()
    assert {job["status"] for job in rows(app, "job_history")} == {"succeeded"}


@pytest.mark.parametrize("released", ["", "release "])
@pytest.mark.parametrize("move", ANSWERS)
def test_each_answer_has_the_meaning_of_a_blocking_handlers(app_factory: AppFactory, move: str, released: str) -> None:
    recorded = []
    for kind in (Scripted, AsyncScripted):
        job_type = kind(on_unknown="hold")
        job_type.gate.set()
        job_type.name = f"scripted.{kind.__name__.lower()}"
        app = app_factory(job_types=[job_type])
        if kind is Scripted and move == "stay":
            move = "wait"
        job = enqueue(job_type.name, {"moves": [f"{released}{move}"]}, key=kind.__name__, effects=app).job_id
        Worker(app).drain(30)
        attempt = attempt_of(app, job)
        [ended] = rows(app, "jobs", "id = :job", job=job) or rows(app, "job_history", "id = :job", job=job)
        state = row(app, "effect_ledger", "job_id = :job", job=job)["state"]
        facts = [attempt[name] for name in ("outcome", "verdict", "error_code", "error_type")]
        recorded.append((*facts, ended["status"], ended["attempts"], state))
        assert "rosebud" not in str(attempt)
        assert ("scripted.py" in str(attempt["stack"])) == (move == "raise")
    assert recorded[0] == recorded[1]


def test_a_decorated_function_is_released_before_it_is_called(app_factory: AppFactory) -> None:
    app = app_factory()
    seen: list[Any] = []

    @app.job("pager.page", on_unknown="hold", queue="pages")
    async def page(attempt: Attempt, team: int) -> None:
        seen.append(await asyncio.to_thread(lambda: row(app, "jobs")["released_at"]))
        assert attempt.job.key == "incident:7"

    page.using(key="incident:7").enqueue(team=1)
    assert Worker(app).drain(30).counts == {"succeeded": 1}
    assert seen[0] is not None


def test_a_handler_inherits_nothing_of_who_drains(app_factory: AppFactory) -> None:
    """As in a thread. A framework may note there which thread serves its calls, and wait for the one that drains."""
    seen = []
    app = app_factory(job_types=[])

    @app.job("pager.look")
    async def look() -> None:
        seen.append(OF_THE_CALLER.get("nothing"))

    look.enqueue()
    OF_THE_CALLER.set("something")
    Worker(app).drain()
    assert seen == ["nothing"]


@pytest.mark.parametrize(("moves", "verdict"), [("wait", "not_done"), ("release wait", "unknown")])
def test_at_its_time_limit_a_task_is_cancelled(app: Effects, scripted: AsyncScripted, moves: str, verdict: str) -> None:
    scripted.time_limit_seconds = 2.0  # in which even a starved machine releases
    job = put(app, moves)
    with running(Worker(app)):
        wait_until(lambda: rows(app, "job_attempts"))
        wait_until(lambda: scripted.cancelled)
        assert scripted.in_flight == 0
    attempt = attempt_of(app, job)
    assert (attempt["outcome"], attempt["verdict"]) == ("timed_out", verdict)
    places = attempt["stack"].splitlines()
    assert places[0].startswith("tests/support/scripted.py:")
    assert places[0].endswith(" _move_async")
    assert any(place.startswith("asyncio/tasks.py:") for place in places)


def test_tasks_that_ignore_their_cancellation_hang_as_threads_do(
    app: Effects, scripted: AsyncScripted, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(running_attempt, "RETURN_SECONDS", 0.5)
    scripted.time_limit_seconds = 0.3
    for _ in range(4):
        put(app, "release stay")
    worker = Worker(app)
    assert worker.run() == 75
    scripted.gate.set()
    assert row(app, "workers", "id = :id", id=worker.id)["exit_code"] == 75
    assert {attempt["outcome"] for attempt in rows(app, "job_attempts")} == {"timed_out"}


def test_a_task_that_returns_in_time_does_not_hang(app: Effects, scripted: AsyncScripted) -> None:
    scripted.time_limit_seconds = 0.3
    for _ in range(6):
        put(app, "release wait")
    with running(Worker(app)):
        wait_until(lambda: scripted.cancelled == 6)


def test_a_blocking_release_on_the_loop_is_refused(app: Effects) -> None:
    class Blocking(JobType[dict[str, Any]]):
        name, queue, on_unknown = "blocking", "async", "hold"

        async def perform(self, payload: dict[str, Any], attempt: Attempt) -> None:
            if attempt.number == 1:
                attempt.release()
            await asyncio.to_thread(attempt.release)

    app.add(Blocking())
    job = enqueue("blocking", {}, effects=app).job_id
    Worker(app).drain(30)
    assert "write `await attempt.release_async()`" in attempt_of(app, job)["message"]
    run_sql(app, f"UPDATE {app.store.sql.jobs} SET run_at = created_at")
    assert Worker(app).drain(30).counts == {"succeeded": 1}


def test_a_release_that_is_refused_keeps_the_effect_from_beginning(app: Effects, scripted: AsyncScripted) -> None:
    job = put(app, "wait release", key="k")
    with running(Worker(app)):
        wait_until(scripted.began.is_set)
        run_sql(app, f"UPDATE {app.store.sql.jobs} SET lease_token = lease_token + 1")
        scripted.gate.set()
        wait_until(lambda: scripted.in_flight == 0)
    assert rows(app, "job_attempts", "job_id = :job AND outcome = 'succeeded'", job=job) == []


def test_a_request_to_cancel_reaches_the_handler(app: Effects) -> None:
    class Patient(JobType[dict[str, Any]]):
        name, queue, on_unknown = "patient", "async", "hold"

        async def perform(self, payload: dict[str, Any], attempt: Attempt) -> Cancelled:
            began.set()
            while not attempt.cancel_requested:
                await asyncio.sleep(0.005)
            return Cancelled("as requested")

    began = threading.Event()
    app.add(Patient())
    enqueue("patient", {}, key="k", effects=app)
    with running(Worker(app)):
        wait_until(began.is_set)
        cancel(key="k", actor="ann", effects=app)
        wait_until(lambda: rows(app, "job_history"))
    assert row(app, "job_history")["status"] == "cancelled"


def test_jobs_of_a_group_are_in_flight_one_at_a_time(app: Effects, scripted: AsyncScripted) -> None:
    names = [f"step {number}" for number in range(20)]
    enqueue_many([NewJob(job_type="scripted", payload={"name": name, "group": "g"}) for name in names], effects=app)
    Worker(app).drain(30)
    assert scripted.order == names


# -- shutdown ---------------------------------------------------------------------------------------------------


def test_a_stopping_worker_waits_for_what_is_in_flight(app: Effects, scripted: AsyncScripted) -> None:
    jobs = [put(app, "wait"), put(app, "wait release")]
    worker = Worker(app)

    def open_late() -> None:
        wait_until(lambda: worker._shutdown.begun)
        scripted.gate.set()

    with running(worker):
        wait_until(lambda: scripted.in_flight == 2)
        opening = threading.Thread(target=open_late)
        opening.start()
    opening.join()
    assert {attempt_of(app, job)["outcome"] for job in jobs} == {"succeeded"}
    assert scripted.cancelled == 0


def test_attempts_that_outlast_the_grace_are_cancelled_and_unknown_if_released(
    app: Effects, scripted: AsyncScripted
) -> None:
    plain, released = put(app, "wait"), put(app, "release wait")
    with running(Worker(app, grace_seconds=0.2)):
        wait_until(lambda: scripted.at_gate == 2)  # the one of them knows that it is released
    assert scripted.cancelled == 2
    assert row(app, "jobs", "id = :job", job=plain)["attempts"] == 0
    attempt = attempt_of(app, released)
    assert (attempt["outcome"], attempt["message"]) == (
        "unknown",
        "the worker stopped before a verdict came (held for an operator)",
    )


# -- queues that hold both kinds, and quarantine ------------------------------------------------------------------


def test_in_a_queue_with_both_kinds_one_number_bounds_both(app_factory: AppFactory) -> None:
    scripted, blocking = AsyncScripted(queue="both"), Scripted("blocking", queue="both")
    app = app_factory(job_types=[scripted, blocking], threads=3)
    for _ in range(4):
        put(app, "wait")
        enqueue("blocking", {"moves": ["wait"]}, effects=app)
    with running(Worker(app)):
        wait_until(lambda: scripted.in_flight + sum(blocking.performed.values()) == 3)
        assert len(rows(app, "jobs", "status = 'running'")) == 3
        scripted.gate.set()
        blocking.gate.set()
        wait_until(lambda: not rows(app, "jobs"))


def test_a_blocking_job_in_an_async_queue_runs_in_a_thread(app: Effects, scripted: AsyncScripted) -> None:
    blocking = Scripted("blocking")
    app.add(blocking)
    put(app, "wait")
    enqueue("blocking", {"moves": ["wait"]}, queue="async", effects=app)
    with running(Worker(app)):
        wait_until(lambda: scripted.in_flight == 1 and blocking.performed[""] == 1)
        blocking.gate.set()
        wait_until(lambda: len(rows(app, "jobs")) == 1)
        scripted.gate.set()
        wait_until(lambda: not rows(app, "jobs"))


def test_in_quarantine_async_jobs_run_one_at_a_time(app: Effects, scripted: AsyncScripted) -> None:
    for _ in range(3):
        put(app, "wait")
    run_sql(app, f"UPDATE {app.store.sql.jobs} SET queue = 'quarantine', quarantined_from = 'async', lost_count = 1")
    with running(Worker(app)):
        wait_until(lambda: scripted.in_flight == 1)
        assert len(rows(app, "jobs", "status = 'running'")) == 1
        scripted.gate.set()
        wait_until(lambda: not rows(app, "jobs"))


def test_a_quarantined_task_is_cancelled_at_its_time_limit(app: Effects, scripted: AsyncScripted) -> None:
    scripted.time_limit_seconds = 0.3
    job = put(app, "release wait")
    run_sql(app, f"UPDATE {app.store.sql.jobs} SET queue = 'quarantine', quarantined_from = 'async', lost_count = 1")
    with running(Worker(app)):
        wait_until(lambda: scripted.cancelled == 1)
        wait_until(lambda: rows(app, "job_attempts"))
    assert attempt_of(app, job)["outcome"] == "timed_out"


# -- what handlers do to the loop -----------------------------------------------------------------------------------


class Heard(logging.Handler):
    """The records of one event."""

    def __init__(self, event: str, then: Callable[[], object]) -> None:
        super().__init__()
        self.event, self.then, self.facts = event, then, list[dict[str, Any]]()

    def emit(self, record: logging.LogRecord) -> None:
        if record.getMessage() == self.event:
            self.facts.append(vars(record))
            self.then()


def test_a_handler_that_blocks_its_loop_is_named_once(app: Effects, scripted: AsyncScripted) -> None:
    """So is one whose own task does."""

    class Nested(AsyncScripted):
        async def perform(self, payload: Any, attempt: Attempt) -> Any:  # type: ignore[override]
            await asyncio.gather(super().perform(payload, attempt))

    nested = Nested("nested", on_unknown="repeat")
    app.add(nested)
    heard = Heard("job.blocks_loop", lambda: (scripted.gate.set(), nested.gate.set()))
    logging.getLogger("effects.worker").addHandler(heard)
    try:
        for job_type in (scripted, nested):
            scripted.gate.clear()
            nested.gate.clear()
            heard.facts.clear()
            job = enqueue(job_type.name, {"moves": ["block"]}, effects=app).job_id
            with running(Worker(app)):
                wait_until(lambda: not rows(app, "jobs"))
            [facts] = heard.facts
            assert (facts["job"], facts["type"]) == (job, job_type.name)
            assert "scripted.py" in facts["at"]
    finally:
        logging.getLogger("effects.worker").removeHandler(heard)


def test_what_a_handlers_own_task_raises_ends_no_loop(app: Effects) -> None:
    async def leave() -> None:
        raise SystemExit(3)

    class Leaving(JobType[dict[str, Any]]):
        name, queue = "leaving", "async"

        async def perform(self, payload: dict[str, Any], attempt: Attempt) -> Done:
            if attempt.number == 1:
                await asyncio.create_task(leave())
            return Done()

    app.add(Leaving())
    enqueue("leaving", {}, effects=app)
    assert Worker(app).drain(30).exit_code == 0
    run_sql(app, f"UPDATE {app.store.sql.jobs} SET run_at = created_at")
    assert Worker(app).drain(30).counts == {"succeeded": 1}
    assert [attempt["error_type"] for attempt in rows(app, "job_attempts")] == ["SystemExit", None]


class OneLoop(Runtime):
    """Keeps the loop that it makes, for the test to harm."""

    def event_loop(self) -> EventLoop:
        self.loop = super().event_loop()
        return self.loop


def test_the_death_of_the_loop_ends_the_worker_and_what_was_in_flight_is_answered_for(
    app: Effects, scripted: AsyncScripted, caplog: pytest.LogCaptureFixture
) -> None:
    plain, released = put(app, "wait"), put(app, "release wait")
    runtime = OneLoop()
    worker = Worker(app, runtime=runtime)
    codes: list[int] = []
    thread = threading.Thread(target=lambda: codes.append(worker.run()))
    thread.start()
    wait_until(lambda: scripted.at_gate == 2)  # the one of them knows that it is released

    def harm() -> None:
        raise ZeroDivisionError

    runtime.loop.call(harm)
    thread.join(60)
    assert codes == [70]
    assert str(worker.fault) == "loop ended"
    [line] = [record for record in caplog.records if record.message == "worker.part_failed"]
    assert "harm" in vars(line)["at"]
    assert row(app, "jobs", "id = :job", job=plain)["attempts"] == 0
    assert attempt_of(app, released)["outcome"] == "unknown"
    assert rows(app, "jobs", "status = 'running'") == []
    assert scripted.cancelled == 2


def test_a_blocked_loop_ends_the_worker(app_factory: AppFactory) -> None:
    scripted = AsyncScripted(on_unknown="hold", time_limit_seconds=600.0)
    app = app_factory(
        job_types=[scripted], lease_seconds=12.0, heartbeat_seconds=2.0, poll_seconds=0.5, grace_seconds=5.0
    )
    runtime = StagedRuntime()
    codes: list[int] = []
    worker = Worker(app, runtime=runtime, process=HardEnd(codes))
    thread = runtime.start(lambda: codes.append(worker.run()), "runner")
    job = put(app, "release block")
    runtime.advance(5.0, until=scripted.began.is_set)
    wait_until(scripted.began.is_set)
    runtime.advance(30.0, until=lambda: worker.fault is not None)
    assert str(worker.fault) == "loop stalled"
    runtime.advance(60.0, until=lambda: bool(codes))
    assert codes[0] == 70
    assert attempt_of(app, job)["verdict"] == "unknown"
    scripted.gate.set()
    runtime.advance(30.0, until=lambda: not thread.is_alive())
    assert not thread.is_alive()


HANGING = """
import asyncio, sys, threading
from effects import Effects
from effects.worker import Worker

app = Effects(sys.argv[1])

@app.job("hang", queue="async", time_limit_seconds=0.2, on_unknown="hold")
async def hang() -> None:
    await asyncio.to_thread(threading.Event().wait)

hang.enqueue()
Worker(app).drain(60)
print("drained")
"""


def test_a_thread_that_a_handler_left_hanging_keeps_no_process_alive(app: Effects) -> None:
    url = app.engine.url.render_as_string(hide_password=False)
    ran = subprocess.run([sys.executable, "-c", HANGING, url], capture_output=True, text=True, timeout=60, check=True)
    assert ran.stdout == "drained\n"
