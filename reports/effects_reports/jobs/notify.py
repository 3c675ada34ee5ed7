"""The job type `report.notify`: a notice that could not be enqueued when its run ended."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

import msgspec
from sqlalchemy import Connection

from effects import Attempt, Done, EnqueueError, JobType, KeyUnavailable, Outcome, Refused, UnknownJobType
from effects_reports.routing import NOTIFY_TYPE, QUEUE
from effects_reports.runs.notify import Notify, check_means, kept_notices
from effects_reports.runs.telling import RunEnd, send

if TYPE_CHECKING:
    from effects import Effects


class NotifyPayload(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How a run has ended, and which of its notices is to be sent: by its number from 0 on, or None for all."""

    end: RunEnd
    number: int | None


class ReportNotify(JobType[NotifyPayload]):
    """Enqueues what the end of a run left undone, in the transaction that records this job as done.

    It waits for a worker that has the job type and the key. A notice that cannot be enqueued there either is a dead
    letter; requeuing it sends the notice once the cause is mended.
    """

    name = NOTIFY_TYPE
    payload = NotifyPayload
    queue = QUEUE

    def __init__(self, app: Effects) -> None:
        self._app = app

    def perform(self, payload: NotifyPayload, attempt: Attempt) -> Outcome:
        try:
            with self._app.store.read() as connection:
                kept = kept_notices(self._app, connection, payload.end.run_id)
            chosen = kept if payload.number is None else [kept[payload.number]]
            notices = [notice for notice in chosen if payload.end.state in notice.on]
            for notice in notices:
                check_means(self._app, notice)
        except KeyUnavailable as error:
            return self.fate_of_sealed(error)
        except UnknownJobType as error:
            return self.wait_for_operator(str(error))
        apply = partial(self._send, end=payload.end, notices=notices)
        return Done(apply=apply, detail={"run": payload.end.run_id, "notices": len(notices)})

    def _send(self, connection: Connection, end: RunEnd, notices: Sequence[Notify]) -> None:
        try:
            for notice in notices:
                send(self._app, connection, end, notice)
        except EnqueueError as error:
            raise Refused(str(error), code=type(error).__name__) from None
