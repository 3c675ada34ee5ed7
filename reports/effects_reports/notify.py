"""Notices that a report is ready or failed: a job of any type, in the transaction of the state change."""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import msgspec
from sqlalchemy import Connection, Row

from effects import ConfigurationError, EffectsError, KeyUnavailable, PayloadInvalid, enqueue
from effects.extend import SealedColumn, seal_payload
from effects_reports.errors import ReportInvalid
from effects_reports.tables.notices import read_notices, write_notices
from effects_reports.tables.reports import Artifact
from effects_reports.tables.runs import Run

if TYPE_CHECKING:
    from effects import Effects

DEFAULT_PAYLOAD = {"run_id": "{run_id}", "report": "{report}", "state": "{state}", "error": "{error}"}
_WORD = re.compile(r"\{(run_id|report|key|state|filename|rows|bytes|sha256|error)\}")
_log = logging.getLogger("effects.reports")


class Notify(msgspec.Struct, frozen=True, kw_only=True):
    """A job to enqueue when a run is ready, when it has failed, or both.

    Args:
        job_type: the name of any registered job type.
        payload: a mapping that converts to its payload. In its strings `{run_id}`, `{report}`, `{key}`, `{state}`
            (`ready` or `failed`), `{filename}`, `{rows}`, `{bytes}`, `{sha256}` and `{error}` are filled in; other
            braces are left alone. What a failed run has not is empty. Fields that the type declares sensitive are
            sealed in the run's row.
        on: `ready` and `failed` (default), or one of them.
    """

    job_type: str
    payload: Mapping[str, Any] = msgspec.field(default_factory=lambda: dict(DEFAULT_PAYLOAD))
    on: Sequence[str] = ("ready", "failed")


def check_notices(app: Effects, notices: Sequence[Notify]) -> None:
    """Refuse a notice whose job could not be enqueued.

    Raises:
        ReportInvalid: a job type is not registered, does not take its payload, or needs a key to seal it.
    """
    for notice in notices:
        if not notice.on or any(state not in ("ready", "failed") for state in notice.on):
            raise ReportInvalid(f"notify: on is {list(notice.on)}; give ready, failed or both")
        try:
            job_type = app.job_types.get(notice.job_type)
            seal_payload(app.keys, job_type, job_type.encode(_fill(notice.payload, {})))
        except (ConfigurationError, PayloadInvalid) as error:
            raise ReportInvalid(f"notify: {error}") from None


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
    words = {"run_id": run.id, "report": run.report, "key": run.key, "state": state, "error": error}
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
                enqueue(notice.job_type, _fill(notice.payload, words), session=connection, effects=app)
        except EffectsError as failure:
            _log.error("report.notice_failed", extra={"job_type": notice.job_type, "reason": str(failure)})


def _fill(value: Any, words: Mapping[str, str]) -> Any:
    if isinstance(value, str):
        return _WORD.sub(lambda match: words.get(match[1], ""), value)
    if isinstance(value, list | tuple):
        return [_fill(item, words) for item in value]
    if isinstance(value, Mapping):
        return {name: _fill(item, words) for name, item in value.items()}
    return value
