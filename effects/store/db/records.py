"""What people and scripts are shown: jobs, attempts, actions, effects. Facts only; no payload is among them.

No row can break a list: what Python cannot represent is shown as a text.
"""

from __future__ import annotations

import datetime as dt
import json
import math
from collections.abc import Mapping
from typing import Any, TypeAlias

import msgspec
from sqlalchemy import Row

from effects.moments import moment

Moment: TypeAlias = dt.datetime | str


class JobRecord(msgspec.Struct, frozen=True, kw_only=True):
    """A live or an ended job. `worker` and `started_at` are those of the attempt under way."""

    id: int
    job_type: str
    status: str
    queue: str
    priority: int
    attempts: int
    max_attempts: int | None
    key: str | None
    group_key: str | None
    limit_key: str | None
    created_at: Moment
    run_at: Moment
    expires_at: Moment | None
    started_at: Moment | None
    finished_at: Moment | None
    worker: str | None
    error_code: str | None
    last_error: str | None
    requeued_from: int | None
    cancel_requested: bool


class AttemptRecord(msgspec.Struct, frozen=True, kw_only=True):
    """One line of the attempt log.

    `answer`: the peer's answer or the error, in a few words, with the place of an error; "" if there is neither.
    `error_text`: the exception's text, where it is kept; in the record of a row, as it is stored. `frames`: where an
    exception came through, the app's innermost frame first (`effects.process.frames`). `phases_ms`: phase →
    milliseconds, with `total`; empty for attempts that have no phases.
    """

    job_id: int
    lease_token: int
    attempt: int
    started_at: Moment
    finished_at: Moment
    seconds: float
    worker: str | None
    outcome: str
    verdict: str | None
    error_type: str | None
    error_code: str | None
    error_text: str | None
    message: str | None
    answer: str
    frames: list[str]
    phases_ms: dict[str, float]
    detail: Any  # an object, if our own code wrote it


class WorkerSilence(msgspec.Struct, frozen=True, kw_only=True):
    """The worker of a running job has missed heartbeats. `taken_back_at`: when the job is another worker's to take."""

    seconds: float
    seen_at: Moment
    taken_back_at: Moment


class ActionRecord(msgspec.Struct, frozen=True, kw_only=True):
    """An operator's action on a job."""

    job_id: int
    action: str
    actor: str
    reason: str | None
    created_at: Moment


class EffectStory(msgspec.Struct, frozen=True, kw_only=True):
    """One effect over its jobs, newest job first, attempts and actions in order of time.

    `state`: the word of its `ledger`, a table; both are None for a job without a key. `about`: see `Ledger.about`.
    """

    key: str | None
    state: str | None
    ledger: str | None
    about: Mapping[str, str]
    job_type: str
    jobs: list[JobRecord]
    attempts: list[AttemptRecord]
    actions: list[ActionRecord]


# -- from rows, whose times are seconds since 1970 -------------------------------------------------------


def job_record(row: Row[Any]) -> JobRecord:
    return JobRecord(
        id=row.id,
        job_type=row.job_type,
        status=row.status,
        queue=row.queue,
        priority=row.priority,
        attempts=row.attempts,
        max_attempts=row.max_attempts,
        key=row.idempotency_key,
        group_key=row.group_key,
        limit_key=row.limit_key,
        created_at=shown_moment(row.created_at),
        run_at=shown_moment(row.run_at),
        expires_at=shown_moment_or_none(row.expires_at),
        started_at=shown_moment(row.started_at) if row.status == "running" else None,
        finished_at=shown_moment_or_none(row.finished_at),
        worker=row.worker if row.status == "running" else None,
        error_code=row.error_code,
        last_error=row.last_error,
        requeued_from=row.requeued_from,
        cancel_requested=bool(row.cancel_requested),
    )


def attempt_record(row: Row[Any]) -> AttemptRecord:
    detail = None if row.detail is None else shown_json(row.detail)
    fields = detail if isinstance(detail, dict) else {}
    frames = row.stack.splitlines() if row.stack else []
    return AttemptRecord(
        job_id=row.job_id,
        lease_token=row.lease_token,
        attempt=row.attempt,
        started_at=shown_moment(row.started_at),
        finished_at=shown_moment(row.finished_at),
        seconds=row.seconds,
        worker=row.worker,
        outcome=row.outcome,
        verdict=row.verdict,
        error_type=row.error_type,
        error_code=row.error_code,
        error_text=row.error_text,
        message=row.message,
        answer=_answer(fields.get("status"), _placed(row.message or row.error_code, row.error_type, frames)),
        frames=frames,
        phases_ms=_phases(fields.get("ms")),
        detail=detail,
    )


def _answer(status: Any, words: str | None) -> str:
    """The status, unless the words name it."""
    named = not isinstance(status, int) or str(status) in (words or "")
    return ", ".join(filter(None, ("" if named else f"HTTP {status}", words)))


def _placed(words: str | None, error_type: str | None, frames: list[str]) -> str | None:
    """The words of an error with its place: `KeyError at shop/jobs.py:41 perform (gave up after 3 attempts)`."""
    if not frames or not error_type or not words:
        return words
    head, remainder = (error_type, words[len(error_type) :]) if words.startswith(error_type) else (words, "")
    return f"{head} at {frames[0]}{remainder}"


def _phases(milliseconds: Any) -> dict[str, float]:
    """What a row says of its phases; anyone may have written it."""
    if not isinstance(milliseconds, dict):
        return {}
    return {name: each for name, each in milliseconds.items() if isinstance(each, int | float)}


def action_record(row: Row[Any]) -> ActionRecord:
    return ActionRecord(
        job_id=row.job_id,
        action=row.action,
        actor=row.actor,
        reason=row.reason,
        created_at=shown_moment(row.created_at),
    )


def shown_moment(seconds: Any) -> Moment:
    """A stored time for people: one that Python cannot represent (infinity, year 12000) as a text."""
    try:
        return moment(seconds)
    except (OverflowError, ValueError, OSError):
        return f"{seconds:.0f} s since 1970" if math.isfinite(seconds) else str(seconds).replace("inf", "infinity")
    except TypeError:
        return str(seconds)


def shown_moment_or_none(seconds: Any) -> Moment | None:
    return None if seconds is None else shown_moment(seconds)


def shown_json(text: Any) -> Any:
    """Stored JSON, decoded for display; invalid JSON is returned as text, as is what could not be printed as JSON."""
    try:
        value = json.loads(text)
        msgspec.json.encode(value)  # refuses half of a surrogate pair, which SQLite keeps
        return value
    except (ValueError, TypeError, RecursionError):
        return str(text)
