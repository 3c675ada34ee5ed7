"""A job type that does what its payload says, so that a test tells a job's whole life in one line."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections import Counter
from datetime import UTC, datetime
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

# Of a job that is enqueued with all that may be given.
EVERY_FIELD: dict[str, Any] = {
    "key": "order:1", "group_key": "orders", "limit_key": "shop", "queue": "slow", "priority": -3, "max_attempts": 4,
    "run_at": datetime(2031, 5, 1, 12, 30, 0, 250_000, tzinfo=UTC), "expires_at": datetime(2032, 1, 1, tzinfo=UTC),
    "trace_context": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", "on_unknown": "hold",
}  # fmt: skip


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
    "stay": Done(),
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
    """Obeys. `performed` counts the calls by the script's name; `gate` holds an attempt, and `at_gate` counts those."""

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
        self.at_gate = 0  # all that ever came there
        self._lock = threading.Lock()

    def route(self, payload: Script) -> Routing:
        return Routing(queue=payload.queue, group_key=payload.group, limit_key=payload.limit)

    def perform(self, payload: Script, attempt: Attempt) -> Outcome | None:
        outcome: Outcome | None = Done()
        for move in self._moves(payload):
            outcome = self._move(move, attempt)
        return outcome

    def _moves(self, payload: Script) -> list[str]:
        with self._lock:
            turn = self.performed[payload.name]
            self.performed[payload.name] += 1
            self.order.append(payload.name)
        moves = payload.moves or ["done"]
        return moves[min(turn, len(moves) - 1)].split()

    def _arrive(self) -> None:
        with self._lock:
            self.at_gate += 1
        self.began.set()

    def _move(self, move: str, attempt: Attempt) -> Outcome | None:
        if move == "release":
            attempt.release()
        elif move == "wait":
            self._arrive()
            assert self.gate.wait(60), "the test never opened the gate"
        elif move == "raise":
            raise BoomError("secret: rosebud")
        return ANSWERS[move]


class AsyncScripted(Scripted):
    """Obeys on the worker's event loop, in a queue of its own.

    `block` lets no other handler go on, until the test opens the gate. `cancelled` counts those whose task was.
    """

    def __init__(self, name: str = "scripted", **options: Any) -> None:
        super().__init__(name, **options)
        self.in_flight = self.cancelled = 0

    async def perform(self, payload: Script, attempt: Attempt) -> Outcome | None:  # type: ignore[override]
        outcome: Outcome | None = Done()
        self.in_flight += 1
        try:
            for move in self._moves(payload):
                outcome = await self._move_async(move, attempt)
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        finally:
            self.in_flight -= 1
        return outcome

    async def _move_async(self, move: str, attempt: Attempt) -> Outcome | None:
        if move == "release":
            await attempt.release_async()
        elif move == "wait":
            self._arrive()
            while not self.gate.is_set():
                await asyncio.sleep(0.005)
        elif move == "stay":  # whatever anyone wants
            while not self.gate.is_set():
                with contextlib.suppress(asyncio.CancelledError):
                    await asyncio.sleep(0.005)
        elif move == "block":
            return self._move("wait", attempt)
        else:
            return self._move(move, attempt)
        return ANSWERS.get(move)
