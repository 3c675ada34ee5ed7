"""Notices that a report is ready or failed: a job of any type, in the transaction of the state change."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import msgspec
from sqlalchemy import Connection, Row

from effects import ConfigurationError, EffectsError, EnqueueError, KeyUnavailable, enqueue
from effects.extend import SealedColumn, fill_placeholders, seal_payload, why_unfilled
from effects_reports.errors import ReportInvalid
from effects_reports.tables.notices import read_notices, write_notices
from effects_reports.tables.reports import Artifact
from effects_reports.tables.runs import Run

if TYPE_CHECKING:
    from effects import Effects

DEFAULT_PAYLOAD = {"run_id": "{run_id}", "report": "{report}", "state": "{state}", "error": "{error}"}
PLACEHOLDERS = ("run_id", "report", "key", "state", "filename", "rows", "bytes", "sha256", "error")
_SAMPLE = {
    **dict.fromkeys(("run_id", "report", "key", "error"), "sample"),
    "filename": "sample.csv", "rows": "1", "bytes": "1", "sha256": "0" * 64,
}  # fmt: skip
_log = logging.getLogger("effects.reports")


class Notify(msgspec.Struct, frozen=True, kw_only=True):
    """A job to enqueue when a run is ready, when it has failed, or both.

    Args:
        job_type: the name of any registered job type.
        payload: a mapping that converts to its payload. In its strings `{run_id}`, `{report}`, `{key}`, `{state}`
            (`ready` or `failed`), `{filename}`, `{rows}`, `{bytes}`, `{sha256}` and `{error}` are filled in; another
            name in braces is refused. What a failed run has not is empty. Fields that the type declares sensitive are
            sealed in the run's row.
        on: `ready` and `failed` (default), or one of them.
    """

    job_type: str
    payload: Mapping[str, Any] = msgspec.field(default_factory=lambda: dict(DEFAULT_PAYLOAD))
    on: Sequence[str] = ("ready", "failed")


def check_notices(app: Effects, notices: Sequence[Notify]) -> None:
    """Refuse a notice whose job could not be enqueued.

    Raises:
        ReportInvalid: a job type is not registered, or does not take its payload.
        KeyUnavailable: it has sensitive fields, and EFFECTS_KEYS is not set.
    """
    for notice in notices:
        if not notice.on or any(state not in ("ready", "failed") for state in notice.on):
            raise ReportInvalid(f"notify: on is {list(notice.on)}; give ready, failed or both")
        try:
            _check_payload(app, notice)
        except KeyUnavailable:
            raise
        except (ConfigurationError, EnqueueError) as error:
            raise ReportInvalid(f"notify: {error}") from None


def _check_payload(app: Effects, notice: Notify) -> None:
    job_type = app.job_types.get(notice.job_type)
    if (why := why_unfilled(notice.payload, (*PLACEHOLDERS, *job_type.placeholders))) is not None:
        raise ReportInvalid(f"{notice.job_type}: {why}")
    payloads = [job_type.checked(fill_placeholders(notice.payload, {**_SAMPLE, "state": state})) for state in notice.on]
    try:
        seal_payload(app.keys, job_type, payloads[0][1])
    except KeyUnavailable as error:
        fields = ", ".join(job_type.sensitive)
        raise KeyUnavailable(f"notify: {notice.job_type} has sensitive fields ({fields}): {error}") from None
    for payload, _ in payloads:
        job_type.check_declared(payload)


def keep_notices(app: Effects, connection: Connection, run_id: str, notices: Sequence[Notify]) -> None:
    """Store notices with the run; sealed if one of their job types has sensitive fields."""
    if not notices:
        return
    clear = msgspec.json.encode(notices)
    if any(app.job_types.get(notice.job_type).sensitive for notice in notices):
        write_notices(app.store, connection, run_id, None, app.keys.seal(clear, **_context(run_id)))
    else:
        write_notices(app.store, connection, run_id, clear.decode(), None)


def _kept(app: Effects, connection: Connection, run_id: str) -> list[Notify]:
    clear, sealed = read_notices(app.store, connection, run_id)
    text = app.keys.open(sealed, **_context(run_id)) if sealed is not None else clear
    return msgspec.json.decode(text, type=list[Notify]) if text is not None else []


def sealed_columns() -> list[SealedColumn]:
    """What `effects keys` counts and rotates."""
    return [SealedColumn("report_runs", "notify_sealed", id_column="id", columns=(), context=_context_of)]


def _context_of(row: Row[Any]) -> dict[str, str]:
    return _context(row.id)


def _context(run_id: str) -> dict[str, str]:
    return {"table": "report_runs", "row": run_id, "field": "notify"}


def tell(app: Effects, connection: Connection, run: Run, state: str, artifact: Artifact | None, error: str) -> None:
    """Enqueue the notices of this state. One that cannot be must not take the state change with it."""
    words = dict.fromkeys(PLACEHOLDERS, "")
    words |= {"run_id": run.id, "report": run.report, "key": run.key, "state": state, "error": error}
    if artifact is not None:
        words |= {"filename": artifact.filename, "rows": str(artifact.rows), "bytes": str(artifact.bytes)}
        words |= {"sha256": artifact.sha256}
    try:
        notices = _kept(app, connection, run.id)
    except KeyUnavailable as failure:
        _log.error("report.notice_failed", extra={"run": run.id, "reason": str(failure)})
        return
    for notice in notices:
        if state not in notice.on:
            continue
        try:
            with connection.begin_nested():
                enqueue(notice.job_type, fill_placeholders(notice.payload, words), session=connection, effects=app)
        except EffectsError as failure:
            _log.error("report.notice_failed", extra={"job_type": notice.job_type, "reason": str(failure)})
