"""The decision at the end of an attempt: (job, outcome, policy) → what must be written. Pure."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from typing import Protocol, TypeAlias

import msgspec

from effects.kit.logs import own_logger
from effects.kit.text.scrub import class_name
from effects.model.job import POISON, POISON_LOSSES, Job
from effects.model.outcome import Cancelled, Detail, Done, Pause, Refused, Retry, Snooze, Unknown
from effects.model.settlement import (
    AttemptEnd,
    Expired,
    Returned,
    Settlement,
    TimedOut,
    Unrouted,
    Verdict,
    WorkerLost,
)
from effects.retry import OnUnknown, RetryPolicy

Draw: TypeAlias = Callable[[], float]

LEAST_SECONDS = 1.0  # between two attempts that begin, where the first answered Snooze or Pause

_log = own_logger("effects.worker")


class Policy(Protocol):
    """What a job type says about the end of its attempts. Every JobType is one."""

    @property
    def retry(self) -> RetryPolicy: ...

    @property
    def on_unknown(self) -> OnUnknown: ...

    @property
    def unknown_after_seconds(self) -> float: ...

    def can_ask(self, job: Job) -> bool: ...


def decide(
    job: Job,
    policy: Policy,
    ending: AttemptEnd,
    *,
    released: bool,
    draw: Draw = random.random,
    ran_seconds: float = 0.0,
) -> Settlement:
    """Say what must be written for this ending. Never raises for any ending, never writes.

    Args:
        released: the effect may have begun: the attempt was marked, or the type's policy is `repeat`.
        draw: the jitter's source, 0 ≤ x < 1.
        ran_seconds: since the attempt began.
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
            return _again(job, policy, ending, "failed", "not_done", draw)
        case Snooze() | Pause():
            return _later(job, policy, ending, max(0.0, LEAST_SECONDS - ran_seconds))
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
            return _unknown(job, policy, ending, "unknown", draw)
        case WorkerLost():
            return _lost(job, policy, ending, released, draw)
        case TimedOut():
            text = f"the attempt ran past its limit of {ending.limit_seconds:g} s"
            if released:
                return _unknown(job, policy, Unknown(text, code="timed_out"), "timed_out", draw)
            return _again(job, policy, Retry(text, code="timed_out"), "timed_out", "not_done", draw)
        case Returned():
            return Settlement(
                job=job, status="queued", outcome="", refund_attempt=True, delay_seconds=ending.after_seconds,
                unheard=ending.unheard,
            )  # fmt: skip
        case Expired():
            return Settlement(
                job=job, status="cancelled", outcome="", refund_attempt=True, error_code="expired",
                message="its expires_at passed before an attempt could start",
            )  # fmt: skip
        case Unrouted():
            return Settlement(job=job, status="queued", outcome="", refund_attempt=True, routing=ending)


def _again(
    job: Job, policy: Policy, failure: Retry | Unknown, outcome: str, verdict: Verdict, draw: Draw
) -> Settlement:
    """Back to the queue with a delay, or dead when attempts or age are used up."""
    retry = failure.policy or policy.retry
    tries = job.attempts if failure.tries is None else failure.tries
    pause = failure.pause_seconds or 0.0
    own_wait = pause if job.limit_key is None else 0.0
    delay = retry.delay_seconds(tries, at_least=max(failure.after_seconds or 0.0, own_wait), draw=draw)
    reason = _why_over(job, retry, tries, delay - own_wait)
    if reason is None:
        return Settlement(
            job=job, status="failed", outcome=outcome, verdict=verdict, delay_seconds=delay,
            error_code=failure.code, message=failure.message, detail=failure.detail,
            pause_seconds=pause, age_seconds_forgiven=own_wait,
        )  # fmt: skip
    dead = _dead(job, outcome, verdict, failure.code, f"{failure.message} ({reason})", failure.detail)
    return msgspec.structs.replace(dead, pause_seconds=pause)


def _why_over(job: Job, retry: RetryPolicy, tries: int, wait_seconds: float) -> str | None:
    """Why there is no further attempt: the attempts are used up, or it would be too old. None where there is one."""
    if tries >= retry.max_attempts if job.max_attempts is None else job.attempts >= job.max_attempts:
        return f"gave up after {job.attempts} attempt{'' if job.attempts == 1 else 's'}"
    if job.age_seconds + wait_seconds > retry.max_age_seconds:
        return f"gave up: older than {retry.max_age_seconds:g} s at the next attempt"
    return None


def _later(job: Job, policy: Policy, pause: Snooze | Pause, least: float) -> Settlement:
    """Not its turn. Of a pause: back to its place in the line, which does not move, or behind others; alone, it waits
    by itself.

    A snooze that ages the job ends at `max_age`; one that does not can last forever. Neither uses up an attempt, so
    `least` keeps a job whose answer names no wait from running hundreds of times a second.
    """
    if isinstance(pause, Snooze):
        if pause.ages and job.age_seconds + pause.seconds > policy.retry.max_age_seconds:
            over = f"gave up: older than {policy.retry.max_age_seconds:g} s at the next look"
            dead = _dead(job, "snoozed", None, "snoozed_too_long", f"{pause.reason} ({over})".lstrip(), None)
            return msgspec.structs.replace(dead, refund_attempt=True)
        wait = max(pause.seconds, least)
        return Settlement(
            job=job, status="queued", outcome="snoozed", refund_attempt=True, delay_seconds=wait,
            error_code=pause.code, message=pause.reason or None,
            age_seconds_forgiven=0.0 if pause.ages else wait,
        )  # fmt: skip
    behind = pause.after_seconds or 0.0
    if pause.seconds + behind < least:
        behind = least - pause.seconds
    own_wait = behind + (pause.seconds if job.limit_key is None else 0.0)
    return Settlement(
        job=job, status="queued", outcome="paused", verdict="not_done", refund_attempt=True,
        delay_seconds=behind + pause.seconds if behind else own_wait, age_seconds_forgiven=own_wait,
        error_code=pause.code, message=pause.reason, detail=pause.detail, pause_seconds=pause.seconds,
        pause_then=pause.then, pause_parent=pause.parent,
    )  # fmt: skip


def _unknown(job: Job, policy: Policy, failure: Unknown, outcome: str, draw: Draw) -> Settlement:
    """The effect may have happened: repeat it, not too soon, or hold it for an operator."""
    wait = policy.unknown_after_seconds if failure.after_seconds is None else failure.after_seconds
    failure = replace(failure, after_seconds=wait)
    on_unknown = failure.on_unknown or _on_unknown(job, policy)
    if on_unknown == "repeat" or (on_unknown == "repeat_once" and job.unknown_count == 0):
        return _again(job, policy, failure, outcome, "unknown", draw)
    held = _dead(job, outcome, "unknown", failure.code, f"{failure.message} (held for an operator)", failure.detail)
    return msgspec.structs.replace(held, pause_seconds=failure.pause_seconds or 0.0)


def _lost(job: Job, policy: Policy, ending: WorkerLost, released: bool, draw: Draw) -> Settlement:
    verdict: Verdict | None = "unknown" if released else None
    if job.lost_count + 1 >= POISON_LOSSES:
        settled = _dead(job, "lost", verdict, POISON, f"{job.lost_count + 1} workers were lost while they ran it", None)
    elif not released or _on_unknown(job, policy) == "repeat":
        settled = _lost_again(job, policy, ending, verdict)
    else:
        by_asking: OnUnknown | None = "repeat_once" if _can_ask(job, policy) else None
        settled = _unknown(job, policy, Unknown(ending.reason, code="lost", on_unknown=by_asking), "lost", draw)
    return msgspec.structs.replace(settled, lost=True)


def _lost_again(job: Job, policy: Policy, ending: WorkerLost, verdict: Verdict | None) -> Settlement:
    """Once more, at once or when it is safe. What may have run counts as an attempt; what never began does not."""
    wait = policy.unknown_after_seconds if verdict is not None else 0.0
    over = _why_over(job, policy.retry, job.attempts, wait) if verdict is not None else None
    if over is not None:
        return _dead(job, "lost", verdict, "lost", f"{ending.reason} ({over})", None)
    return Settlement(
        job=job, status="failed", outcome="lost", verdict=verdict, delay_seconds=wait, error_code="lost",
        message=ending.reason,
    )  # fmt: skip


def _can_ask(job: Job, policy: Policy) -> bool:
    """The job type's own word; one that fails is no yes."""
    try:
        return policy.can_ask(job) is True
    except BaseException as error:
        _log.error("can_ask.failed", extra={"job": job.id, "type": job.job_type, "error": class_name(error)})
        return False


def _on_unknown(job: Job, policy: Policy) -> OnUnknown:
    return job.on_unknown or policy.on_unknown


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
