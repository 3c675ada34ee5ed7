"""effects with a handler that waits for its peer: in a thread, or on the event loop."""

from __future__ import annotations

import asyncio
import threading
import time

from benchmarks.drains import System, payload
from benchmarks.processes import WORK_SECONDS, await_go
from benchmarks.systems import ours
from effects import Effects, JobType, NewJob, enqueue_many
from effects.worker import Worker

THREADS, LOOP, UNNAMED = "bench.waits", "bench.waits_async", "bench.waits_unnamed"
QUEUE = "waits"
WAIT_SECONDS = 0.2


class WaitsInThread(JobType[dict[str, object]]):
    """Occupies a thread meanwhile."""

    name, queue = THREADS, QUEUE

    def perform(self, payload: dict[str, object], attempt: object) -> None:
        """Wait."""
        threading.Event().wait(WAIT_SECONDS)


class WaitsOnLoop(JobType[dict[str, object]]):
    """Lets others go on."""

    name, queue = LOOP, QUEUE

    async def perform(self, payload: dict[str, object], attempt: object) -> None:
        """Wait."""
        await asyncio.sleep(WAIT_SECONDS)


class WaitsWithoutQueue(JobType[dict[str, object]]):
    """As WaitsOnLoop, in the queue that async types have by default."""

    name = UNNAMED

    async def perform(self, payload: dict[str, object], attempt: object) -> None:
        """Wait."""
        await asyncio.sleep(WAIT_SECONDS)


TYPES: dict[str, type[JobType[dict[str, object]]]] = {
    THREADS: WaitsInThread, LOOP: WaitsOnLoop, UNNAMED: WaitsWithoutQueue,
}  # fmt: skip


def app(database: str, name: str) -> Effects:
    """An app with one of the types, so that its queue is of one kind."""
    return ours.app(database, TYPES[name]())


def system(name: str, threads: int | None = None) -> System:
    """Args:
    name: of the job type.
    threads: of its queue, None for the default.
    """

    def fill(database: str, count: int) -> None:
        effects = app(database, name)
        effects.create_tables()
        enqueue_many([NewJob(job_type=name, payload=payload(number)) for number in range(count)], effects=effects)
        effects.dispose()

    return System("waiting", (name, str(threads or "")), fill, "effects_jobs", "status = 'queued'")


def work(name: str, threads: str, database: str) -> None:
    """Drain the queue, and print how many CPU seconds that took."""
    worker = Worker(app(database, name), queues={QUEUE: int(threads)} if threads else None)
    await_go()
    begun = time.process_time()
    worker.drain(max_seconds=WORK_SECONDS)
    print(time.process_time() - begun, flush=True)
