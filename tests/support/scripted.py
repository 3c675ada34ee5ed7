"""A job type that does what its payload says, so that a test tells a job's whole life in one line."""

from __future__ import annotations

import threading
from collections import Counter
from typing import Any

import msgspec

from effects import (
    Attempt,
    Cancelled,
    Done,
    Exponential,
    JobType,
    Outcome,
    Refused,
    Retry,
    RetryPolicy,
    Routing,
    Snooze,
    Unknown,
)
from effects.retry import OnUnknown


class Script(msgspec.Struct, frozen=True, omit_defaults=True):
    """The moves of a job, one an attempt; the last is repeated.

    A move is `done`, `none` (the handler returns nothing), `retry`, `refuse`, `cancel`, `unknown`,
    `snooze`, `raise`; `release` and `wait` come alone (then done) or before another one: `release raise`.
    """

    moves: list[str] = []
    name: str = ""
    queue: str | None = None
    group: str | None = None
    limit: str | None = None


ANSWERS: dict[str, Outcome | None] = {
    "done": Done(),
    "release": Done(),
    "wait": Done(),
    "raise": None,
    "none": None,
    "retry": Retry("not now", code="busy"),
    "refuse": Refused("no"),
    "cancel": Cancelled(),
    "unknown": Unknown("no reply"),
    "snooze": Snooze(60, "later"),
}


class BoomError(Exception):
    """What the move `raise` raises; its text must never be stored."""


class Scripted(JobType[Script]):
    """Obeys. `performed` counts the calls by the script's name; `began` and `gate` hold an attempt."""

    payload = Script
    retry = RetryPolicy(backoff=Exponential(seconds=1.0), max_attempts=5, jitter=0.0)

    def __init__(self, name: str = "scripted", *, on_unknown: OnUnknown = "repeat", **attributes: Any) -> None:
        self.name = name
        self.on_unknown = on_unknown
        for attribute, value in attributes.items():
            setattr(self, attribute, value)
        self.performed: Counter[str] = Counter()
        self.order: list[str] = []
        self.began = threading.Event()
        self.gate = threading.Event()  # the move `wait` stands here until the test opens it
        self._lock = threading.Lock()

    def route(self, payload: Script) -> Routing:
        return Routing(queue=payload.queue, group_key=payload.group, limit_key=payload.limit)

    def perform(self, payload: Script, attempt: Attempt) -> Outcome | None:
        with self._lock:
            turn = self.performed[payload.name]
            self.performed[payload.name] += 1
            self.order.append(payload.name)
        moves = payload.moves or ["done"]
        outcome: Outcome | None = Done()
        for move in moves[min(turn, len(moves) - 1)].split():
            outcome = self._move(move, attempt)
        return outcome

    def _move(self, move: str, attempt: Attempt) -> Outcome | None:
        if move == "release":
            attempt.release()
        elif move == "wait":
            self.began.set()
            assert self.gate.wait(60), "the test never opened the gate"
        elif move == "raise":
            raise BoomError("secret: rosebud")
        return ANSWERS[move]
