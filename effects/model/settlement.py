"""What is known of an attempt, how it may end, and what its end writes: data only.

claim ─▶ Execution(job, payload) ─▶ load: loaded ─▶ perform: private, outcome ─▶ decide: Settlement ─▶ record
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Literal, Protocol, TypeAlias

import msgspec

from effects.model.job import Job, JobStatus, NewJob
from effects.model.outcome import Apply, Detail, Outcome

Verdict: TypeAlias = Literal["done", "not_done", "unknown"]

MESSAGE_CHARS_MAX = 4096
UNCOUNTED = ("snoozed", "paused")  # outcomes that are logged and use up no attempt


@dataclass(frozen=True, slots=True)
class WorkerLost:
    """The worker vanished: its heartbeat stopped or the attempt's deadline passed."""

    reason: str = "the worker stopped answering"


@dataclass(frozen=True, slots=True)
class TimedOut:
    """The handler ran past its time limit; its thread is abandoned."""

    limit_seconds: float


@dataclass(frozen=True, slots=True)
class Returned:
    """Claimed but not started: returned unchanged, without an attempt, a loss or an unknown; at once or delayed.

    `unheard`: its release was asked for, and may be on record, but its handler never heard of it.
    """

    after_seconds: float = 0.0
    unheard: bool = False


@dataclass(frozen=True, slots=True)
class Expired:
    """Claimed after its `expires_at`: not begun, ends cancelled."""


@dataclass(frozen=True, slots=True)
class Unrouted:
    """Written by a plain INSERT: given back once its job type has routed it to its queue and limits."""

    queue: str
    priority: int
    group_key: str | None
    limit_key: str | None


AttemptEnd: TypeAlias = Outcome | WorkerLost | TimedOut | Returned | Expired | Unrouted


class Execution(msgspec.Struct, frozen=True):
    """What is known of one attempt. Each step adds its part, to a copy.

    `payload`: decoded once, by the job type. `loaded`: the job's entry from `JobType.load`. `private`: set by `perform`
    for the ledger of its type (`Attempt.private`). `span`: the `effects.telemetry.AttemptSpan`, where the app has any.
    """

    job: Job
    payload: Any = None
    loaded: Any = None
    private: Any = None
    outcome: AttemptEnd | None = None
    span: Any = None

    def __repr__(self) -> str:
        """The job alone: everything else may hold secrets."""
        return f"Execution(job={self.job!r})"


class Settlement(msgspec.Struct, frozen=True, kw_only=True):
    """The rows that one attempt's end writes, guarded by `(job.id, job.lease_token)` alone.

    `execution` is None unless this process ran the attempt: one lost with its worker has none.
    """

    job: Job
    execution: Execution | None = None
    status: JobStatus  # an end (succeeded, dead, cancelled) or back to work (queued, failed)
    outcome: str  # the word in the attempt log; empty where no attempt is logged
    verdict: Verdict | None = None
    delay_seconds: float = 0.0
    refund_attempt: bool = False
    pause_seconds: float = 0.0  # how long the whole limit key is paused
    pause_then: Sequence[float] = ()  # see `Pause.then`
    pause_parent: bool = False  # it is the key above the job's that rests
    age_seconds_forgiven: float = 0.0  # a job without a limit key waits by itself, and is not the older for it
    lost: bool = False
    unheard: bool = False  # see `Returned`
    error_code: str | None = None
    message: str | None = None
    error_type: str | None = None
    stack: str | None = None  # see `effects.kit.frames`
    error_text: Detail | None = None  # as stored, see `effects.keys.sealing`
    logged_error: BaseException | None = None  # what the log is given as `exc_info`
    detail: Detail | None = None
    result: Detail | None = None  # as stored, see `effects.keys.sealing`
    apply: Apply | None = None
    routing: Unrouted | None = None
    wait_seconds: float = 0.0  # from when the job was due to its start
    duration_seconds: float = 0.0
    ended_at_monotonic: float = 0.0

    @property
    def ends(self) -> bool:
        return self.status in ("succeeded", "dead", "cancelled")

    @property
    def private(self) -> Any:
        """`Attempt.private` as the attempt ended; None if it was never set, or was lost with its worker."""
        return None if self.execution is None else self.execution.private

    @property
    def concerns_effect(self) -> bool:
        """False if the job was merely returned without running, which does not concern the ledger."""
        return self.ends or self.outcome != ""


class AttemptSpan(Protocol):
    """One attempt, from its start until its outcome is recorded. No method may raise."""

    def enter(self) -> Callable[[], object]:
        """Make it the current one of the calling thread or task; what is returned undoes that, in the same one."""
        ...

    def released(self) -> None:
        """Its effect may happen from now on: that is recorded."""
        ...

    def end(self, settlement: Settlement, *, recorded: bool) -> None:
        """The attempt has ended so, and that is recorded, or was refused because its job was no longer this worker's.

        Not called where an attempt's outcome could not be written.
        """
        ...


class Telemetry(Protocol):
    """No method may raise for a reason of its own."""

    def enqueuing(self, jobs: Sequence[NewJob]) -> AbstractContextManager[Callable[[Sequence[int]], object]]:
        """A span around the writing of these jobs; it is told their ids."""
        ...

    def trace_context(self) -> str | None:
        """The current context as text, for `trace_context` of a job that was given none."""
        ...

    def start(self, job: Job) -> AttemptSpan:
        """An attempt of the job starts now."""
        ...
