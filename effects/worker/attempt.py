"""One attempt: the handler's view of it, and the only place where exceptions become outcomes."""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable
from typing import Any, get_args

from msgspec.structs import replace

from effects.crashpoints import point
from effects.errors import LeaseLost
from effects.job import Job
from effects.job_type import JobType, safe_message
from effects.outcome import Done, Outcome, Refused, Retry, Unknown
from effects.redact import secret_texts, strike_out
from effects.settlement import Ending, Settlement, decide

STACK_CHARS_MAX = 4096
_OUTCOMES = get_args(Outcome)


class RunningAttempt:
    """The `Attempt` that a handler is given."""

    __slots__ = ("_marked", "_release", "cancel_requested", "deadline", "draining", "job", "job_type", "loaded",
                 "lost", "payload", "started")  # fmt: skip

    def __init__(
        self,
        job: Job,
        job_type: JobType[Any],
        payload: Any,
        loaded: Any,
        release: Callable[[Job], bool],
        *,
        draining: bool = False,
    ) -> None:
        self.job = job
        self.job_type = job_type
        self.payload = payload
        self.loaded = loaded
        self.cancel_requested = job.cancel_requested
        self.draining = draining
        self.lost = False  # set when this worker learns that its leases are gone
        self.started = self.deadline = 0.0
        self._marked = False
        self._release = release

    @property
    def number(self) -> int:
        return self.job.attempts

    @property
    def key(self) -> str | None:
        """The effect's idempotency key: the same over every attempt, rescue and requeue."""
        return self.job.key

    @property
    def released(self) -> bool:
        """The effect may have begun. Where the policy is `repeat`, the claim counts as the release."""
        return self._marked or self.job_type.on_unknown == "repeat"

    def remaining_seconds(self) -> float:
        return max(0.0, self.deadline - time.monotonic())

    def release(self) -> None:
        """Mark the point of no return; see `effects.job_type.Attempt`."""
        if self.lost:
            raise LeaseLost
        if self.job_type.on_unknown == "repeat" or self._marked:
            return
        if self.remaining_seconds() <= 0 or not self._release(self.job):
            raise LeaseLost(f"job {self.job.id}: the lease of attempt {self.number} is gone; the effect is not begun")
        self._marked = True
        if self.lost:  # given up while the mark was being written: whoever did so may not have seen it
            raise LeaseLost

    def start(self) -> None:
        self.started = time.monotonic()
        self.deadline = self.started + self.job_type.time_limit_seconds

    def settle(self, ending: Ending, error: BaseException | None = None) -> Settlement:
        """The decision about this attempt, with its timing and its error."""
        settlement = decide(self.job, self.job_type, ending, released=self.released)
        return _with_evidence(self._without_secrets(settlement), self.started, error)

    def _without_secrets(self, settlement: Settlement) -> Settlement:
        """What a handler says of its attempt is stored and shown; it may quote its payload."""
        if not self.job_type.sensitive or not (settlement.message or settlement.detail or settlement.error_code):
            return settlement
        secrets = secret_texts(self.payload, self.job_type.sensitive)
        return replace(
            settlement,
            message=strike_out(settlement.message, secrets),
            detail=strike_out(settlement.detail, secrets),
            error_code=strike_out(settlement.error_code, secrets),
        )

    def run(self) -> Settlement:
        """Perform, and say what must be written. Never raises."""
        try:
            point("perform.before")
            outcome = self.job_type.perform(self.payload, self)
            point("perform.after")
        except LeaseLost:  # where the job is another's by now, the fence drops this
            return self.settle(Retry("the lease was gone before the effect began", code="lease_lost"))
        except BaseException as error:
            return self.settle(self._classify(error), error)
        if outcome is None:
            outcome = Done()
        if not isinstance(outcome, _OUTCOMES):
            outcome = self._no_outcome(outcome)
        return self.settle(outcome)

    def _classify(self, error: BaseException) -> Outcome:
        code = type(error).__name__
        if isinstance(error, Exception):
            try:
                return self.job_type.classify(error, released=self.released)
            except Exception as second:
                code = f"{code}, and classify: {type(second).__name__}"
        if self.released:
            return Unknown(safe_message(error), code=code)
        return Retry(safe_message(error), code=code)

    def _no_outcome(self, answer: object) -> Outcome:
        text = f"{self.job.job_type}: perform returned a {type(answer).__name__}; it must return an outcome or None"
        return Unknown(text, code="no_outcome") if self.released else Refused(text, code="no_outcome")


def _with_evidence(settlement: Settlement, started: float, error: BaseException | None) -> Settlement:
    ended = time.monotonic()
    if error is None:
        return replace(settlement, duration_seconds=ended - started, ended_at_monotonic=ended)
    return replace(
        settlement,
        duration_seconds=ended - started,
        ended_at_monotonic=ended,
        error_type=type(error).__name__,
        stack=safe_stack(error),
    )


def safe_stack(error: BaseException) -> str:
    """Where it happened: files, lines and functions, no values and no messages; at most 4 KiB, innermost kept."""
    frames = traceback.extract_tb(error.__traceback__)
    lines = [f"{frame.filename}:{frame.lineno} {frame.name}" for frame in frames]
    return "\n".join(lines)[-STACK_CHARS_MAX:]
