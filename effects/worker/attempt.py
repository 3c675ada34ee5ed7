"""One attempt: the handler's view of it, and the only place where exceptions become outcomes."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from msgspec.structs import replace

from effects.crashpoints import point
from effects.decision import decide
from effects.errors import LeaseLost
from effects.job_type import JobType
from effects.outcome import OUTCOMES, Done, Outcome, Retry, Unknown
from effects.redact import HIDDEN, redact, secret_texts
from effects.scrub import class_name
from effects.settlement import AttemptEnd, Execution, Returned, Settlement
from effects.worker.answer import accept
from effects.worker.raised import ErrorTexts, made_at, with_error

RETURN_SECONDS = 5.0  # a handler whose release was refused has so long to come back

_log = logging.getLogger("effects.worker")


class RunningAttempt:
    """The `Attempt` that a handler is given."""

    __slots__ = ("_error_texts", "_marked", "_release", "cancel_requested", "claimed", "deadline", "draining",
                 "execution", "job", "job_type", "lost", "now", "released_until", "start_by", "started")  # fmt: skip

    def __init__(
        self,
        execution: Execution,
        job_type: JobType[Any],
        release: Callable[[Execution], bool],
        *,
        now: Callable[[], float],
        draining: bool = False,
        error_texts: ErrorTexts | None = None,
    ) -> None:
        self.now = now  # the worker's monotonic clock
        self.execution = execution  # replaced by a fuller one; whoever settles the attempt has what was known by then
        self.job = execution.job
        self.job_type = job_type
        self.cancel_requested = execution.job.cancel_requested
        self.draining = draining
        self.lost = False  # set when this worker learns that its leases are gone
        self.claimed = now()
        self.started = self.deadline = 0.0
        self.start_by = float("inf")  # by the lease clock; later, its lease could end before its time limit does
        self.released_until = float(
            "-inf"
        )  # infinite while it waits for us to record its release; then, when that ended
        self._marked = False
        self._release = release
        self._error_texts = error_texts

    @property
    def number(self) -> int:
        return self.job.attempts

    @property
    def loaded(self) -> Any:
        return self.execution.loaded

    @property
    def private(self) -> Any:
        return self.execution.private

    @private.setter
    def private(self, value: Any) -> None:
        self.execution = replace(self.execution, private=value)

    @property
    def released(self) -> bool:
        """The effect may have begun. Where the policy is `repeat`, the claim counts as the release."""
        return self._marked or self.job_type.is_released_by_claim

    def remaining_seconds(self) -> float:
        return max(0.0, self.deadline - self.now())

    def release(self) -> None:
        """Record that the effect may now happen; see `effects.attempt.Attempt`."""
        if self.lost:
            raise LeaseLost
        if self.released:
            return
        if self.remaining_seconds() <= 0 or not self._wait_for_release():
            raise LeaseLost(
                f"job {self.job.id}: attempt {self.number} has lost its lease or was cancelled; the effect is not begun"
            )
        self._marked = True
        if self.lost:  # given up while the release was being written, perhaps without seeing it
            raise LeaseLost

    def _wait_for_release(self) -> bool:
        self.released_until = float("inf")
        try:
            return self._release(self.execution)
        finally:
            self.released_until = self.now()

    @property
    def hangs(self) -> bool:
        """Whether an attempt that was given up is stuck in its handler, not in our own record of its release."""
        return self.now() > self.released_until + RETURN_SECONDS

    def start(self) -> None:
        self.started = self.now()
        self.deadline = self.started + self.job_type.time_limit_seconds

    def settle(self, ending: AttemptEnd, error: BaseException | None = None) -> Settlement:
        """The decision about this attempt, with its timing and its error. Never raises for an outcome of our own."""
        # First: where this thread ends before it can hand on the answer, another one does.
        self.execution = execution = replace(self.execution, outcome=ending)
        settlement = decide(self.job, self.job_type, ending, released=self.released)
        ended = self.now()
        timed = replace(
            settlement, execution=execution, wait_seconds=self.job.due_seconds + self.started - self.claimed,
            duration_seconds=ended - self.started, ended_at_monotonic=ended,
        )  # fmt: skip
        settled = with_error(self._without_secrets(timed), error)
        if error is None or self._error_texts is None:
            return settled
        return self._error_texts.add(settled, error, self.job_type, self.execution.payload)

    def cut_short(self) -> Settlement:
        """The settlement of an abandoned attempt: its outcome if it has one, else what may have happened."""
        if self.execution.outcome is not None:
            return self.settle(self.execution.outcome)
        if self.deadline and self.released:
            return self.settle(Unknown("the worker stopped before a verdict came", code="shutdown"))
        return self.settle(Returned())

    def _without_secrets(self, settlement: Settlement) -> Settlement:
        """Redact the handler's report, which is stored and shown and may quote the payload."""
        if not (settlement.message or settlement.detail or settlement.error_code) or not self.job_type.sensitive:
            return settlement
        try:
            secrets = secret_texts(self.execution.payload, self.job_type.sensitive)
        except BaseException:  # a payload whose values cannot be read: no search is possible
            return replace(settlement, message=HIDDEN, detail=None)
        return replace(
            settlement,
            message=redact(settlement.message, secrets),
            detail=redact(settlement.detail, secrets),
            error_code=redact(settlement.error_code, secrets),
        )

    def run(self) -> Settlement:
        """Perform, and return the settlement to write. Never raises."""
        error: BaseException | None = None
        answer: object
        try:
            point("perform.before")
            answer = self.job_type.perform(self.execution.payload, self)
            point("perform.after")
        except LeaseLost:  # where the job is another's by now, the fence drops this
            answer = Retry("not released: the lease was gone, or the job cancelled", code="lease_lost")
        except OUTCOMES as raised:
            answer = error = raised
        except BaseException as raised:
            answer, error = self._classify(raised), raised
        return self._settle_answer(Done() if answer is None else answer, error)

    def _settle_answer(self, answer: object, error: BaseException | None) -> Settlement:
        accepted = accept(answer, who=f"{self.job.job_type}: perform", released=self.released)
        settlement = self.settle(accepted.outcome, error)
        if accepted.problem is None:
            return settlement
        fields = {"job": self.job.id, "type": self.job.job_type, "reason": accepted.problem}
        _log.error("job.wrong_answer", extra=fields)
        if error is not None:
            return settlement
        return replace(settlement, error_type="OutcomeInvalid", stack=made_at(answer))

    def _classify(self, error: BaseException) -> Outcome:
        """The fate of an exception, by the job type's own word; where that fails too, by whether it was released."""
        code = class_name(error)
        message = code
        if isinstance(error, Exception):
            try:
                outcome = self.job_type.classify(error, released=self.released)
                if isinstance(outcome, OUTCOMES):
                    return outcome
                code = f"{code}, and classify returned a {class_name(outcome)}"
            except BaseException as second:
                code = f"{code}, and classify: {class_name(second)}"
        return Unknown(message, code=code) if self.released else Retry(message, code=code)
