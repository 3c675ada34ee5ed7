"""The job type `report.request`: a report for those who can only name a job type and a payload.

A schedule, an alert, a plain INSERT or `effects_enqueue(…)` enqueues it; it requests the report, which `report.plan`
and its followers then produce.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import msgspec
from sqlalchemy import Connection

from effects import (
    Attempt,
    ConfigurationError,
    Done,
    EffectsError,
    EnqueueError,
    Job,
    JobType,
    KeyUnavailable,
    Outcome,
    Refused,
    Retry,
)
from effects.extend import record_existing
from effects_reports.definitions.registry import ReportRegistry
from effects_reports.errors import PasswordUnavailable
from effects_reports.request import CheckedRequest, check_request, key_of_job
from effects_reports.routing import QUEUE, REQUEST_TYPE
from effects_reports.runs.notify import PLACEHOLDERS, Notify
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
    placeholders = PLACEHOLDERS  # of its notices

    def __init__(self, app: Effects, registry: ReportRegistry) -> None:
        self._app = app
        self._registry = registry

    def check_declared(self, payload: ReportRequestPayload) -> None:
        with suppress(KeyUnavailable, PasswordUnavailable):  # the worker has them, and waits for them
            self._check(payload, payload.key)

    def perform(self, payload: ReportRequestPayload, attempt: Attempt) -> Outcome:
        key = payload.key if payload.key is not None else key_of_job(payload.report, attempt.job.id)
        try:
            request = self._check(payload, key)
        except KeyUnavailable as error:  # the request is right, and another worker may have the key
            return self.wait_for_operator(str(error))
        except PasswordUnavailable as error:
            return Retry(str(error), code="no_password")
        except (ConfigurationError, EnqueueError) as error:  # neither quotes a param
            return _refused(error)
        return Done(apply=lambda connection: self._write(connection, request, attempt.job))

    def _check(self, payload: ReportRequestPayload, key: str | None) -> CheckedRequest:
        definition = self._registry.get(payload.report)
        return check_request(self._app, definition, payload.params, payload.format, key, payload.notify)

    def _write(self, connection: Connection, request: CheckedRequest, job: Job) -> None:
        try:
            receipt = write_request(self._app, connection, request)
        except (KeyUnavailable, EnqueueError) as error:  # what the key's run has does not open, or is other content
            raise _refused(error) from None
        if receipt.existing:
            run = f"the run {receipt.run_id} of the key {receipt.key!r} ({receipt.state})"
            record_existing(self._app.store, connection, job, run)


def _refused(error: EffectsError) -> Refused:
    return Refused(str(error), code=type(error).__name__)
