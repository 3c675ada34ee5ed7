"""The notices of a run's end, in the transaction of the state change; a job takes what cannot be enqueued there."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import msgspec
from sqlalchemy import Connection

from effects import enqueue
from effects.extend import clean_text, error_places, error_reason, fill_placeholders, may_pass
from effects_reports.delivery.link_tokens import write_link
from effects_reports.routing import NOTIFY_TYPE
from effects_reports.runs.notify import PLACEHOLDERS, Notify, kept_notices
from effects_reports.tables.reports import Artifact
from effects_reports.tables.runs import Run

if TYPE_CHECKING:
    from effects import Effects

_log = logging.getLogger("effects.reports")


class RunEnd(msgspec.Struct, frozen=True, kw_only=True):
    """How a run has ended: what its notices tell."""

    run_id: str
    restart: int
    report: str
    key: str
    state: str
    error: str = ""
    artifact: Artifact | None = None

    @property
    def words(self) -> dict[str, str]:
        """What is filled in for the placeholders, but for the file itself."""
        words = dict.fromkeys(PLACEHOLDERS, "")
        words |= {"run_id": self.run_id, "restart": str(self.restart), "report": self.report, "key": self.key}
        words |= {"state": self.state, "error": self.error}
        if self.artifact is not None:
            words |= {"filename": self.artifact.filename, "rows": str(self.artifact.rows)}
            words |= {"bytes": str(self.artifact.bytes), "sha256": self.artifact.sha256}
        return words


def tell(
    app: Effects, connection: Connection, run: Run, state: str, artifact: Artifact | None, error: str, *, first: int = 0
) -> None:
    """Enqueue the notices of this state, each in a savepoint; of those that the run keeps, from the number `first` on.

    One that this process cannot enqueue must neither take the state change with it nor be lost: it lacks a job type or
    a key that another worker may have, or it runs code of the app's that raises. A job `report.notify` sends that one.
    """
    end = RunEnd(
        run_id=run.id, restart=run.round, report=run.report, key=run.key, state=state, error=clean_text(error),
        artifact=artifact,
    )  # fmt: skip
    try:
        notices = kept_notices(app, connection, run.id)
    except Exception as failure:
        _leave_to_job(app, connection, end, None, failure)
        return
    for number, notice in enumerate(notices):
        if number < first or state not in notice.on:
            continue
        try:
            with connection.begin_nested():
                send(app, connection, end, notice)
        except Exception as failure:
            _leave_to_job(app, connection, end, number, failure)


def _leave_to_job(app: Effects, connection: Connection, end: RunEnd, number: int | None, failure: Exception) -> None:
    """Let a job send one of the notices, or all of them (None), unless the whole transaction has to be repeated."""
    if may_pass(failure):
        raise failure
    facts = {"run": end.run_id, "number": number, "reason": error_reason(failure), "at": error_places(failure)}
    _log.error("report.notice_failed", extra=facts)
    enqueue(NOTIFY_TYPE, {"end": msgspec.to_builtins(end), "number": number}, session=connection, effects=app)


def send(app: Effects, connection: Connection, end: RunEnd, notice: Notify) -> None:
    """Enqueue the job of a notice."""
    words = end.words
    filled = fill_placeholders(notice.payload, words | _handover(app, connection, end, notice))
    key = None if notice.key is None else str(fill_placeholders(notice.key, words))
    enqueue(notice.job_type, filled, key=key, session=connection, effects=app)


def _handover(app: Effects, connection: Connection, end: RunEnd, notice: Notify) -> dict[str, str]:
    """The file itself if it is small enough, else a link to it; neither of a run that has failed."""
    artifact = end.artifact
    if artifact is None or notice.link_to is None:
        return {}
    if artifact.bytes <= notice.attach_bytes_max:
        return {"attachment": artifact.artifact}
    link = write_link(app, connection, end.run_id, artifact.sha256, notice.link_to, notice.link_terms)
    return {"link": link}
