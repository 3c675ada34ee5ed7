"""Async handlers that harm the loop they share: each harms its own job alone, and nothing is silent."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import sys
import threading
from collections import Counter
from collections.abc import Awaitable, Callable, Generator
from typing import Any

import pytest

from effects import Attempt, Done, Effects, JobType, NewJob, Refused, Retry, enqueue, enqueue_many
from effects.errors import LeaseLost
from effects.extend.process import long_call
from effects.operate.tables.audit import audit
from effects.worker import Worker
from effects.worker.attempts import attempt as running_attempt
from tests.conftest import AppFactory
from tests.peers.proxy import Proxy
from tests.support.log_lines import log_lines
from tests.support.manual_workers import row, rows, run_sql
from tests.support.running import running
from tests.support.sampling import sample
from tests.support.scripted import AsyncScripted
from tests.support.waiting import wait_until

SECRET = "rosebud"
NEIGHBOURS = 10
LIMIT_SECONDS = 3.0

Act = Callable[["Hostile", Attempt], Awaitable[Any]]
OF_MUTANTS = ("a_callback_fails", "a_task_left_behind_releases")  # `tests/mutants` runs these by name
ACTS: dict[str, tuple[Act, str, str]] = {}  # what it does, the outcome of its attempt, what the log must say


class LateError(Exception):
    def __str__(self) -> str:
        return SECRET


def act(outcome: str, logged: str = "") -> Callable[[Act], Act]:
    def register(act: Act) -> Act:
        ACTS[act.__name__] = (act, outcome, logged)
        return act

    return register


class Hostile(JobType[dict[str, Any]]):
    """The first of its jobs does the act, the others wait a moment, and use what all share."""

    name, queue, on_unknown, time_limit_seconds = "hostile", "hostile", "hold", LIMIT_SECONDS

    def __init__(self, act: Act) -> None:
        self.act = act
        self.effects: list[str] = []
        self.performed: Counter[int] = Counter()
        self.gate = threading.Event()

    async def perform(self, payload: dict[str, Any], attempt: Attempt) -> Any:
        if "neighbour" not in payload:
            return await self.act(self, attempt)
        self.performed[payload["neighbour"]] += 1
        await asyncio.sleep(0.1)
        await asyncio.to_thread(len, ())
        await attempt.release_async()
        return Done()


@act("refused", "no_outcome")
async def answers_a_coroutine(job: Hostile, attempt: Attempt) -> Any:
    return asyncio.sleep(0)


@act("refused", "no_outcome")
async def answers_a_task(job: Hostile, attempt: Attempt) -> Any:
    return asyncio.create_task(asyncio.sleep(0))


@act("failed", "RuntimeError")
async def closes_the_loop(job: Hostile, attempt: Attempt) -> None:
    asyncio.get_running_loop().close()


@act("succeeded")
async def stops_the_loop(job: Hostile, attempt: Attempt) -> None:
    asyncio.get_running_loop().stop()
    await asyncio.sleep(0.01)


@act("failed", "RuntimeError")
async def shuts_the_threads_of_all_down(job: Hostile, attempt: Attempt) -> None:
    await asyncio.get_running_loop().shutdown_default_executor()


@act("failed", "RuntimeError")
async def shuts_the_generators_of_all_down(job: Hostile, attempt: Attempt) -> None:
    await asyncio.get_running_loop().shutdown_asyncgens()


@act("succeeded")
async def breaks_the_making_of_tasks(job: Hostile, attempt: Attempt) -> None:
    def broken(*_: Any, **__: Any) -> Any:
        raise ZeroDivisionError

    asyncio.get_running_loop().set_task_factory(broken)


@act("succeeded", "SystemExit")
async def leaves_by_the_handler_of_errors(job: Hostile, attempt: Attempt) -> None:
    def fail() -> None:
        raise LateError

    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda *_: sys.exit(9))
    loop.call_soon(fail)
    await asyncio.sleep(0.01)
    loop.set_exception_handler(None)


@act("succeeded", "SystemExit")
async def leaves_by_a_callback(job: Hostile, attempt: Attempt) -> None:
    asyncio.get_running_loop().call_soon(sys.exit, 3)
    await asyncio.sleep(0.01)


@act("succeeded", "SystemExit")
async def leaves_at_the_end_of_its_task(job: Hostile, attempt: Attempt) -> None:
    task = asyncio.current_task()
    assert task is not None
    task.add_done_callback(lambda _: sys.exit(3))


@act("succeeded", "type=hostile")
async def a_callback_fails(job: Hostile, attempt: Attempt) -> None:
    def fail(_: str) -> None:
        raise LateError

    asyncio.get_running_loop().call_soon(fail, SECRET)
    await asyncio.sleep(0.01)


def stray(error: type[BaseException]) -> Act:
    async def raise_late() -> None:
        await asyncio.sleep(0.02)
        raise error

    async def leave(job: Hostile, attempt: Attempt) -> None:
        asyncio.create_task(raise_late())  # noqa: RUF006

    leave.__name__ = f"a_task_left_behind_raises_{error.__name__}"
    return leave


for kind in (LateError, SystemExit, KeyboardInterrupt, GeneratorExit):
    act("succeeded", f"error={kind.__name__}")(stray(kind))


@act("failed", "LeaseLost")
async def a_task_left_behind_releases(job: Hostile, attempt: Attempt) -> Retry:
    """While the effect that it would cause is recorded as not done."""
    asyncio.create_task(release_late(job, attempt))  # noqa: RUF006
    return Retry("not now")


@act("failed", "LeaseLost")
async def a_task_left_behind_is_being_released(job: Hostile, attempt: Attempt) -> Retry:
    asyncio.create_task(release_late(job, attempt))  # noqa: RUF006
    await asyncio.sleep(0)
    return Retry("not now")


async def release_late(job: Hostile, attempt: Attempt) -> None:
    await attempt.release_async()
    job.effects.append("after the end")


@act("failed", "RuntimeError")
async def a_thread_runs_out_of_values(job: Hostile, attempt: Attempt) -> None:
    await asyncio.to_thread(next, iter(()))


@act("failed", "SystemExit")
async def a_thread_leaves(job: Hostile, attempt: Attempt) -> None:
    await asyncio.to_thread(sys.exit, 3)


@act("refused", "no such user")
async def refuses_in_a_group(job: Hostile, attempt: Attempt) -> None:
    async def refuse() -> None:
        raise Refused("no such user")

    await attempt.release_async()
    async with asyncio.TaskGroup() as outer, asyncio.TaskGroup() as inner:
        inner.create_task(refuse())
        outer.create_task(asyncio.sleep(1))


@act("unknown", "LateError")
async def several_fail_in_a_group(job: Hostile, attempt: Attempt) -> None:
    async def fail() -> None:
        raise LateError

    await attempt.release_async()
    async with asyncio.TaskGroup() as group:
        group.create_task(fail())
        group.create_task(fail())


@act("failed", "CancelledError")
async def cancels_itself(job: Hostile, attempt: Attempt) -> None:
    task = asyncio.current_task()
    assert task is not None
    task.cancel()
    await asyncio.sleep(0)


@act("succeeded")
async def ignores_that_it_cancels_itself(job: Hostile, attempt: Attempt) -> None:
    with contextlib.suppress(asyncio.CancelledError):
        await cancels_itself(job, attempt)


@act("timed_out", "timed_out")
async def never_leaves_its_finally(job: Hostile, attempt: Attempt) -> None:
    try:
        await asyncio.sleep(60)
    finally:
        while not job.gate.is_set():
            await asyncio.sleep(0.01)


class Unreadable:
    """Waits forever, and cannot be inspected."""

    def __await__(self) -> Generator[Any, Any, Any]:
        return self  # type: ignore[return-value]

    def __iter__(self) -> Any:
        return self

    def __next__(self) -> Any:
        return None

    @property
    def cr_frame(self) -> Any:
        raise SystemExit


class Endless(Unreadable):
    """Says that it awaits itself."""

    @property
    def cr_frame(self) -> Any:
        return sys._getframe()

    @property
    def cr_await(self) -> Any:
        return self


@act("timed_out", "timed_out")
async def awaits_what_cannot_be_looked_at(job: Hostile, attempt: Attempt) -> None:
    await Unreadable()  # type: ignore[misc]


@act("timed_out", "timed_out")
async def awaits_what_awaits_itself(job: Hostile, attempt: Attempt) -> None:
    await Endless()  # type: ignore[misc]


@pytest.mark.parametrize("name", [*OF_MUTANTS, *sample([name for name in ACTS if name not in OF_MUTANTS], 7)])
def test_a_handler_that_harms_the_loop_harms_no_other(app_factory: AppFactory, name: str) -> None:
    act, outcome, logged = ACTS[name]
    job_type = Hostile(act)
    app = app_factory(job_types=[job_type])
    jobs = [NewJob(job_type="hostile", payload={"neighbour": number}) for number in range(NEIGHBOURS)]
    jobs.insert(NEIGHBOURS // 2, NewJob(job_type="hostile", payload={}, key="hostile"))
    hostile = enqueue_many(jobs, effects=app)[NEIGHBOURS // 2].job_id
    with log_lines("effects") as log:
        with running(Worker(app)):
            wait_until(lambda: len(rows(app, "job_attempts")) == len(jobs))
            job_type.gate.set()
        gc.collect()  # what was left behind is told when it goes
    attempts = {attempt["job_id"]: attempt for attempt in rows(app, "job_attempts")}
    assert attempts.pop(hostile)["outcome"] == outcome
    assert {attempt["outcome"] for attempt in attempts.values()} == {"succeeded"}
    assert set(job_type.performed.values()) == {1}
    assert job_type.effects == []
    assert logged in "".join([*log.lines, str(rows(app, "job_history")), str(rows(app, "job_attempts"))])
    assert SECRET not in "".join(log.lines)
    assert audit(app.store, app.ledgers) == []


# -- what hangs, and the end -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("call", [asyncio.to_thread, long_call])
def test_threads_that_hang_for_tasks_that_were_cancelled_end_the_worker(
    call: Callable[[Callable[[], bool]], Awaitable[bool]], app_factory: AppFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The tasks come back; what they called in threads does not."""
    monkeypatch.setattr(running_attempt, "RETURN_SECONDS", 0.5)
    gate = threading.Event()

    async def hang(job: Hostile, attempt: Attempt) -> None:
        await call(gate.wait)

    job_type = Hostile(hang)
    job_type.time_limit_seconds = 0.3
    app = app_factory(job_types=[job_type], poll_seconds=0.1)
    enqueue_many([NewJob(job_type="hostile", payload={})] * 4, effects=app)
    with log_lines("effects") as log:
        assert Worker(app).run() == 75
    gate.set()
    assert "worker.handlers_hang" in "".join(log.lines)
    assert {attempt["outcome"] for attempt in rows(app, "job_attempts")} == {"timed_out"}


def test_threads_that_hang_behind_a_handlers_own_timeout_end_the_worker(
    app_factory: AppFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The job has its answer in time; its thread is left behind, and all share 32 of them."""
    monkeypatch.setattr(running_attempt, "RETURN_SECONDS", 0.5)
    gate = threading.Event()

    async def time_out(job: Hostile, attempt: Attempt) -> Any:
        try:
            async with asyncio.timeout(0.1):
                await asyncio.to_thread(gate.wait)
        except TimeoutError:
            return Refused("too slow")

    job_type = Hostile(time_out)
    app = app_factory(job_types=[job_type], poll_seconds=0.1)
    enqueue_many([NewJob(job_type="hostile", payload={})] * 4, effects=app)
    assert Worker(app).run() == 75
    gate.set()
    assert {attempt["outcome"] for attempt in rows(app, "job_attempts")} == {"refused"}


def test_threads_that_return_no_longer_count_as_hanging(
    app_factory: AppFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(running_attempt, "RETURN_SECONDS", 0.5)
    gate = threading.Event()

    async def wait(job: Hostile, attempt: Attempt) -> None:
        await asyncio.to_thread(gate.wait)

    job_type = Hostile(wait)
    job_type.time_limit_seconds = 0.3
    app = app_factory(job_types=[job_type], poll_seconds=0.1)
    enqueue_many([NewJob(job_type="hostile", payload={})] * 3, effects=app)
    worker = Worker(app)
    with running(worker):
        wait_until(lambda: len(worker._parts.queues.hanging) == 3)
        gate.set()
        wait_until(lambda: not worker._parts.queues.hanging)


@pytest.mark.parametrize("grace_seconds", [0.2, 20.0])
def test_a_thousand_tasks_that_ignore_cancellation_still_end(app_factory: AppFactory, grace_seconds: float) -> None:
    """Half of them are released: their effect may have happened. The others go back as they were."""
    scripted = AsyncScripted(on_unknown="hold", time_limit_seconds=60.0)
    app = app_factory(job_types=[scripted], poll_seconds=0.1, lease_seconds=30.0)
    moves = [["stay"], ["release stay"]] * 512
    enqueue_many([NewJob(job_type="scripted", payload={"moves": each}) for each in moves], effects=app)
    worker = Worker(app, grace_seconds=grace_seconds)

    def open_late() -> None:
        wait_until(lambda: worker._shutdown.begun)
        scripted.gate.set()

    with running(worker):
        wait_until(lambda: scripted.in_flight == 1_024)
        wait_until(lambda: len(rows(app, "jobs", "released_at IS NOT NULL")) == 512)
        wait_until(lambda: all(attempt.released for attempt in worker._parts.queues.running[1::2]))
        if grace_seconds > 1:
            opening = threading.Thread(target=open_late)
            opening.start()
    if grace_seconds > 1:
        opening.join()
        assert {attempt["outcome"] for attempt in rows(app, "job_attempts")} == {"succeeded"}
    else:
        scripted.gate.set()
        attempts = Counter(attempt["outcome"] for attempt in rows(app, "job_attempts"))
        assert attempts["unknown"] == 512
        assert len(rows(app, "jobs", "status = 'queued' AND attempts = 0")) == 512
    assert audit(app.store, app.ledgers) == []


# -- the release ------------------------------------------------------------------------------------------------------


async def release(job: Hostile, attempt: Attempt) -> Any:
    await asyncio.to_thread(job.gate.wait)
    try:
        await attempt.release_async()
    except LeaseLost:
        job.effects.append("none")
        raise
    job.effects.append("one")


def test_a_lease_that_is_lost_while_the_release_is_awaited_begins_no_effect(app_factory: AppFactory) -> None:
    job_type = Hostile(release)
    job_type.time_limit_seconds = 60.0
    app = app_factory(job_types=[job_type], poll_seconds=0.1)
    enqueue("hostile", {}, key="k", effects=app)
    worker = Worker(app)
    with running(worker):
        wait_until(lambda: worker._parts.queues.running)
        run_sql(app, f"UPDATE {app.store.sql.jobs} SET lease_token = lease_token + 1")
        worker._parts.queues.fence_off()
        job_type.gate.set()
        wait_until(lambda: job_type.effects)
    assert job_type.effects == ["none"]
    assert rows(app, "job_attempts", "outcome = 'succeeded'") == []


@pytest.mark.parametrize("database_url", ["postgresql"], indirect=True)
@pytest.mark.parametrize("ends", ["in time", "at the time limit"])
def test_an_outage_while_the_release_is_awaited_begins_one_effect_or_none(
    app_factory: AppFactory, proxy: Proxy, ends: str
) -> None:
    job_type = Hostile(release)
    job_type.time_limit_seconds = 60.0 if ends == "in time" else 2.0
    direct = app_factory(job_types=[job_type])
    app = Effects(proxy.url, job_types=[job_type], poll_seconds=0.1, heartbeat_seconds=0.3, lease_seconds=30.0)
    job = enqueue("hostile", {}, key="k", effects=direct).job_id
    worker = Worker(app)
    with running(worker):
        wait_until(lambda: worker._parts.queues.running)
        proxy.refuse()
        job_type.gate.set()
        if ends == "in time":
            wait_until(lambda: worker._context.outage.under_way)
        else:
            wait_until(lambda: job_type.effects or not worker._parts.queues.running)
        proxy.accept()
        wait_until(lambda: rows(direct, "job_attempts"))
    app.dispose()
    attempt = row(direct, "job_attempts", "job_id = :job", job=job)
    if ends == "in time":
        assert (attempt["outcome"], job_type.effects) == ("succeeded", ["one"])
    else:
        assert (attempt["outcome"], attempt["verdict"]) == ("timed_out", "not_done")
        assert "one" not in job_type.effects
    assert audit(direct.store, direct.ledgers) == []
