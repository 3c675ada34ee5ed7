"""The job type `report.deliver`: a finished file into a bucket, an effect of its own."""

from __future__ import annotations

import asyncio
import functools
import ssl
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import msgspec

from effects import (
    Attempt,
    Cancelled,
    ConfigurationError,
    Exponential,
    JobNotFound,
    JobStateError,
    JobType,
    KeyUnavailable,
    Outcome,
    Refused,
    RetryPolicy,
    Routing,
)
from effects.extend import Explanation
from effects_reports.delivery.buckets import BucketCredentials, open_credentials
from effects_reports.errors import BucketInvalid
from effects_reports.results.result_file import open_result, ready_status
from effects_reports.routing import BUCKETS_QUEUE, DELIVER_TYPE, bucket_limit_key
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
    payload = ReportDeliveryPayload
    queue = BUCKETS_QUEUE
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
            address = self._address(row, payload.object)
            return asyncio.run(self._upload(address, credentials, file, attempt))
        except KeyUnavailable as error:
            return self.fate_of_sealed(error)
        except (JobNotFound, JobStateError) as error:
            return Refused(str(error), code="file_gone")
        except BucketInvalid as error:  # the settings, or the key in the name, are others than when it was checked
            return Refused(str(error), code="bad_address")
        except ConfigurationError as error:
            return self.wait_for_operator(str(error))

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

    async def _upload(
        self, address: BucketAddress, credentials: BucketCredentials, file: Delivered, attempt: Attempt
    ) -> Outcome:
        from effects_reports.transport.s3 import S3Client  # noqa: PLC0415 - its signer is an extra
        from effects_reports.transport.upload import BucketUpload  # noqa: PLC0415 - the same

        pieces = functools.partial(open_result, file.run_id, effects=self._app)
        keys = credentials.access_key_id, credentials.secret_access_key
        networks = state_of(self._app).bucket_networks
        async with S3Client(address, *keys, allow_private=networks, ssl_context=self._ssl_context) as client:
            return await BucketUpload(client, file, pieces, attempt).run()
