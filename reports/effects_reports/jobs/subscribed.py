"""The job type `report.subscribed`: one slot of a schedule that subscriptions share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import msgspec
from sqlalchemy import Connection

from effects import (
    Attempt,
    ConfigurationError,
    Done,
    EnqueueError,
    JobType,
    KeyUnavailable,
    NewJob,
    Outcome,
    Refused,
    Retry,
    enqueue_many,
)
from effects.extend import Explanation, SealInvalid
from effects_reports.definitions.registry import ReportRegistry
from effects_reports.delivery.slot_notices import SlotNotices, notices_at
from effects_reports.errors import PasswordUnavailable
from effects_reports.request import CheckedRequest, check_request
from effects_reports.routing import QUEUE, SUBSCRIBED_TYPE
from effects_reports.writing import write_run

if TYPE_CHECKING:
    from effects import Effects

ALTERED = "subscription_altered"
ONLY_MAX = 500  # ids in a payload


class SubscribedPayload(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which schedule, and which of its slots; the report as for `request_report`; `only` for these subscriptions."""

    schedule: str
    slot: str
    report: str
    params: dict[str, Any] = {}
    format: str
    only: list[str] = []


class ReportSubscribed(JobType[SubscribedPayload]):
    """Requests the report once for all its subscribers, in the transaction that records this job as done.

    A report that is gone, or whose params no longer fit, ends dead at once: it is on the list of what needs a person,
    and other schedules go on. A mail that cannot be made, or a bucket that is gone, is a dead letter of its own.

    Subscriptions whose row does not open get jobs of their own, and the others their report: those whose key is missing
    wait for it together, and are then added to the run; each that was altered is a dead letter.
    """

    name = SUBSCRIBED_TYPE
    payload = SubscribedPayload
    queue = QUEUE

    def __init__(self, app: Effects, registry: ReportRegistry) -> None:
        self._app, self._registry = app, registry

    def check_declared(self, payload: SubscribedPayload) -> None:
        with suppress(KeyUnavailable, PasswordUnavailable):  # the worker has them, and waits for them
            self._check(payload)

    def explain(self, key: str | None, error_code: str | None, detail: Mapping[str, Any]) -> Explanation | None:
        if error_code != ALTERED:
            return None
        return Explanation(
            meaning="the row of this subscription was altered: whom it is for cannot be read, at any slot",
            follows="`effects reports subscriptions remove` ends it; then add it again",
        )

    def perform(self, payload: SubscribedPayload, attempt: Attempt) -> Outcome:
        try:
            request = self._check(payload)
        except KeyUnavailable as error:  # another worker may have the key
            return self.wait_for_operator(str(error))
        except PasswordUnavailable as error:
            return Retry(str(error), code="no_password")
        except (ConfigurationError, EnqueueError) as error:  # neither quotes a param
            return Refused(str(error), code=type(error).__name__)
        with self._app.store.read() as connection:
            slot = notices_at(self._app, connection, payload.schedule, payload.only)
        apart = _apart(slot.unopened)
        if not slot.notices and len(apart) == 1:
            return self._fate(slot.unopened)
        jobs = [_job(msgspec.structs.replace(payload, only=ids)) for ids in apart]
        whole = msgspec.structs.replace(request, notify=tuple(slot.notices))
        return Done(apply=lambda connection: self._write(connection, whole, jobs), detail=_detail(slot))

    def _check(self, payload: SubscribedPayload) -> CheckedRequest:
        definition = self._registry.get(payload.report)
        key = f"{payload.report}:{payload.slot}:{payload.schedule.rpartition('.')[2]}"
        return check_request(self._app, definition, payload.params, payload.format, key, ())

    def _fate(self, unopened: Mapping[str, KeyUnavailable]) -> Outcome:
        """Of a job all of whose subscriptions do not open, for the same reason."""
        subscription_id, error = next(iter(unopened.items()))
        if isinstance(error, SealInvalid):
            return Refused(f"subscription {subscription_id}: {error}", code=ALTERED)
        more = f" and {len(unopened) - 1} more" if len(unopened) > 1 else ""
        return self.wait_for_operator(f"subscription {subscription_id}{more}: {error}")

    def _write(self, connection: Connection, request: CheckedRequest, jobs: Sequence[NewJob]) -> None:
        enqueue_many(jobs, session=connection, effects=self._app)
        if not request.notify:
            return
        try:
            write_run(self._app, connection, request)
        except (KeyUnavailable, EnqueueError) as error:  # what the key's run has does not open, or is other content
            raise Refused(str(error), code=type(error).__name__) from None


def _apart(unopened: Mapping[str, KeyUnavailable]) -> list[list[str]]:
    """The ids of what does not open, by the job that takes them up."""
    altered = [[row_id] for row_id, error in unopened.items() if isinstance(error, SealInvalid)]
    keyless = [row_id for row_id, error in unopened.items() if not isinstance(error, SealInvalid)]
    return altered + [keyless[start : start + ONLY_MAX] for start in range(0, len(keyless), ONLY_MAX)]


def _job(payload: SubscribedPayload) -> NewJob:
    return NewJob(job_type=SUBSCRIBED_TYPE, payload=payload)


def _detail(slot: SlotNotices) -> dict[str, int]:
    return {"subscribers": len(slot.notices), **({"unopened": len(slot.unopened)} if slot.unopened else {})}
