"""One attempt: the handler's view of it, and the only place where exceptions become outcomes."""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass
from inspect import CORO_RUNNING, getcoroutinestate
from types import FrameType
from typing import Any, Protocol, cast

from msgspec.structs import replace

from effects.errors import ConfigurationError, LeaseLost
from effects.keys.encryption import KeyRing
from effects.kit.crashpoints import point
from effects.kit.frames import Frame, awaiting_frames, sole_error, thread_frames
from effects.kit.logs import own_logger
from effects.kit.text.redact import HIDDEN, redact
from effects.kit.text.scrub import class_name
from effects.kit.text.wording import described
from effects.model.decision import decide
from effects.model.job_type import JobType
from effects.model.outcome import OUTCOMES, Done, Outcome, Retry, Unknown
from effects.model.settlement import AttemptEnd, Execution, Returned, Settlement, Telemetry
from effects.worker.attempts.answer import (
    NO_KEYS,
    ErrorTexts,
    accept,
    place_made,
    with_error,
    with_result,
    without_result,
)
from effects.worker.machine.runtime import Runtime

RETURN_SECONDS = 5.0  # a handler whose release was refused has so long to come back
_DONE = Done()  # what None answers; never raised, so that all attempts may share it

_log = own_logger("effects.worker")


class Releases(Protocol):
    """How attempts are released: true once it is recorded; False if the job is no longer theirs, or it is not known."""

    def release(self, execution: Execution) -> bool:
        """For a thread, which waits."""

    async def release_async(self, execution: Execution) -> bool:
        """For a task of the event loop."""

    def would_block(self) -> bool:
        """Whether whoever waits here keeps an event loop from going on."""


@dataclass(frozen=True, slots=True)
class AttemptContext:
    """What the attempts of one batch share.

    `draining`: as handlers see it. `error_texts`: keeps texts of exceptions. `keys`: for results that are sealed.
    `telemetry`: each has a span, which begins with it and is current while its handler runs.
    """

    job_type: JobType[Any]
    releases: Releases
    runtime: Runtime
    draining: bool = False
    error_texts: ErrorTexts | None = None
    keys: KeyRing = NO_KEYS
    telemetry: Telemetry | None = None


class RunningAttempt:
    """The `Attempt` that a handler is given."""

    __slots__ = ("_cancel", "_context", "_coroutine", "_marked", "cancel_requested", "claimed", "deadline", "execution",
                 "frame_of_thread", "is_async", "job", "job_type", "lost", "now", "released_until", "start_by",
                 "started")  # fmt: skip

    def __init__(self, execution: Execution, context: AttemptContext) -> None:
        self._context = context
        self.now = context.runtime.monotonic
        self.execution = execution  # replaced by a fuller one; whoever settles the attempt has what was known by then
        self.job = execution.job
        self.job_type = context.job_type
        self.is_async = context.job_type.is_async  # whether it runs on the event loop
        self.cancel_requested = execution.job.cancel_requested
        self.lost = False  # set when this worker learns that its leases are gone
        self.claimed = self.started = self.deadline = 0.0
        self.start_by = math.inf  # by the lease clock; later, its lease could end before its time limit does
        self.released_until = -math.inf  # infinite while it waits for us to record its release; then, when that ended
        self._marked = False
        self.frame_of_thread: Callable[[], FrameType | None] | None = None  # of that which carries it out
        self._cancel: Callable[[], object] | None = None  # of its task, while it has one
        self._coroutine: Coroutine[Any, Any, Settlement] | None = None

    @property
    def number(self) -> int:
        return self.job.attempts

    @property
    def draining(self) -> bool:
        return self._context.draining

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

    @property
    def is_being_released(self) -> bool:
        """Its release is on its way to the database, or back from it."""
        return self.released_until == math.inf

    def remaining_seconds(self) -> float:
        return max(0.0, self.deadline - self.now())

    def release(self) -> None:
        """Record that the effect may now happen; see `effects.model.job.Attempt`."""
        if self.is_async and self._context.releases.would_block():
            raise ConfigurationError(
                f"{self.job.job_type}: attempt.release() in `async def perform` blocks the event loop for all; write "
                "`await attempt.release_async()`"
            )
        if self._must_release():
            self.released_until = math.inf
            try:
                marked = self._context.releases.release(self.execution)
            finally:
                self.released_until = self.now()
            self._note_release(marked)

    async def release_async(self) -> None:
        """`release`, awaited; see `effects.model.job.Attempt`."""
        if not self.is_async:
            self.release()
        elif self._must_release():
            self.released_until = math.inf
            try:
                marked = await self._context.releases.release_async(self.execution)
            finally:
                self.released_until = self.now()
            self._note_release(marked)

    def _must_release(self) -> bool:
        """Whether it is not released yet, and may be."""
        self._refuse_after_end()
        if not self.released and self.remaining_seconds() <= 0:
            self._note_release(False)
        return not self.released

    def _note_release(self, marked: bool) -> None:
        if not marked:
            raise LeaseLost(
                f"job {self.job.id}: attempt {self.number} has lost its lease or was cancelled; the effect is not begun"
            )
        self._marked = True
        self._refuse_after_end()  # of itself while the release was being written, perhaps without seeing it

    def _refuse_after_end(self) -> None:
        """Nothing is begun for an attempt that was given up, or by a task or thread that its handler left behind."""
        if self.lost:
            raise LeaseLost
        if self.execution.outcome is not None:
            raise LeaseLost(f"job {self.job.id}: attempt {self.number} has ended; the effect is not begun")

    def on_loop(self, coroutine: Coroutine[Any, Any, Settlement], cancel: Callable[[], object]) -> None:
        """It runs as a task; `cancel` has that cancelled, from whichever thread."""
        self._cancel, self._coroutine = cancel, coroutine
        if self.lost:  # given up before
            cancel()

    def left_loop(self) -> None:
        """Its task has ended: the two must not keep each other until garbage is searched for."""
        self._cancel = self._coroutine = None

    def cancel_task(self) -> None:
        """Where it is one: it was given up, and has a moment to come back."""
        if (cancel := self._cancel) is not None:
            self.released_until = max(self.released_until, self.now())
            cancel()

    def frames(self) -> list[Frame]:
        """Where its thread or task is now, outermost first."""
        if (coroutine := self._coroutine) is not None and getcoroutinestate(coroutine) != CORO_RUNNING:
            return awaiting_frames(coroutine)
        frame = None if self.frame_of_thread is None else self.frame_of_thread()
        return [] if frame is None else thread_frames(frame)

    @property
    def hangs(self) -> bool:
        """Whether an attempt that was given up is stuck in its handler, not in our own record of its release."""
        return self.now() > self.released_until + RETURN_SECONDS

    def start(self) -> None:
        self.started = self.now()
        self.deadline = self.started + self.job_type.time_limit_seconds
        if (telemetry := self._context.telemetry) is not None:
            self.execution = replace(self.execution, span=telemetry.start(self.job))

    def settle(self, ending: AttemptEnd, error: BaseException | None = None) -> Settlement:
        """The decision about this attempt, with its timing and its error. Never raises for our own outcome."""
        # First: where this thread ends before it can hand on the answer, another one does.
        self.execution = execution = replace(self.execution, outcome=ending)
        ended = self.now()
        ran_seconds = ended - self.started if self.started else 0.0
        settlement = decide(self.job, self.job_type, ending, released=self.released, ran_seconds=ran_seconds)
        timed = replace(
            settlement, execution=execution, wait_seconds=self.job.due_seconds + self.started - self.claimed,
            duration_seconds=ended - self.started, ended_at_monotonic=ended,
        )  # fmt: skip
        if isinstance(ending, Done) and self.job_type.result:
            timed = with_result(timed, ending.result, self.job_type, self._context.keys)
        settled = with_error(self._without_secrets(timed), error)
        if error is None or (error_texts := self._context.error_texts) is None:
            return settled
        return error_texts.add(settled, error, self.job_type, self.execution.payload)

    def cut_short(self) -> Settlement:
        """The settlement of an abandoned attempt: its outcome if it has one, else what may have happened."""
        if self.execution.outcome is not None:
            return self.settle(self.execution.outcome)
        if self.deadline and self.released:
            return self.settle(Unknown("the worker stopped before a verdict came", code="shutdown"))
        return self.settle(Returned(unheard=self.released_until > -math.inf))

    def _without_secrets(self, settlement: Settlement) -> Settlement:
        """Redact the handler's report, which is stored and shown and may quote the payload."""
        if not (settlement.message or settlement.detail or settlement.error_code) or not self.job_type.sensitive:
            return settlement
        try:
            secrets = self.job_type.secrets_of(self.execution.payload)
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
        if (span := self.execution.span) is None:
            return self._run()
        leave = span.enter()
        try:
            return self._run()
        finally:
            leave()

    def _run(self) -> Settlement:
        try:
            point("perform.before")
            answer: object = self.job_type.perform(self.execution.payload, self)
            point("perform.after")
        except BaseException as raised:
            return self._settle_error(raised)
        return self._settle_answer(answer, None)

    async def run_async(self) -> Settlement:
        """`run` for an async job type. The end of its task, however it comes, is an outcome too."""
        if (span := self.execution.span) is not None:
            span.enter()  # of its task, whose context ends with it
        try:
            point("perform.before")
            answer: object = await cast("Awaitable[object]", self.job_type.perform(self.execution.payload, self))
            point("perform.after")
        except BaseException as raised:
            return self._settle_error(raised)
        return self._settle_answer(answer, None)

    def _settle_error(self, error: BaseException) -> Settlement:
        error = sole_error(error)
        kind = type(error)
        if issubclass(kind, LeaseLost):  # where the job is another's by now, the fence drops this
            text = "not released: the lease was gone, or the job cancelled"
            if self.released:  # before, for a part of the effect
                return self._settle_answer(Unknown("the lease was lost after the release", code="lease_lost"), None)
            return self._settle_answer(Retry(text, code="lease_lost"), None)
        return self._settle_answer(error if issubclass(kind, OUTCOMES) else self._classify(error), error)

    def _settle_answer(self, answer: object, error: BaseException | None) -> Settlement:
        if answer is None:
            return self.settle(_DONE)
        who = f"{self.job.job_type}: perform"
        accepted = accept(answer, who=who, released=self.released)
        if not self.job_type.result:
            accepted = without_result(accepted, who)
        settlement = self.settle(accepted.outcome, error)
        if accepted.problem is None:
            return settlement
        fields = {"job": self.job.id, "type": self.job.job_type, "reason": accepted.problem}
        _log.error("job.wrong_answer", extra=fields)
        if error is not None:
            return settlement
        return replace(settlement, error_type="OutcomeInvalid", stack=place_made(answer))

    def _classify(self, error: BaseException) -> Outcome:
        """The fate of an exception, by the job type's own word; where that fails too, by whether it was released."""
        code = class_name(error)
        message = code
        if isinstance(error, Exception):
            try:
                outcome = self.job_type.classify(error, released=self.released)
                if isinstance(outcome, OUTCOMES):
                    return outcome
                code = f"{code}, and classify returned {described(outcome)}"
            except BaseException as second:
                code = f"{code}, and classify: {class_name(second)}"
        return Unknown(message, code=code) if self.released else Retry(message, code=code)
