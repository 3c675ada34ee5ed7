"""The job type `report.subscribed`: one slot of a schedule that subscriptions share."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any

import msgspec
from sqlalchemy import Connection

from effects import Attempt, ConfigurationError, Done, EnqueueError, JobType, KeyUnavailable, Outcome, Refused, Retry
from effects_reports.definitions.registry import ReportRegistry
from effects_reports.delivery.subscriptions import notices_at
from effects_reports.errors import PasswordUnavailable
from effects_reports.request import CheckedRequest, check_request
from effects_reports.routing import QUEUE, SUBSCRIBED_TYPE
from effects_reports.writing import write_run

if TYPE_CHECKING:
    from effects import Effects


class SubscribedPayload(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which schedule, and which of its slots; the report as for `request_report`."""

    schedule: str
    slot: str
    report: str
    params: dict[str, Any] = {}
    format: str


class ReportSubscribed(JobType[SubscribedPayload]):
    """Requests the report once for all its subscribers, in the transaction that records this job as done.

    A report that is gone, or whose params no longer fit, ends dead at once: it is on the list of what needs a person,
    and other schedules go on. A mail that cannot be made, or a bucket that is gone, is a dead letter of its own.
    """

    name = SUBSCRIBED_TYPE
    payload = SubscribedPayload
    queue = QUEUE

    def __init__(self, app: Effects, registry: ReportRegistry) -> None:
        self._app, self._registry = app, registry

    def check_declared(self, payload: SubscribedPayload) -> None:
        with suppress(KeyUnavailable, PasswordUnavailable):  # the worker has them, and waits for them
            self._check(payload)

    def perform(self, payload: SubscribedPayload, attempt: Attempt) -> Outcome:
        try:
            request = self._check(payload)
            with self._app.store.read() as connection:
                notices = notices_at(self._app, connection, payload.schedule)
        except KeyUnavailable as error:  # another worker may have the key
            return self.wait_for_operator(str(error))
        except PasswordUnavailable as error:
            return Retry(str(error), code="no_password")
        except (ConfigurationError, EnqueueError) as error:  # neither quotes a param
            return Refused(str(error), code=type(error).__name__)
        if not notices:
            return Done(detail={"subscribers": 0})
        whole = msgspec.structs.replace(request, notify=tuple(notices))
        return Done(apply=lambda connection: self._write(connection, whole), detail={"subscribers": len(notices)})

    def _check(self, payload: SubscribedPayload) -> CheckedRequest:
        definition = self._registry.get(payload.report)
        key = f"{payload.report}:{payload.slot}:{payload.schedule.rpartition('.')[2]}"
        return check_request(self._app, definition, payload.params, payload.format, key, ())

    def _write(self, connection: Connection, request: CheckedRequest) -> None:
        try:
            write_run(self._app, connection, request)
        except EnqueueError as error:  # the key has other content
            raise Refused(str(error), code=type(error).__name__) from None
