"""The job types that request a report: `report.request`, and `report.subscribed` for a slot of subscriptions."""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import msgspec
from sqlalchemy import Connection

from effects import (
    Attempt,
    ConfigurationError,
    Done,
    Effects,
    EffectsError,
    EnqueueError,
    Job,
    JobType,
    KeyUnavailable,
    NewJob,
    Outcome,
    Refused,
    Retry,
    enqueue_many,
)
from effects.extend.actions import Explanation
from effects.extend.jobs import record_existing, record_followers
from effects.extend.secrets import SealInvalid
from effects.extend.text import repr_without
from effects_reports.delivery.buckets import check_buckets
from effects_reports.delivery.subscriptions import notice_of, open_name
from effects_reports.errors import PasswordUnavailable, ReportInvalid
from effects_reports.request import CheckedRequest, check_request, key_of_job
from effects_reports.routing import QUEUE, REQUEST_TYPE, SUBSCRIBED_TYPE
from effects_reports.runs.notify import PLACEHOLDERS, Notify, check_notices
from effects_reports.state import ReportRegistry
from effects_reports.tables import subscriptions as table
from effects_reports.tables.subscriptions import StoredSubscription
from effects_reports.writing import write_run

if TYPE_CHECKING:
    from effects import Effects


class _SlotNotices(msgspec.Struct, frozen=True, kw_only=True):
    """The notices of the subscriptions that open, and why the others do not.

    Attributes:
        notices: not in the repr.
        unopened: subscription id → `SealInvalid` if no key could open it; else its key is missing.
    """

    notices: list[Notify]
    unopened: dict[str, KeyUnavailable]

    def __repr__(self) -> str:
        return repr_without(self, ("notices",))


def _has_same_data(app: Effects, connection: Connection, schedule: str, report: str, params: Mapping[str, Any]) -> bool:
    """Whether it is this report, with these params, that the subscriptions of a schedule are to. What a slot has filled
    in is not compared.
    """
    return all(
        row.report == report
        and row.params.keys() == params.keys()
        and all("{" in str(value) or params[name] == value for name, value in row.params.items())
        for row in table.active(app.store, connection, schedule)
    )


def _notices_at(app: Effects, connection: Connection, schedule: str, only: Container[str] = ()) -> _SlotNotices:
    """What a run at a slot of this schedule tells, and whom: all its subscribers, or only the subscriptions `only`."""
    rows = table.active(app.store, connection, schedule)
    _prove_keys(app, rows)
    notices: list[Notify] = []
    unopened: dict[str, KeyUnavailable] = {}
    for row in rows:
        if only and row.id not in only:
            continue
        try:
            notices.append(notice_of(app, row))
        except KeyUnavailable as error:
            unopened[row.id] = error
    return _SlotNotices(notices=notices, unopened=unopened)


def _prove_keys(app: Effects, rows: Sequence[StoredSubscription]) -> None:
    """Open what opens: a key that has opened one row tells that another, which it does not open, was altered."""
    for row in rows:
        with suppress(KeyUnavailable):
            open_name(app, row)


_ALTERED = "subscription_altered"
_ONLY_MAX = 500  # ids in a payload


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
    internal = True
    payload = SubscribedPayload
    queue = QUEUE

    def __init__(self, app: Effects, registry: ReportRegistry) -> None:
        self._app, self._registry = app, registry

    def check_declared(self, payload: SubscribedPayload) -> None:
        with suppress(KeyUnavailable, PasswordUnavailable):  # the worker has them, and waits for them
            self._check(payload)

    def check_followers(self, connection: Connection, payload: SubscribedPayload) -> None:
        """Each subscription of the schedule by itself, and where it goes."""
        slot = _notices_at(self._app, connection, payload.schedule)
        for notice in slot.notices:
            with suppress(KeyUnavailable):
                try:
                    check_notices(self._app, [notice], report=payload.report)
                    check_buckets(self._app, connection, [notice])
                except ReportInvalid as error:
                    raise ReportInvalid(f"a subscription to {payload.report!r}: {error}") from None

    def explain(self, key: str | None, error_code: str | None, detail: Mapping[str, Any]) -> Explanation | None:
        if error_code != _ALTERED:
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
            if not _has_same_data(self._app, connection, payload.schedule, payload.report, payload.params):
                return Refused("the schedule's subscriptions are to other data", code="other_data")
            slot = _notices_at(self._app, connection, payload.schedule, payload.only)
        apart = _apart(slot.unopened)
        if not slot.notices and len(apart) == 1:
            return self._fate(slot.unopened)
        jobs = [_job(msgspec.structs.replace(payload, only=ids)) for ids in apart]
        whole = msgspec.structs.replace(request, notify=tuple(slot.notices))
        return Done(apply=lambda connection: self._write(connection, whole, jobs, attempt.job), detail=_detail(slot))

    def _check(self, payload: SubscribedPayload) -> CheckedRequest:
        definition = self._registry.get(payload.report)
        key = f"{payload.report}:{payload.slot}:{payload.schedule.rpartition('.')[2]}"
        return check_request(self._app, definition, payload.params, payload.format, key, ())

    def _fate(self, unopened: Mapping[str, KeyUnavailable]) -> Outcome:
        """Of a job all of whose subscriptions do not open, for the same reason."""
        subscription_id, error = next(iter(unopened.items()))
        if isinstance(error, SealInvalid):
            return Refused(f"subscription {subscription_id}: {error}", code=_ALTERED)
        more = f" and {len(unopened) - 1} more" if len(unopened) > 1 else ""
        return self.wait_for_operator(f"subscription {subscription_id}{more}: {error}")

    def _write(self, connection: Connection, request: CheckedRequest, jobs: Sequence[NewJob], job: Job) -> None:
        receipts = enqueue_many(jobs, session=connection, effects=self._app)
        record_followers(self._app.store, connection, job.id, [receipt.job_id for receipt in receipts])
        if not request.notify:
            return
        try:
            receipt = write_run(self._app, connection, request)
        except (KeyUnavailable, EnqueueError) as error:  # what the key's run has does not open, or is other content
            raise Refused(str(error), code=type(error).__name__) from None
        record_followers(self._app.store, connection, job.id, [receipt.run_id])


def _apart(unopened: Mapping[str, KeyUnavailable]) -> list[list[str]]:
    """The ids of what does not open, by the job that takes them up."""
    altered = [[row_id] for row_id, error in unopened.items() if isinstance(error, SealInvalid)]
    keyless = [row_id for row_id, error in unopened.items() if not isinstance(error, SealInvalid)]
    return altered + [keyless[start : start + _ONLY_MAX] for start in range(0, len(keyless), _ONLY_MAX)]


def _job(payload: SubscribedPayload) -> NewJob:
    return NewJob(job_type=SUBSCRIBED_TYPE, payload=payload)


def _detail(slot: _SlotNotices) -> dict[str, int]:
    return {"subscribers": len(slot.notices), **({"unopened": len(slot.unopened)} if slot.unopened else {})}


class ReportRequestPayload(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """As the arguments of `request_report`. Without `key`, each job is its own run.

    All of it is stored in clear, the payloads in `notify` too: give ids, not what is personal.
    """

    report: str
    params: dict[str, Any] = {}
    format: str | None = None
    key: str | None = None
    notify: Sequence[Notify] = ()


class ReportRequest(JobType[ReportRequestPayload]):
    """Requests a report, in the transaction that records this job as done.

    A crash leaves both or neither. What cannot be requested ends dead at once, as refused, and says why. A notice that
    cannot be sent, or a bucket that is gone, keeps no report from being made: it is a dead letter of its own.
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

    def check_followers(self, connection: Connection, payload: ReportRequestPayload) -> None:
        with suppress(KeyUnavailable):
            check_buckets(self._app, connection, payload.notify)

    def perform(self, payload: ReportRequestPayload, attempt: Attempt) -> Outcome:
        key = payload.key if payload.key is not None else key_of_job(payload.report, attempt.job.id)
        try:
            request, detail = self._checked(payload, key)
        except KeyUnavailable as error:  # the request is right, and another worker may have the key
            return self.wait_for_operator(str(error))
        except PasswordUnavailable as error:
            return Retry(str(error), code="no_password")
        except (ConfigurationError, EnqueueError) as error:  # neither quotes a param
            return _refused(error)
        return Done(apply=lambda connection: self._write(connection, request, attempt.job), detail=detail)

    def _checked(self, payload: ReportRequestPayload, key: str) -> tuple[CheckedRequest, dict[str, str] | None]:
        """The request, and what is wrong with a notice: the report is made nevertheless, and the notice ends dead."""
        try:
            return self._check(payload, key), None
        except (KeyUnavailable, PasswordUnavailable):
            raise
        except (ConfigurationError, EnqueueError) as error:
            request = self._check(msgspec.structs.replace(payload, notify=()), key)
            return msgspec.structs.replace(request, notify=tuple(payload.notify)), {"notice": str(error)}

    def _check(self, payload: ReportRequestPayload, key: str | None) -> CheckedRequest:
        definition = self._registry.get(payload.report)
        return check_request(self._app, definition, payload.params, payload.format, key, payload.notify)

    def _write(self, connection: Connection, request: CheckedRequest, job: Job) -> None:
        try:
            receipt = write_run(self._app, connection, request)
        except (KeyUnavailable, EnqueueError) as error:  # what the key's run has does not open, or is other content
            raise _refused(error) from None
        if receipt.existing:
            run = f"the run {receipt.run_id} of the key {receipt.key!r} ({receipt.state})"
            record_existing(self._app.store, connection, job, run)
        record_followers(self._app.store, connection, job.id, [receipt.run_id])


def _refused(error: EffectsError) -> Refused:
    return Refused(str(error), code=type(error).__name__)
