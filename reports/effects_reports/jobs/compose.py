"""The job type `report.request`: a report for those who can only name a job type and a payload.

A schedule, an alert, a plain INSERT or `effects_enqueue(…)` enqueues it; it requests the report, which `report.plan`
and its followers then produce.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import msgspec
from sqlalchemy import Connection

from effects import Attempt, ConfigurationError, Done, EffectsError, EnqueueError, JobType, Outcome, Refused
from effects_reports.notify import Notify
from effects_reports.registry import ReportRegistry
from effects_reports.request import CheckedRequest, check_request, key_of_job
from effects_reports.routing import QUEUE, REQUEST_TYPE
from effects_reports.writing import write_request

if TYPE_CHECKING:
    from effects import Effects


class ReportRequestPayload(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """As the arguments of `request_report`. Without `key`, each job is a run of its own.

    All of it is stored in clear, the payloads in `notify` too: give ids, not what is personal.
    """

    report: str
    params: dict[str, Any] = {}
    format: str | None = None
    key: str | None = None
    notify: Sequence[Notify] = ()


class ReportRequest(JobType[ReportRequestPayload]):
    """Requests a report, in the transaction that records this job as done.

    A crash leaves both or neither. What cannot be requested ends dead at once, as refused, and says why.
    """

    name = REQUEST_TYPE
    payload = ReportRequestPayload
    queue = QUEUE

    def __init__(self, app: Effects, registry: ReportRegistry) -> None:
        self._app = app
        self._registry = registry

    def perform(self, payload: ReportRequestPayload, attempt: Attempt) -> Outcome:
        key = payload.key if payload.key is not None else key_of_job(payload.report, attempt.job.id)
        try:
            definition = self._registry.get(payload.report)
            request = check_request(self._app, definition, payload.params, payload.format, key, payload.notify)
        except (ConfigurationError, EnqueueError) as error:  # neither quotes a param
            return _refused(error)
        return Done(apply=lambda connection: self._write(connection, request))

    def _write(self, connection: Connection, request: CheckedRequest) -> None:
        try:
            write_request(self._app, connection, request)
        except EnqueueError as error:  # the key has other content
            raise _refused(error) from None


def _refused(error: EffectsError) -> Refused:
    return Refused(str(error), code=type(error).__name__)
