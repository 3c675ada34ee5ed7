"""Requests to a bucket: signed by botocore, sent over our own connections, each within its time.

Needs the extra `effects-toolkit-reports[buckets]`. Nothing here judges an answer.
"""

from __future__ import annotations

import re
import ssl
from collections.abc import Mapping
from typing import Self

import httpx

from effects import ConfigurationError
from effects.extend import (
    VERSION,
    AddressRefused,
    Exchange,
    GuardedNetwork,
    LoopHttpClient,
    Private,
    Resolver,
    system_resolver,
    verifying_context,
)
from effects_reports.transport.address import BucketAddress

try:
    from botocore.auth import S3SigV4Auth
    from botocore.awsrequest import AWSRequest
    from botocore.credentials import Credentials
except ImportError as error:
    text = "delivery into buckets needs a signer: pip install 'effects-toolkit-reports[buckets]'"
    raise ConfigurationError(text) from error

REQUEST_SECONDS = 120.0
ANSWER_BYTES_MAX = 64 * 1024
_CODE = re.compile(rb"<Code>([A-Za-z0-9]{1,64})</Code>")
_UPLOAD_ID = re.compile(rb"<UploadId>([!-~]{1,1024}?)</UploadId>")
_UPLOADS = re.compile(rb"<Upload>.*?</Upload>", re.DOTALL)
_KEY = re.compile(rb"<Key>(.*?)</Key>", re.DOTALL)


class S3Answer:
    """One request's end: a status, or a fault of network or peer."""

    def __init__(self, exchange: Exchange) -> None:
        self.status = exchange.status
        self.fault, self.reason = exchange.failure, exchange.reason
        self.wrote = exchange.wrote
        self.body = exchange.body
        self.header = exchange.header
        code = _CODE.search(exchange.body)
        self.code = "" if code is None else code.group(1).decode()
        self.is_success = exchange.status is not None and 200 <= exchange.status <= 299
        self.is_whole = exchange.body_end == "whole"

    @property
    def upload_id(self) -> str | None:
        """Of a multipart upload that has begun."""
        upload_id = _UPLOAD_ID.search(self.body)
        return None if upload_id is None else upload_id.group(1).decode()

    def uploads_of(self, key: str) -> list[str]:
        """Ids of the unfinished uploads of this key, where the answer lists uploads."""
        ids = []
        for upload in _UPLOADS.findall(self.body):
            name, upload_id = _KEY.search(upload), _UPLOAD_ID.search(upload)
            if name is not None and upload_id is not None and name.group(1) == key.encode():
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
        exchange = Exchange(min(seconds, REQUEST_SECONDS), "resolve")
        signed, path = self._signed(method, target, body, headers or {}), target.encode("ascii")
        try:
            await self._client.send(exchange, method, path, signed, body, body_bytes_max=ANSWER_BYTES_MAX)
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
