"""Job types whose effect is a line to a `StubServer` over a real socket, for workers in processes of their own."""

from __future__ import annotations

import asyncio
import os
import socket
import threading
from functools import partial

import msgspec
from msgspec.structs import replace

from effects import Attempt, Done, Effects, JobType, Outcome, Retry, RetryPolicy, enqueue
from effects.retry import Fixed, OnUnknown

ANSWER_SECONDS = 30.0


class StepJob(msgspec.Struct, frozen=True):
    """What to do at the stub server on `port`, step by step.

    Steps: `ask` (a question, no effect), `release`, `do` (the effect), `exit` (the process is gone), `hang`,
    `follow` (the outcome enqueues another step_job, named after this one, in its own transaction; `follow keyed`: with
    that name as its key).
    """

    name: str
    port: int
    steps: tuple[str, ...] = ("do",)


class StepJobType(JobType[StepJob]):
    """`step_job` repeats what is unknown; `step_job.held` holds it for a person."""

    payload = StepJob
    retry = RetryPolicy(backoff=Fixed(0.05), max_attempts=20, jitter=0.0)
    time_limit_seconds = 30.0

    def __init__(self, name: str = "step_job", on_unknown: OnUnknown = "repeat", *, time_limit_seconds: float = 30.0):
        self.name = name
        self.on_unknown = on_unknown
        self.time_limit_seconds = time_limit_seconds
        self.app: Effects | None = None  # where `follow` enqueues

    def perform(self, payload: StepJob, attempt: Attempt) -> Outcome:
        for step in payload.steps:
            if step == "release":
                attempt.release()
            elif step == "exit":
                os._exit(9)
            elif step == "hang":
                threading.Event().wait(3600)
            elif step.startswith("follow"):
                return Done(apply=partial(self._follow, payload, keyed=step == "follow keyed"))
            elif _say(payload.port, f"{step} {payload.name}") == "busy":
                return Retry("the stub server is busy", code="busy")
        return Done()

    def _follow(self, payload: StepJob, connection: object, *, keyed: bool) -> None:
        then = StepJob(f"{payload.name}-then", payload.port)
        key = then.name if keyed else None
        enqueue("step_job", then, key=key, session=connection, effects=self.app)  # type: ignore[arg-type]


class AsyncStepJobType(StepJobType):
    """The same on the worker's event loop, in a queue of its own."""

    queue = "async"

    async def perform(self, payload: StepJob, attempt: Attempt) -> Outcome:  # type: ignore[override]
        for step in payload.steps:
            if step == "release":
                await attempt.release_async()
            else:
                outcome = await asyncio.to_thread(super().perform, replace(payload, steps=(step,)), attempt)
                if not isinstance(outcome, Done) or outcome.apply is not None:
                    return outcome
        return Done()


def ask(port: int, name: str) -> None:
    """Stand at the stub server until the test lets this name go on."""
    _say(port, f"ask {name}")


def _say(port: int, line: str) -> str:
    with socket.create_connection(("127.0.0.1", port), timeout=ANSWER_SECONDS) as peer, peer.makefile("rw") as lines:
        lines.write(f"{line}\n")
        lines.flush()
        answer = lines.readline().strip()
    if not answer:
        raise ConnectionError("the stub server hung up")
    return answer


def step_job_types(**options: float) -> list[StepJobType]:
    blocking = [StepJobType(**options), StepJobType("step_job.held", "hold", **options)]
    return [
        *blocking, AsyncStepJobType("step_job.async", **options),
        AsyncStepJobType("step_job.async_held", "hold", **options),
    ]  # fmt: skip


def step_jobs_app(url: str | None = None, **options: object) -> Effects:
    """An Effects that knows the step_jobs. Options of the job types: `time_limit_seconds`."""
    limits = {name: options.pop(name) for name in ("time_limit_seconds",) if name in options}
    types = step_job_types(**limits)  # type: ignore[arg-type]
    app = Effects(url, job_types=types, **options)
    for job_type in types:
        job_type.app = app
    return app
