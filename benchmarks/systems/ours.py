"""effects as an app uses it: the public API fills, the real worker drains; history and attempt log on."""

from __future__ import annotations

import logging
import time
from functools import partial
from unittest.mock import patch

from benchmarks.drains import System, payload
from benchmarks.processes import WORK_SECONDS, await_go
from benchmarks.servers import effects_url
from effects import Effects, JobType, NewJob, Refused, enqueue_many
from effects.store.queue import settle
from effects.worker import Worker
from effects.worker.recording.observers import RollupRecorder

JOB_TYPE, REFUSED = "bench.noop", "bench.refused"


class Noop(JobType[dict[str, object]]):
    """The no-op."""

    name = JOB_TYPE

    def perform(self, payload: dict[str, object], attempt: object) -> None:
        """Nothing."""


class RefusedJob(JobType[dict[str, object]]):
    """Dies at its first attempt."""

    name = REFUSED

    def perform(self, payload: dict[str, object], attempt: object) -> Refused:
        return Refused("no", code="bench")


def app(database: str, *job_types: JobType[dict[str, object]]) -> Effects:
    """Default settings, but for the log level: the peers' loggers are at WARNING as well."""
    return Effects(effects_url(database), job_types=job_types or (Noop(), RefusedJob()), log_level="WARNING")


def system(threads: int | None = None, *, refused: bool = False, without: str = "") -> System:
    """Args:
    threads: of the queue, None for the default.
    refused: whether the jobs all die.
    without: what it does not do: count and write `numbers` over time, or keep the set of `unresolved` jobs.
    """
    job_type = REFUSED if refused else JOB_TYPE
    filled = partial(fill, job_type=job_type)
    return System("ours", (str(threads or ""), without), filled, "effects_jobs", "status = 'queued'")


def install(database: str) -> Effects:
    """The tables, in a fresh database."""
    effects = app(database)
    effects.create_tables()
    return effects


def fill(database: str, count: int, job_type: str = JOB_TYPE) -> None:
    effects = install(database)
    enqueue_many([NewJob(job_type=job_type, payload=payload(number)) for number in range(count)], effects=effects)
    effects.dispose()


def work(threads: str, without: str, database: str) -> None:
    """Drain the queue, and print how many CPU seconds that took."""
    logging.disable(logging.ERROR)  # a dead job is an error in the log
    if without == "numbers":
        patch.multiple(RollupRecorder, recorded=_nothing, write=_nothing).start()
    if without == "unresolved":
        patch.object(settle, "add_unresolved", _nothing).start()
    effects = app(database)
    worker = Worker(effects, queues={"default": int(threads)} if threads else None)
    await_go()
    begun = time.process_time()
    worker.drain(max_seconds=WORK_SECONDS)
    print(time.process_time() - begun, flush=True)


def _nothing(*ignored: object) -> None:
    pass
