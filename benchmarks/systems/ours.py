"""effects as an app uses it: the public API fills, the real worker drains; history and attempt log on."""

from __future__ import annotations

import logging
from unittest.mock import patch

from benchmarks.drains import System, payload
from benchmarks.processes import WORK_SECONDS, await_go
from benchmarks.servers import effects_url
from effects import Effects, JobType, NewJob, enqueue_many
from effects.worker import Worker
from effects.worker.numbers import RollupRecorder

JOB_TYPE = "bench.noop"


class Noop(JobType[dict[str, object]]):
    """The no-op."""

    name = JOB_TYPE

    def perform(self, payload: dict[str, object], attempt: object) -> None:
        """Nothing."""


def app(database: str, *job_types: JobType[dict[str, object]]) -> Effects:
    """Default settings, but for the log level: the peers' loggers are at WARNING as well."""
    return Effects(effects_url(database), job_types=job_types or (Noop(),), log_level="WARNING")


def system(threads: int | None = None, *, numbers: bool = True) -> System:
    """Args: threads of the queue, None for the default; whether it counts and writes numbers over time."""
    return System("ours", (str(threads or ""), "numbers" if numbers else ""), fill, "effects_jobs", "status = 'queued'")


def install(database: str) -> Effects:
    """The tables, in a fresh database."""
    effects = app(database)
    effects.create_tables()
    return effects


def fill(database: str, count: int) -> None:
    effects = install(database)
    enqueue_many([NewJob(job_type=JOB_TYPE, payload=payload(number)) for number in range(count)], effects=effects)
    effects.dispose()


def work(threads: str, numbers: str, database: str) -> None:
    logging.getLogger("alembic").setLevel(logging.WARNING)
    if not numbers:
        patch.multiple(RollupRecorder, count=_nothing, write=_nothing).start()
    effects = app(database)
    worker = Worker(effects, queues={"default": int(threads)} if threads else None)
    await_go()
    worker.drain(max_seconds=WORK_SECONDS)


def _nothing(*ignored: object) -> None:
    pass
