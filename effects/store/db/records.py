"""What people and scripts are shown: jobs, attempts, actions, effects. Facts only; no payload is among them.

No row can break a list: see `effects.kit.moments.moment`.
"""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any, TypeVar

import msgspec
from sqlalchemy import Row

from effects.kit.moments import moment, moment_or_none
from effects.kit.text.wording import shown_status

R = TypeVar("R", bound=msgspec.Struct)


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
    """One line of the attempt log.

    `answer`: the peer's answer or the error, in a few words, with the place of an error; "" if there is neither.
    `error_text`: the exception's text, where it is kept; in the record of a row, as it is stored. `frames`: where an
    exception came through, the app's innermost frame first (`effects.kit.frames`). `phases_ms`: phase →
    milliseconds, with `total`; empty for attempts that have no phases. `result`: what it returned, where its job type
    keeps that; in the record of a row, as it is stored. `result_missing`: why it is not here. `late_outcome` and so on:
    what its worker learnt after it had lost the lease, of an attempt that is recorded as lost or unknown.
    """

    job_id: int
    lease_token: int
    attempt: int
    started_at: dt.datetime
    finished_at: dt.datetime
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
    result: Any  # as `detail`
    result_missing: str | None
    late_outcome: str | None
    late_verdict: str | None
    late_code: str | None
    late_message: str | None
    late_at: dt.datetime | None

    @property
    def late(self) -> str:
        """The late outcome in words, such as `refused (smtp_550: no such mailbox)`; "" without one."""
        why = ": ".join(filter(None, (self.late_code, self.late_message)))
        return f"{self.late_outcome or ''}{f' ({why})' if why else ''}"


class WorkerSilence(msgspec.Struct, frozen=True, kw_only=True):
    """The worker of a running job has missed heartbeats. `taken_back_at`: when the job is another worker's to take."""

    seconds: float
    seen_at: dt.datetime
    taken_back_at: dt.datetime


class ActionRecord(msgspec.Struct, frozen=True, kw_only=True):
    """An operator's action on a job."""

    job_id: int
    action: str
    actor: str
    reason: str | None
    created_at: dt.datetime


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


def record(kind: type[R], row: Any, **fields: Any) -> R:
    """A row as a msgspec Struct: each field from its column, times, truth values and texts as Python has them.

    Args:
        fields: those whose columns have other names, or other values.
    """
    for name, convert in _conversions(kind):
        if name not in fields:
            value = getattr(row, name)
            fields[name] = value if convert is None or value is None else convert(value)
    return kind(**fields)


@cache
def _conversions(kind: type[msgspec.Struct]) -> list[tuple[str, Callable[[Any], Any] | None]]:
    kinds: dict[Any, Callable[[Any], Any]] = {
        dt.datetime: moment, dt.datetime | None: moment, bool: bool, str: as_text, str | None: as_text
    }  # fmt: skip
    return [(field.name, kinds.get(field.type)) for field in msgspec.structs.fields(kind)]


def as_text(value: Any) -> Any:
    """A text of a row, which another program may have written into SQLite as bytes."""
    return value.decode(errors="replace") if isinstance(value, bytes) else value


def job_record(row: Row[Any]) -> JobRecord:
    is_running = row.status == "running"
    return record(
        JobRecord, row, status=shown_status(row.status), key=row.idempotency_key,
        worker=row.worker if is_running else None, started_at=moment_or_none(row.started_at) if is_running else None,
    )  # fmt: skip


def attempt_record(row: Row[Any]) -> AttemptRecord:
    detail = None if row.detail is None else shown_json(row.detail)
    fields = detail if isinstance(detail, dict) else {}
    frames = row.stack.splitlines() if row.stack else []
    return record(
        AttemptRecord, row, frames=frames, phases_ms=_phases(fields.get("ms")), detail=detail, result_missing=None,
        answer=_answer(fields.get("status"), _placed(row.message or row.error_code, row.error_type, frames)),
    )  # fmt: skip


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
    return record(ActionRecord, row)


def shown_json(text: Any) -> Any:
    """Stored JSON, decoded for display; invalid JSON is returned as text, as is what could not be printed as JSON."""
    try:
        value = json.loads(text)
        msgspec.json.encode(value)  # refuses half of a surrogate pair, which SQLite keeps
        return value
    except (ValueError, TypeError, RecursionError):
        return str(text)
