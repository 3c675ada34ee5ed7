"""The decision at the end of an attempt: (job, outcome, policy) → what must be written. Pure.

The ledger's state is a fold over the verdicts of an effect's attempts, written here once as Python
(`fold`) and once as the SQL that updates a ledger row in place (`fold_sql`); a property test holds them equal.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Literal, TypeAlias

import msgspec

from effects.job import POISON_LOSSES, Job, JobStatus
from effects.job_type import JobType
from effects.outcome import Apply, Cancelled, Detail, Done, Outcome, Pause, Refused, Retry, Snooze, Unknown
from effects.retry import OnUnknown

Verdict: TypeAlias = Literal["done", "not_done", "unknown"]
LedgerState: TypeAlias = Literal["intended", "released", "done", "refused", "unknown", "abandoned"]
Draw: TypeAlias = Callable[[], float]

MESSAGE_CHARS_MAX = 4096
UNCOUNTED = ("snoozed", "paused")  # outcomes that are logged and use up no attempt


@dataclass(frozen=True, slots=True)
class Lost:
    """The worker vanished: its heartbeat stopped or the attempt's deadline passed."""

    reason: str = "the worker stopped answering"


@dataclass(frozen=True, slots=True)
class TimedOut:
    """The handler ran past its time limit; its thread is abandoned."""

    limit_seconds: float


@dataclass(frozen=True, slots=True)
class GivenBack:
    """Claimed and not begun: back as it was, with no attempt, no loss, nothing unknown."""


@dataclass(frozen=True, slots=True)
class Expired:
    """Claimed after its `expires_at`: not begun, ends cancelled."""


@dataclass(frozen=True, slots=True)
class Unready:
    """Written by a plain INSERT: given back after its job type has placed it in its lane and limits."""

    queue: str
    priority: int
    group_key: str | None
    limit_key: str | None


Ending: TypeAlias = Outcome | Lost | TimedOut | GivenBack | Expired | Unready


class Settlement(msgspec.Struct, frozen=True, kw_only=True):
    """What one attempt's end writes, guarded by `(job.id, job.lease_token)` and nothing else."""

    job: Job
    status: JobStatus  # an end (succeeded, dead, cancelled) or back to work (queued, failed)
    outcome: str  # the word in the attempt log; empty where no attempt is logged
    verdict: Verdict | None = None
    delay_seconds: float = 0.0
    refund_attempt: bool = False
    pause_seconds: float = 0.0  # how long the whole limit key rests
    pause_parent: bool = False  # it is the key above the job's that rests
    age_seconds_forgiven: float = 0.0  # a job without a limit key waits by itself, and is not the older for it
    lost: bool = False
    error_code: str | None = None
    message: str | None = None
    error_type: str | None = None
    stack: str | None = None
    detail: Detail | None = None
    apply: Apply | None = None
    placement: Unready | None = None
    duration_seconds: float = 0.0
    ended_at_monotonic: float = 0.0

    @property
    def ends(self) -> bool:
        return self.status in ("succeeded", "dead", "cancelled")

    @property
    def concerns_effect(self) -> bool:
        """False where the job merely went back, unbegun: the ledger learns nothing from it."""
        return self.ends or self.outcome != ""


def decide(
    job: Job, job_type: JobType[object], ending: Ending, *, released: bool, draw: Draw = random.random
) -> Settlement:
    """Say what must be written for this ending. Never raises for any ending, never writes.

    Args:
        released: the effect may have begun: the attempt was marked, or the type's policy is `repeat`.
        draw: the jitter's source, 0 ≤ x < 1.
    """
    match ending:
        case Done():
            return Settlement(
                job=job,
                status="succeeded",
                outcome="succeeded",
                verdict="done",
                apply=ending.apply,
                detail=ending.detail,
            )
        case Retry():
            return _again(job, job_type, ending, "failed", "not_done", draw)
        case Snooze() | Pause():
            return _later(job, ending)
        case Refused():
            return _dead(job, "refused", "not_done", ending.code, ending.message, ending.detail)
        case Cancelled():
            return Settlement(
                job=job,
                status="cancelled",
                outcome="cancelled",
                error_code=ending.code,
                message=ending.reason,
            )
        case Unknown():
            return _unknown(job, job_type, ending, "unknown", draw)
        case Lost():
            return _lost(job, job_type, ending, released, draw)
        case TimedOut():
            text = f"the attempt ran past its limit of {ending.limit_seconds:g} s"
            if released:
                return _unknown(job, job_type, Unknown(text, code="timed_out"), "timed_out", draw)
            return _again(job, job_type, Retry(text, code="timed_out"), "timed_out", "not_done", draw)
        case GivenBack():
            return Settlement(job=job, status="queued", outcome="", refund_attempt=True)
        case Expired():
            return Settlement(
                job=job, status="cancelled", outcome="", refund_attempt=True, error_code="expired",
                message="its expires_at passed before an attempt could start",
            )  # fmt: skip
        case Unready():
            return Settlement(job=job, status="queued", outcome="", refund_attempt=True, placement=ending)


def _again(
    job: Job, job_type: JobType[object], failure: Retry | Unknown, outcome: str, verdict: Verdict, draw: Draw
) -> Settlement:
    """Back to the queue with a delay, or dead when attempts or age are used up."""
    policy = failure.policy or job_type.retry
    tries = job.attempts if failure.tries is None else failure.tries
    pause = failure.pause_seconds or 0.0
    own_wait = pause if job.limit_key is None else 0.0
    delay = policy.delay_seconds(tries, at_least=max(failure.after_seconds or 0.0, own_wait), draw=draw)
    spent = tries >= policy.max_attempts if job.max_attempts is None else job.attempts >= job.max_attempts
    if spent:
        reason = f"gave up after {job.attempts} attempts"
    elif job.age_seconds + delay - own_wait > policy.max_age_seconds:
        reason = f"gave up: older than {policy.max_age_seconds:g} s at the next attempt"
    else:
        return Settlement(
            job=job, status="failed", outcome=outcome, verdict=verdict, delay_seconds=delay,
            error_code=failure.code, message=failure.message, detail=failure.detail,
            pause_seconds=pause, age_seconds_forgiven=own_wait,
        )  # fmt: skip
    dead = _dead(job, outcome, verdict, failure.code, f"{failure.message} ({reason})", failure.detail)
    return msgspec.structs.replace(dead, pause_seconds=pause)


def _later(job: Job, pause: Snooze | Pause) -> Settlement:
    """Not its turn. Of a pause: back to its place in the line, which stands still; alone, it waits by itself."""
    if isinstance(pause, Snooze):
        return Settlement(
            job=job, status="queued", outcome="snoozed", refund_attempt=True, delay_seconds=pause.seconds,
            message=pause.reason or None, age_seconds_forgiven=0.0 if pause.ages else pause.seconds,
        )  # fmt: skip
    own_wait = pause.seconds if job.limit_key is None else 0.0
    return Settlement(
        job=job, status="queued", outcome="paused", verdict="not_done", refund_attempt=True,
        delay_seconds=own_wait, age_seconds_forgiven=own_wait, error_code=pause.code, message=pause.reason,
        detail=pause.detail, pause_seconds=pause.seconds, pause_parent=pause.parent,
    )  # fmt: skip


def _unknown(job: Job, job_type: JobType[object], failure: Unknown, outcome: str, draw: Draw) -> Settlement:
    """The effect may have happened: repeat it, not too soon, or hold it for a person."""
    wait = job_type.unknown_after_seconds if failure.after_seconds is None else failure.after_seconds
    failure = replace(failure, after_seconds=wait)
    policy = failure.on_unknown or _on_unknown(job, job_type)
    if policy == "repeat" or (policy == "repeat_once" and job.unknown_count == 0):
        return _again(job, job_type, failure, outcome, "unknown", draw)
    held = _dead(job, outcome, "unknown", "unknown", f"{failure.message} (held for a person)", failure.detail)
    return msgspec.structs.replace(held, pause_seconds=failure.pause_seconds or 0.0)


def _lost(job: Job, job_type: JobType[object], ending: Lost, released: bool, draw: Draw) -> Settlement:
    verdict: Verdict | None = "unknown" if released else None
    if job.lost_count + 1 >= POISON_LOSSES:
        settled = _dead(
            job, "lost", verdict, "poison", f"{job.lost_count + 1} workers were lost while they ran it", None
        )
    elif not released or _on_unknown(job, job_type) == "repeat":
        settled = Settlement(
            job=job,
            status="failed",
            outcome="lost",
            verdict=verdict,
            delay_seconds=job_type.unknown_after_seconds if released else 0.0,
            error_code="lost",
            message=ending.reason,
        )
    else:
        asked: OnUnknown | None = "repeat_once" if job_type.can_ask(job) else None
        settled = _unknown(job, job_type, Unknown(ending.reason, code="lost", on_unknown=asked), "lost", draw)
    return msgspec.structs.replace(settled, lost=True)


def _on_unknown(job: Job, job_type: JobType[object]) -> OnUnknown:
    return job.on_unknown or job_type.on_unknown


def _dead(
    job: Job, outcome: str, verdict: Verdict | None, code: str, message: str, detail: Detail | None
) -> Settlement:
    return Settlement(
        job=job,
        status="dead",
        outcome=outcome,
        verdict=verdict,
        error_code=code,
        message=message,
        detail=detail,
    )


def advance(state: LedgerState, verdict: Verdict | None, ended: bool) -> LedgerState:
    """The ledger's state after one more attempt."""
    if state == "done" or verdict == "done":
        return "done"
    if state == "unknown" or verdict == "unknown":
        return "unknown"
    if not ended:
        return "intended"
    return "refused" if verdict == "not_done" else "abandoned"


def fold(verdicts: Iterable[Verdict | None], *, ended: bool) -> LedgerState:
    """The state that all attempts of an effect add up to.

    Any done → done; else any released attempt without a verdict → unknown, even if a later repeat was
    refused; else, once the job has ended, refused or abandoned by its last attempt.
    """
    state: LedgerState = "intended"
    last: Verdict | None = None
    for last in verdicts:
        state = advance(state, last, ended=False)
    return advance(state, last, ended=True) if ended else state


def fold_sql(state: str, verdict: str, ended: str) -> str:
    """`advance` as a SQL expression over three SQL expressions."""
    return (
        f"CASE WHEN {state} = 'done' OR {verdict} = 'done' THEN 'done' "
        f"WHEN {state} = 'unknown' OR {verdict} = 'unknown' THEN 'unknown' "
        f"WHEN NOT {ended} THEN 'intended' "
        f"WHEN {verdict} = 'not_done' THEN 'refused' ELSE 'abandoned' END"
    )
