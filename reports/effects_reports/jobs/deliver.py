"""The job types of a file that is there: `report.deliver` puts it into a bucket, `report.notify` tells of it."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec
from sqlalchemy import Connection

from effects import (
    Attempt,
    Cancelled,
    ConfigurationError,
    Done,
    EnqueueError,
    Exponential,
    JobNotFound,
    JobStateError,
    JobType,
    KeyUnavailable,
    Outcome,
    Refused,
    RetryPolicy,
    Routing,
    UnknownJobType,
)
from effects.extend.actions import Explanation
from effects_reports.api import open_result, ready_status
from effects_reports.delivery.buckets import BucketCredentials, open_credentials
from effects_reports.errors import BucketInvalid
from effects_reports.routing import (
    BUCKETS_QUEUE,
    DELIVER_TYPE,
    FINISHING_PRIORITY,
    NOTIFY_TYPE,
    QUEUE,
    bucket_limit_key,
)
from effects_reports.runs.notify import Notify, RunEnd, check_means, kept_notices, note_followers, send
from effects_reports.state import state_of
from effects_reports.tables.buckets import StoredBucket, read_buckets
from effects_reports.transport.address import BucketAddress, check_object, parse_address

if TYPE_CHECKING:
    from effects import Effects
    from effects_reports.transport.upload import Delivered


_FOLLOWS = {
    "access_denied": ("the credentials are not accepted", "`effects reports buckets rotate` gives it new ones"),
    "no_such_bucket": ("the address names no bucket", "remove it, and add it with the right address"),
    "wrong_region": ("the bucket is elsewhere", "remove it, and add it with the right region"),
    "no_bucket": ("the bucket was removed here", "add it again, then requeue"),
    "blocked_address": ("its name leads into a network that is not open", "EFFECTS_BUCKET_PRIVATE_NETWORKS opens it"),
    "object_exists": ("an object that is not this file has the name", "nothing is replaced: put {run_id} into names"),
    "look_denied": ("without a look, another object could be replaced", "let them read (s3:GetObject), then requeue"),
    "not_asked": ("the run was not requested with this bucket", "request the report again, with `bucket_notice`"),
    "file_gone": ("the file has expired or its run is gone", "request the report again"),
}  # fmt: skip


class ReportDeliveryPayload(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which file goes into which bucket, under which name. Address and credentials are read when it is sent."""

    run_id: str
    bucket: str
    object: str


class ReportDeliver(JobType[ReportDeliveryPayload]):
    """Uploads the file unless it is there already, by an S3 PUT or a multipart upload.

    A repeat of the same bytes under the same key changes nothing, and is looked for first: the object has the file's
    SHA-256 as metadata. An upload whose answer was lost is done if it is found there, else unknown and repeated;
    another object of that name is never replaced. 12 tries, after 30 s, 1, 2, 4 … minutes, for a day.

    Args:
        ssl_context: instead of the verifying one that all share; for a private certificate authority.
    """

    name = DELIVER_TYPE
    internal = True
    payload = ReportDeliveryPayload
    queue = BUCKETS_QUEUE
    priority = FINISHING_PRIORITY
    retry = RetryPolicy(backoff=Exponential(seconds=30.0), max_attempts=12)
    time_limit_seconds = 3600.0
    on_unknown = "repeat"
    captured_in_tests = True

    def __init__(self, app: Effects, *, ssl_context: ssl.SSLContext | None = None) -> None:
        self._app, self._ssl_context = app, ssl_context

    def route(self, payload: ReportDeliveryPayload) -> Routing:
        return Routing(limit_key=bucket_limit_key(payload.bucket))

    def check_declared(self, payload: ReportDeliveryPayload) -> None:
        check_object(payload.object)

    def explain(self, key: str | None, error_code: str | None, detail: Mapping[str, Any]) -> Explanation | None:
        meaning, follows = _FOLLOWS.get(error_code or "", ("", ""))
        return Explanation(meaning=meaning, follows=follows) if meaning else None

    def perform(self, payload: ReportDeliveryPayload, attempt: Attempt) -> Outcome:
        if attempt.cancel_requested:
            return Cancelled("cancelled by request")
        with self._app.store.read() as connection:
            row = read_buckets(self._app.store, connection, [payload.bucket]).get(payload.bucket)
        if row is None:
            return Refused(f"there is no bucket {payload.bucket!r} any more", code="no_bucket")
        try:
            credentials = open_credentials(self._app, row.name, row.sealed)
            file = self._file(payload)
            if not self._is_asked_for(payload):
                return Refused(f"no notice of the run names the bucket {payload.bucket!r}", code="not_asked")
            address = self._address(row, payload.object)
            return asyncio.run(self.upload(address, credentials, file, attempt))
        except KeyUnavailable as error:
            return self.fate_of_sealed(error)
        except (JobNotFound, JobStateError) as error:
            return Refused(str(error), code="file_gone")
        except BucketInvalid as error:  # the settings, or the key in the name, are others than when it was checked
            return Refused(str(error), code="bad_address")
        except ConfigurationError as error:
            return self.wait_for_operator(str(error))

    def _is_asked_for(self, payload: ReportDeliveryPayload) -> bool:
        """Whether a notice of this run, of its own or of a subscription, names this bucket: whoever can write a job
        must not bring one customer's file into another's bucket.
        """
        with self._app.store.read() as connection:
            notices = kept_notices(self._app, connection, payload.run_id)
        return any(
            notice.job_type == DELIVER_TYPE and notice.payload.get("bucket") == payload.bucket for notice in notices
        )

    def _file(self, payload: ReportDeliveryPayload) -> Delivered:
        from effects_reports.transport.upload import Delivered  # noqa: PLC0415 - its signer is an extra

        status = ready_status(payload.run_id, effects=self._app)
        return Delivered(
            name=payload.object, run_id=payload.run_id, filename=str(status.filename),
            content_type=str(status.content_type), bytes=status.bytes or 0, sha256=str(status.sha256),
        )  # fmt: skip

    def _address(self, row: StoredBucket, name: str) -> BucketAddress:
        address = parse_address(row.url, allow_private=state_of(self._app).bucket_networks)
        check_object(address.key_of(name))
        return address

    async def upload(
        self, address: BucketAddress, credentials: BucketCredentials, file: Delivered, attempt: Attempt
    ) -> Outcome:
        """Bring the file into the bucket; `effects dev` keeps it here."""
        from effects_reports.transport.upload import BucketUpload, S3Client  # noqa: PLC0415 - its signer is an extra

        pieces = partial(open_result, file.run_id, effects=self._app)
        keys = credentials.access_key_id, credentials.secret_access_key
        networks = state_of(self._app).bucket_networks
        async with S3Client(address, *keys, allow_private=networks, ssl_context=self._ssl_context) as client:
            return await BucketUpload(client, file, pieces, attempt).run()


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
    internal = True
    payload = NotifyPayload
    queue = QUEUE
    priority = FINISHING_PRIORITY

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
            job_ids = [send(self._app, connection, end, notice) for notice in notices]
        except EnqueueError as error:
            raise Refused(str(error), code=type(error).__name__) from None
        note_followers(self._app, connection, end.run_id, job_ids)
