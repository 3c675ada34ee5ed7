"""An upload into a customer's bucket over S3's HTTP API: what it answers, and one PUT or several parts.

The object carries the file's SHA-256 as metadata. Whoever finds it there with that SHA-256 and size knows that it is
done, so that a repeat after a crash sends nothing twice, and the same bytes under the same key at worst.
"""

from __future__ import annotations

import html
import re
import ssl
from collections.abc import Callable, Iterator, Mapping
from typing import Literal, Self, TypeAlias
from urllib.parse import quote

import httpx
import msgspec

from effects import Attempt, Cancelled, ConfigurationError, Done, Outcome, Refused, Retry, Unknown
from effects.extend.files import attachment
from effects.extend.http import (
    AddressRefused,
    Exchange,
    GuardedNetwork,
    LoopHttpClient,
    Private,
    Resolver,
    system_resolver,
    verifying_context,
)
from effects.extend.process import VERSION, declare, point
from effects_reports.transport.address import BucketAddress

try:
    from botocore.auth import S3SigV4Auth
    from botocore.awsrequest import AWSRequest
    from botocore.credentials import Credentials
except ImportError as error:
    text = "delivery into buckets needs a signer: pip install 'effects-toolkit-reports[buckets]'"
    raise ConfigurationError(text) from error

_REQUEST_SECONDS = 120.0
_ANSWER_BYTES_MAX = 64 * 1024
_CODE = re.compile(rb"<Code>([A-Za-z0-9]{1,64})</Code>")
_UPLOAD_ID = re.compile(rb"<UploadId>([!-;=-~]{1,1024})</UploadId>")


class S3Answer:
    """One request's end: a status, or a fault of network or peer."""

    def __init__(self, exchange: Exchange) -> None:
        self.status = exchange.status
        self.fault, self.reason = exchange.failure, exchange.reason
        if exchange.unread:  # whose file it is, and how long, stands in the head
            self.status, self.fault, self.reason = None, "bad_answer", "the head of the bucket's answer cannot be read"
        self.wrote = exchange.wrote
        self.body = exchange.body
        self.header = exchange.header
        code = _CODE.search(exchange.body)
        self.code = "" if code is None else code.group(1).decode()
        self.is_success = self.status is not None and 200 <= self.status <= 299
        self.is_whole = exchange.body_end == "whole"

    @property
    def upload_id(self) -> str | None:
        """Of a multipart upload that has begun."""
        upload_id = _UPLOAD_ID.search(self.body)
        return None if upload_id is None else upload_id.group(1).decode()

    def uploads_of(self, key: str) -> list[str]:
        """Ids of the unfinished uploads of this key, where the answer lists uploads."""
        ids = []
        for piece in self.body.split(b"<Upload>")[1:]:  # by no expression that looks for each one's end in all others
            upload, _, _ = piece.partition(b"</Upload>")
            name, _, _ = upload.partition(b"<Key>")[2].partition(b"</Key>")
            upload_id = _UPLOAD_ID.search(upload)
            if upload_id is not None and html.unescape(name.decode(errors="replace")) == key:
                ids.append(upload_id.group(1).decode())
        return ids


class S3Client:
    """Requests to one bucket, for one event loop: `async with S3Client(…) as client:`.

    Args:
        access_key_id, secret_access_key: what signs.
        allow_private: which private addresses are open.
        ssl_context: instead of the verifying one that all share.
        resolver: instead of the system's.
    """

    def __init__(
        self,
        address: BucketAddress,
        access_key_id: str,
        secret_access_key: str,
        *,
        allow_private: Private = False,
        ssl_context: ssl.SSLContext | None = None,
        resolver: Resolver = system_resolver,
    ) -> None:
        self.address = address
        self._auth = S3SigV4Auth(Credentials(access_key_id, secret_access_key), "s3", address.region)
        origin = httpx.URL(address.origin)
        secure = origin.scheme == "https"
        self._client = LoopHttpClient(
            origin,
            GuardedNetwork(allow_private=allow_private, resolver=resolver).connect,
            ssl_context=(ssl_context or verifying_context(trust_env=True)) if secure else None,
            idle_max=1,
        )

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *error: object) -> None:
        self._client.close()

    async def send(
        self, method: str, target: str, body: bytes = b"", headers: Mapping[str, str] | None = None, *, seconds: float
    ) -> S3Answer:
        """Send one request. No fault of the network, the bucket or its address raises.

        Args:
            target: path and query, quoted.
            seconds: for everything; at most 120.
        """
        exchange = Exchange(min(seconds, _REQUEST_SECONDS), "resolve")
        signed, path = self._signed(method, target, body, headers or {}), target.encode("ascii")
        try:
            await self._client.send(exchange, method, path, signed, body, body_bytes_max=_ANSWER_BYTES_MAX)
        except AddressRefused as refusal:
            exchange.fail(refusal.code, str(refusal))
        exchange.end()
        return S3Answer(exchange)

    def _signed(self, method: str, target: str, body: bytes, headers: Mapping[str, str]) -> dict[str, str]:
        """All headers but Host and Content-Length. The signature covers the body's SHA-256: a cut body is refused."""
        own = {"user-agent": f"effects/{VERSION}", "accept-encoding": "identity", **headers}
        request = AWSRequest(method=method, url=self.address.origin + target, data=body, headers=own)
        self._auth.add_auth(request)
        return {str(name).lower(): str(value) for name, value in request.headers.items()}


PART_BYTES = 5 * 1024 * 1024  # S3's own minimum: an upload holds a few of them in memory
PARTS_MAX = 10_000  # S3's own limit
MARGIN_SECONDS = 2.0  # a request ends before the attempt's time limit does
_SHA256_HEADER, _RUN_HEADER = "x-amz-meta-effects-sha256", "x-amz-meta-effects-run"
_SIZE = re.compile(r"/(\d+)\Z")
_BUSY = (429, 503)
_CONFLICT = (404, 408, 409)  # an upload that another try has ended, or a change at the same time
_FAILED = 500
_NO_SUCH_BYTES = 416
_NO_CONDITIONS = 501  # to a request with If-None-Match
_DAMAGED = frozenset({"RequestTimeout", "IncompleteBody", "BadDigest", "XAmzContentSHA256Mismatch"})  # 400, on the way

_Presence: TypeAlias = Literal["ours", "absent", "other", "hidden"]

declare(
    {
        "bucket.upload_begun": "the object is not in the bucket, nothing is sent",
        "bucket.part_sent": "a part is in the bucket, the object not",
        "bucket.sent": "the object is in the bucket, the job not done",
    }
)


class Delivered(msgspec.Struct, frozen=True, kw_only=True):
    """What is delivered, under which name."""

    name: str
    run_id: str
    filename: str
    content_type: str
    bytes: int
    sha256: str

    def headers(self) -> dict[str, str]:
        """Of the object."""
        return {
            "content-type": self.content_type,
            "content-disposition": attachment(self.filename),
            _SHA256_HEADER: self.sha256,
            _RUN_HEADER: self.run_id,
        }


class BucketUpload:
    """`await BucketUpload(client, file, pieces, attempt).run()` gives the outcome; nothing of the network raises.

    Args:
        pieces: opens the file's bytes; raises after the last one if they were altered.
    """

    def __init__(
        self, client: S3Client, file: Delivered, pieces: Callable[[], Iterator[bytes]], attempt: Attempt
    ) -> None:
        self._client, self._file, self._pieces, self._attempt = client, file, pieces, attempt
        self._path = client.address.path_of(file.name)

    async def run(self) -> Outcome:
        """Done, Retry (nothing is there), Refused, or Unknown."""
        presence, answer = await self._look()
        if presence == "ours":
            return self._done(was_there=True)
        if presence == "other":
            return self._taken()
        if presence == "hidden" and answer.status != 403:  # who may not read may write
            return _verdict(answer, sure=True) or Retry("the bucket gave no answer", code="no_answer")
        point("bucket.upload_begun")
        if self._file.bytes <= PART_BYTES:
            return await self._judge(await self._put())
        return await self._in_parts()

    async def _send(self, method: str, query: str = "", body: bytes = b"", **headers: str) -> S3Answer:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        return await self._client.send(method, self._path + query, body, named, seconds=self._seconds_left())

    def _seconds_left(self) -> float:
        return self._attempt.remaining_seconds() - MARGIN_SECONDS

    async def _look(self) -> tuple[_Presence, S3Answer]:
        """Whether the object is there, by its first byte: an answer to HEAD has no reason in it."""
        answer = await self._send("GET", range="bytes=0-0")
        if answer.status == _NO_SUCH_BYTES:  # an empty object, whose metadata is not told with an error
            answer = await self._send("GET")
        if answer.status in (200, 206):
            size = _SIZE.search(answer.header("content-range") or f"/{answer.header('content-length')}")
            is_whole = size is not None and int(size.group(1)) == self._file.bytes
            is_ours = answer.header(_SHA256_HEADER) == self._file.sha256
            return ("ours" if is_ours and is_whole else "other"), answer
        if answer.status == 404 and answer.code != "NoSuchBucket":
            return "absent", answer
        return "hidden", answer

    async def _put(self) -> S3Answer:
        return await self._create("PUT", "", b"".join(self._pieces()), self._file.headers())

    async def _create(self, method: str, query: str, body: bytes, headers: Mapping[str, str]) -> S3Answer:
        """Send what makes the object if none is there; where the store knows no conditions, after a look that says so.

        Who may not look there sends nothing more: it would replace whatever has the name.
        """
        answer = await self._send(method, query, body, **headers, if_none_match="*")
        if answer.status == _NO_CONDITIONS:
            presence, _ = await self._look()
            if presence == "absent":
                answer = await self._send(method, query, body, **headers)
        return answer

    async def _in_parts(self) -> Outcome:
        """A multipart upload. One that fails is aborted, one that was killed by the next try."""
        await self._abort_earlier()
        begun = await self._client.send(
            "POST", f"{self._path}?uploads=", b"", self._file.headers(), seconds=self._seconds_left()
        )
        upload_id = begun.upload_id
        if upload_id is None or not begun.is_success:
            return _verdict(begun, sure=True) or Retry("the bucket began no upload", code="bad_answer")
        query = f"uploadId={quote(upload_id, safe='')}"
        is_complete = False
        try:
            parts = await self._send_parts(query)
            if not isinstance(parts, str):
                return parts
            answer = await self._complete(query, parts)
            outcome = await self._judge(answer)
            is_complete = isinstance(outcome, Done | Unknown)
            return outcome
        finally:
            if not is_complete and self._seconds_left() > 0:
                await self._send("DELETE", f"?{query}")

    async def _send_parts(self, query: str) -> Outcome | str:
        """All parts; the document that completes them."""
        lines = []
        for number, part in enumerate(self._parts(), start=1):
            if self._attempt.cancel_requested:
                return Cancelled("cancelled by request")
            answer = await self._send("PUT", f"?partNumber={number}&{query}", part)
            etag = answer.header("etag")
            if not answer.is_success or etag is None:
                return _verdict(answer, sure=True) or Retry("the bucket acknowledged no part", code="bad_answer")
            point("bucket.part_sent")
            tag = etag.strip('"')
            if not tag.isalnum():
                return Refused("the bucket named a part in a way that cannot be repeated", code="bad_answer")
            lines.append(f'<Part><PartNumber>{number}</PartNumber><ETag>"{tag}"</ETag></Part>')
        return f"<CompleteMultipartUpload>{''.join(lines)}</CompleteMultipartUpload>"

    def _parts(self) -> Iterator[bytes]:
        size = max(PART_BYTES, -(-self._file.bytes // PARTS_MAX))
        part = bytearray()
        for piece in self._pieces():
            part += piece
            while len(part) >= size:
                yield bytes(part[:size])
                del part[:size]
        if part:
            yield bytes(part)

    async def _complete(self, query: str, document: str) -> S3Answer:
        answer = await self._create("POST", f"?{query}", document.encode(), {})
        if answer.is_success and (answer.code or not answer.is_whole):  # 200 comes before S3 knows; the body has it
            answer.is_success, answer.status = False, _FAILED
        return answer

    async def _abort_earlier(self) -> None:
        """Parts of a try that was killed cost money and show nowhere. Who may not list them goes on."""
        address = self._client.address
        key = address.key_of(self._file.name)
        target = f"/{address.bucket}?prefix={quote(key, safe='')}&uploads="
        listed = await self._client.send("GET", target, seconds=self._seconds_left())
        for upload_id in listed.uploads_of(key) if listed.is_success else []:
            await self._send("DELETE", f"?uploadId={quote(upload_id, safe='')}")

    async def _judge(self, answer: S3Answer) -> Outcome:
        """What became of the request that makes the object."""
        if answer.is_success:
            return self._done(was_there=False)
        verdict = _verdict(answer)
        if verdict is not None and answer.status != 412:
            return verdict
        presence, seen = await self._look()
        if presence == "ours":
            return self._done(was_there=False)
        if presence == "other":
            return self._taken()
        if answer.status == _NO_CONDITIONS and seen.status == 403:
            return Refused(
                "the bucket knows no conditional requests, and the credentials may not look whether another object has "
                "this name: nothing was stored",
                code="look_denied", detail=self._detail(),
            )  # fmt: skip
        if answer.status == 412:
            return self._taken_unseen()
        if answer.status in _CONFLICT and presence == "absent":
            return Retry(f"the bucket answered {answer.status} ({answer.code})", code=f"http_{answer.status}")
        return Unknown(
            answer.reason or f"the bucket answered {answer.status}", code=answer.fault or f"http_{answer.status}",
            detail=self._detail(),
        )  # fmt: skip

    def _done(self, *, was_there: bool) -> Outcome:
        point("bucket.sent")
        return Done(detail={**self._detail(), "bytes": self._file.bytes, "was_there": was_there})

    def _taken(self) -> Outcome:
        return Refused("another object has this name; it is not replaced", code="object_exists", detail=self._detail())

    def _taken_unseen(self) -> Outcome:
        """The credentials may not read. An object that no earlier try, nor job, can have made is another one."""
        if self._attempt.number > 1 or self._attempt.job.requeued_from is not None:
            return Unknown(
                "an object has this name, and the credentials may not look whether it is this file",
                code="object_hidden", detail=self._detail(), on_unknown="hold",
            )  # fmt: skip
        return self._taken()

    def _detail(self) -> dict[str, object]:
        address = self._client.address
        return {"bucket": address.bucket, "object": address.key_of(self._file.name), "sha256": self._file.sha256}


def _verdict(answer: S3Answer, *, sure: bool = False) -> Outcome | None:
    """What an answer that is no success means; None where the object may be there all the same.

    Args:
        sure: the request cannot have made the object, whatever became of it.
    """
    said = f" ({answer.code})" if answer.code else ""
    if answer.is_success:  # and lacks what was asked for: it may have been cut
        return None
    if answer.status is None:
        if answer.wrote and not sure:
            return None
        outcome = Refused if answer.fault == AddressRefused.code else Retry
        return outcome(answer.reason or "the bucket cannot be reached", code=answer.fault or "no_answer")
    if answer.status in _BUSY:
        return Retry(f"the bucket asks for fewer requests{said}", code="slow_down")
    if answer.status >= _FAILED:
        return Retry(f"the bucket answered {answer.status}{said}", code=f"http_{answer.status}") if sure else None
    if answer.status == 404 and answer.code == "NoSuchBucket":
        return Refused("there is no such bucket", code="no_such_bucket")
    if answer.status in (301, 307, 308) or answer.code == "AuthorizationHeaderMalformed":
        region = answer.header("x-amz-bucket-region") or ""
        where = f": it is in {region}" if region.replace("-", "").isalnum() else ""
        return Refused(f"the bucket is in another region or at another endpoint{where}", code="wrong_region")
    if answer.status in (401, 403):
        return Retry(f"the bucket does not accept the credentials{said}", code="access_denied")
    if answer.status in _CONFLICT:
        return Retry(f"the bucket answered {answer.status}{said}", code=f"http_{answer.status}") if sure else None
    if answer.status == 412:
        return None
    if answer.code in _DAMAGED:
        return Retry(f"the bucket did not get the file as it was sent{said}", code=f"http_{answer.status}")
    return Refused(f"the bucket refuses the file: {answer.status}{said}", code=f"http_{answer.status}")
