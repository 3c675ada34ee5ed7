"""What people and scripts are shown: jobs, attempts, actions, effects. Facts only; no payload is among them."""

from __future__ import annotations

import datetime as dt
import json
from typing import Any

import msgspec
from sqlalchemy import Row


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
    created_at: dt.datetime
    run_at: dt.datetime
    expires_at: dt.datetime | None
    started_at: dt.datetime | None
    finished_at: dt.datetime | None
    worker: str | None
    error_code: str | None
    last_error: str | None
    requeued_from: int | None
    cancel_requested: bool


class AttemptRecord(msgspec.Struct, frozen=True, kw_only=True):
    """One line of the attempt log."""

    job_id: int
    attempt: int
    started_at: dt.datetime
    finished_at: dt.datetime
    seconds: float
    worker: str | None
    outcome: str
    verdict: str | None
    error_type: str | None
    error_code: str | None
    message: str | None
    detail: dict[str, Any] | None


class ActionRecord(msgspec.Struct, frozen=True, kw_only=True):
    """What somebody did to a job."""

    job_id: int
    action: str
    actor: str
    reason: str | None
    created_at: dt.datetime


class JobStory(msgspec.Struct, frozen=True, kw_only=True):
    """A job with everything that happened to it; `state` is the ledger's word on its effect, if it has one."""

    job: JobRecord
    state: str | None
    attempts: list[AttemptRecord]
    actions: list[ActionRecord]


class EffectStory(msgspec.Struct, frozen=True, kw_only=True):
    """One effect over all its jobs, newest job first, attempts and actions in order of time."""

    key: str
    state: str
    ledger: str
    job_type: str
    jobs: list[JobRecord]
    attempts: list[AttemptRecord]
    actions: list[ActionRecord]
    paused_until: dt.datetime | None
    pause_reason: str | None


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
        created_at=moment(row.created_at),
        run_at=moment(row.run_at),
        expires_at=moment_or_none(row.expires_at),
        started_at=moment(row.started_at) if row.status == "running" else None,
        finished_at=moment_or_none(row.finished_at),
        worker=row.worker if row.status == "running" else None,
        error_code=row.error_code,
        last_error=row.last_error,
        requeued_from=row.requeued_from,
        cancel_requested=bool(row.cancel_requested),
    )


def attempt_record(row: Row[Any]) -> AttemptRecord:
    return AttemptRecord(
        job_id=row.job_id,
        attempt=row.attempt,
        started_at=moment(row.started_at),
        finished_at=moment(row.finished_at),
        seconds=row.seconds,
        worker=row.worker,
        outcome=row.outcome,
        verdict=row.verdict,
        error_type=row.error_type,
        error_code=row.error_code,
        message=row.message,
        detail=json.loads(row.detail) if row.detail is not None else None,
    )


def action_record(row: Row[Any]) -> ActionRecord:
    return ActionRecord(
        job_id=row.job_id,
        action=row.action,
        actor=row.actor,
        reason=row.reason,
        created_at=moment(row.created_at),
    )


def moment(seconds: float) -> dt.datetime:
    """A time of the database, given as seconds since 1970."""
    return dt.datetime.fromtimestamp(seconds, dt.UTC)


def moment_or_none(seconds: float | None) -> dt.datetime | None:
    return None if seconds is None else moment(seconds)
