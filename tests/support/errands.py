"""Job types whose effect is a line to a `Desk` over a real socket, for workers in processes of their own."""

from __future__ import annotations

import os
import socket
import threading

import msgspec

from effects import Attempt, Done, Effects, JobType, Outcome, Retry, RetryPolicy, enqueue
from effects.retry import Fixed, OnUnknown

ANSWER_SECONDS = 30.0


class Errand(msgspec.Struct, frozen=True):
    """What to do at the desk on `port`, step by step.

    Steps: `ask` (a question, no effect), `release`, `do` (the effect), `exit` (the process is gone), `hang`,
    `follow` (the outcome enqueues another errand, named after this one, in its own transaction).
    """

    name: str
    port: int
    steps: tuple[str, ...] = ("do",)


class ErrandType(JobType[Errand]):
    """`errand` repeats what is unknown; `errand.held` holds it for a person."""

    payload = Errand
    retry = RetryPolicy(backoff=Fixed(0.05), max_attempts=20, jitter=0.0)
    time_limit_seconds = 30.0

    def __init__(self, name: str = "errand", on_unknown: OnUnknown = "repeat", *, time_limit_seconds: float = 30.0):
        self.name = name
        self.on_unknown = on_unknown
        self.time_limit_seconds = time_limit_seconds
        self.app: Effects | None = None  # where `follow` enqueues

    def perform(self, payload: Errand, attempt: Attempt) -> Outcome:
        for step in payload.steps:
            if step == "release":
                attempt.release()
            elif step == "exit":
                os._exit(9)
            elif step == "hang":
                threading.Event().wait(3600)
            elif step == "follow":
                return Done(apply=lambda connection: self._follow(connection, payload))
            elif _say(payload.port, f"{step} {payload.name}") == "busy":
                return Retry("the desk is busy", code="busy")
        return Done()

    def _follow(self, connection: object, payload: Errand) -> None:
        then = Errand(f"{payload.name}-then", payload.port)
        enqueue("errand", then, session=connection, effects=self.app)  # type: ignore[arg-type]


def ask(port: int, name: str) -> None:
    """Stand at the desk until the test lets this name go on."""
    _say(port, f"ask {name}")


def _say(port: int, line: str) -> str:
    with socket.create_connection(("127.0.0.1", port), timeout=ANSWER_SECONDS) as peer, peer.makefile("rw") as lines:
        lines.write(f"{line}\n")
        lines.flush()
        answer = lines.readline().strip()
    if not answer:
        raise ConnectionError("the desk hung up")
    return answer


def errand_types(**options: float) -> list[ErrandType]:
    return [ErrandType(**options), ErrandType("errand.held", "hold", **options)]


def errands_app(url: str | None = None, **options: object) -> Effects:
    """An Effects that knows the errands. Options of the job types: `time_limit_seconds`."""
    limits = {name: options.pop(name) for name in ("time_limit_seconds",) if name in options}
    types = errand_types(**limits)  # type: ignore[arg-type]
    app = Effects(url, job_types=types, **options)
    for one in types:
        one.app = app
    return app
