"""Nothing of ours is in the queues that an app's job types have by default."""

from __future__ import annotations

from typing import Any

import pytest

from effects import Effects, JobType, enqueue
from effects.model.job import ASYNC_QUEUE, DEFAULT_QUEUE, HOUSEKEEPING_QUEUE
from effects.worker import Worker
from effects.worker.machine.runtime import Runtime
from effects.worker.queues.worker_queues import planned
from tests.conftest import AppFactory
from tests.support.manual_workers import rows
from tests.support.running import running
from tests.support.scripted import AsyncScripted, Scripted
from tests.support.waiting import wait_until


class Blocking(JobType[dict[str, Any]]):
    name = "kind.blocking"

    def perform(self, payload: dict[str, Any], attempt: object) -> None: ...


class Awaiting(JobType[dict[str, Any]]):
    name = "kind.awaiting"

    async def perform(self, payload: dict[str, Any], attempt: object) -> None:  # type: ignore[override]
        ...


class BlockingAgain(Awaiting):
    def perform(self, payload: dict[str, Any], attempt: object) -> None: ...  # type: ignore[override]


class Named(Awaiting):
    queue = "default"


@pytest.mark.parametrize(
    ("job_type", "queue"),
    [(Blocking, "default"), (Awaiting, "async"), (BlockingAgain, "default"), (Named, "default")],
    ids=lambda value: getattr(value, "__name__", value),
)
def test_a_type_without_a_queue_has_that_of_its_kind(job_type: type[JobType[Any]], queue: str) -> None:
    assert job_type().queue == queue


def test_a_function_without_a_queue_has_that_of_its_kind(app_factory: AppFactory) -> None:
    app = app_factory()

    @app.job("kind.blocks")
    def blocks() -> None: ...

    @app.job("kind.awaits")
    async def awaits() -> None: ...

    @app.job("kind.named", queue="calls")
    async def named() -> None: ...

    queues = {name: app.job_types.get(name).queue for name in ("kind.blocks", "kind.awaits", "kind.named")}
    assert queues == {"kind.blocks": "default", "kind.awaits": "async", "kind.named": "calls"}
    assert app.job_types.async_queues() >= {"async", "calls"}


def test_what_is_installed_leaves_the_defaults_to_the_app(app_factory: AppFactory) -> None:
    """Queues, and the names of types and schedules: of the core, and of every package."""
    app = app_factory(job_types=[])
    prefixes = ("effects.", "email.", "webhook.", "report.", "reports.")
    assert {job_type.queue for job_type in app.job_types}.isdisjoint({DEFAULT_QUEUE, ASYNC_QUEUE})
    assert {job_type.queue for job_type in app.job_types if job_type.name.startswith("effects.")} == {"effects"}
    assert all(name.startswith(prefixes) for name in (*app.job_types.names(), *app.schedules))
    assert app.job_types.mixed_queues() == {}


def test_a_mixed_queue_names_its_async_types(app_factory: AppFactory) -> None:
    app = app_factory(job_types=[Scripted("one"), AsyncScripted("two", queue="default"), AsyncScripted("three")])
    assert app.job_types.mixed_queues() == {"default": ["two"]}


@pytest.mark.parametrize("slots_by_queue", [None, {"mails": 2}, {"effects": 7}], ids=["all", "one", "its own number"])
@pytest.mark.parametrize("housekeeping", [True, False])
def test_every_worker_serves_our_own_jobs_unless_it_is_told_not_to(
    app_factory: AppFactory, slots_by_queue: dict[str, int] | None, housekeeping: bool
) -> None:
    app = app_factory(queues=["mails"], threads=3)
    slots = {
        request.queue: request.threads for request in planned(app, slots_by_queue, Runtime(), housekeeping=housekeeping)
    }
    named = bool(slots_by_queue) and HOUSEKEEPING_QUEUE in slots_by_queue
    assert slots.get(HOUSEKEEPING_QUEUE) == (7 if named else 3 if housekeeping else None)
    assert ("default" in slots) is (slots_by_queue is None)


def test_a_drain_of_one_queue_prunes_unless_it_is_told_not_to(app: Effects) -> None:
    enqueue("effects.prune", {}, effects=app)
    enqueue("scripted", {}, effects=app)
    assert Worker(app, queues={"mails": 1}, housekeeping=False).drain().counts == {}
    assert Worker(app, queues={"mails": 1}).drain().counts == {"succeeded": 1}
    assert [job["job_type"] for job in rows(app, "jobs")] == ["scripted"]


def test_a_worker_with_one_thread_does_the_apps_jobs_while_it_prunes(app_factory: AppFactory) -> None:
    """One that takes its time, in place of the pruning."""
    slow = Scripted("effects.slow", queue=HOUSEKEEPING_QUEUE)
    app = app_factory(job_types=[Scripted(), slow], threads=1)
    with running(Worker(app)):
        enqueue("effects.slow", {"moves": ["wait"]}, effects=app)
        wait_until(slow.began.is_set)
        done = enqueue("scripted", {}, effects=app).job_id
        wait_until(lambda: any(job["id"] == done for job in rows(app, "job_history")))
        slow.gate.set()
