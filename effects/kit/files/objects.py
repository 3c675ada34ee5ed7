"""Files in a bucket of S3, or of what speaks like it. What it answers is an error by fate: its own text is not kept.

Its text holds addresses and account names. An object in the making is sent in one request if it is small, others in
parts while they are written.
"""

from __future__ import annotations

import hashlib
import queue
import re
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from effects.errors import ConfigurationError, DeliveryError
from effects.kit.files.base import (
    PIECE_BYTES,
    ObjectMissing,
    StorageFull,
    StorageRefused,
    StorageUnavailable,
    Stored,
    StoredObject,
    probe,
)
from effects.kit.files.names import Bucket, attachment, check_name, check_prefix, is_listed

try:
    import obstore
    from obstore.exceptions import BaseError, PermissionDeniedError, UnauthenticatedError
    from obstore.store import S3Store
except ImportError as error:
    raise ConfigurationError(
        "EFFECTS_STORAGE_URL names object storage, which needs a client: pip install 'effects-toolkit[s3]'"
    ) from error

if TYPE_CHECKING:
    from obstore.store import S3Config

LINK_SECONDS_MAX = 7 * 86_400
_DELETED_AT_ONCE = 1000
_PART_BYTES = 8 * 1024 * 1024  # 10,000 of them make 80 GB, the largest object
_PARTS_WAITING = 1  # between writer and upload; with those on their way, 40 MiB at most
_STATUS = re.compile(r"status code: (\d{3})")
_CODE = re.compile(r"<Code>([A-Za-z]{1,64})</Code>")
_THROTTLED = {408, 425, 429}
_FULL_STATUS = "507"  # Insufficient Storage
_FULL = {"QuotaExceeded", "XMinioStorageFull", "XMinioAdminBucketQuotaExceeded"}  # of Ceph and MinIO


class ObjectStorage:
    """Objects of a bucket below a prefix. Large ones are sent in parts of 8 MiB, with at most 40 MiB in memory.

    A request that fails is tried three times within 30 s. A writer that gives up aborts its upload; one that is
    killed leaves parts that no listing shows and that cost money: give the bucket a lifecycle rule that aborts
    incomplete multipart uploads after a day.
    """

    def __init__(self, bucket: Bucket) -> None:
        self.url = f"s3://{bucket.name}/{bucket.prefix}".rstrip("/")
        self._store = S3Store(
            bucket.name,
            prefix=bucket.prefix or None,
            client_options={
                "connect_timeout": timedelta(seconds=5),
                "timeout": timedelta(seconds=60),
                "allow_http": (bucket.endpoint or "").startswith("http://"),
            },
            retry_config={"max_retries": 3, "retry_timeout": timedelta(seconds=30)},
            config=_config(bucket),
        )

    @contextmanager
    def writer(self, name: str, *, filename: str | None = None, durable: bool = True) -> Iterator[Upload]:
        """As `Storage.writer`; every object is durable."""
        attributes = {"Content-Type": "application/octet-stream"}
        if filename is not None:
            attributes["Content-Disposition"] = attachment(filename)
        upload = Upload(self._store, check_name(name), attributes=attributes, read=self.read)
        try:
            yield upload
        finally:
            upload.close()

    def read(self, name: str, start: int = 0, stop: int | None = None) -> Iterator[bytes]:
        """As `Storage.read`."""
        size = self.size(name)
        if size is None:
            raise ObjectMissing(f"the storage holds no file {name!r}", code="storage_missing")
        stop = size if stop is None else min(stop, size)
        if start >= stop:
            return
        with _named_errors(name):
            result = obstore.get(self._store, name, options={"range": (start, stop)})
            for piece in result.stream(min_chunk_size=PIECE_BYTES):
                whole = memoryview(piece)
                for begin in range(0, len(whole), PIECE_BYTES):
                    yield bytes(whole[begin : begin + PIECE_BYTES])

    def size(self, name: str) -> int | None:
        """As `Storage.size`."""
        check_name(name)
        try:
            with _named_errors(name):
                return int(obstore.head(self._store, name)["size"])
        except ObjectMissing:
            return None

    def delete(self, names: Iterable[str]) -> None:
        """As `Storage.delete`, up to 1,000 a request."""
        waiting = [check_name(name) for name in names]
        for begin in range(0, len(waiting), _DELETED_AT_ONCE):
            batch = waiting[begin : begin + _DELETED_AT_ONCE]
            try:
                with _named_errors(batch[0]):
                    obstore.delete(self._store, batch)
            except ObjectMissing:
                continue

    def list(self, prefix: str) -> Iterator[StoredObject]:
        """As `Storage.list`. Uploads that were never finished do not show."""
        folder = check_prefix(prefix).rpartition("/")[0]
        with _named_errors(prefix):
            for page in obstore.list(self._store, folder or None, chunk_size=1000):
                for entry in page:
                    if entry["path"].startswith(prefix) and is_listed(entry["path"]):
                        yield StoredObject(entry["path"], entry["size"], entry["last_modified"])

    def check(self) -> None:
        """As `Storage.check`."""
        probe(self)

    def has_room(self, size_bytes: int) -> bool:
        """True: a bucket does not tell."""
        return True

    def link(self, name: str, *, seconds: float) -> str | None:
        """As `Storage.link`; at most 7 days, and no longer than temporary credentials live."""
        with _named_errors(name):
            return obstore.sign(self._store, "GET", check_name(name), timedelta(seconds=min(seconds, LINK_SECONDS_MAX)))


def _config(bucket: Bucket) -> S3Config:
    """Options from the URL; the others come from the environment."""
    config: S3Config = {}
    if bucket.endpoint:
        config["endpoint"] = bucket.endpoint
    if bucket.region:
        config["region"] = bucket.region
    return config


class _AbandonedError(Exception):
    """The writer gave up."""


class Upload:
    """The writer of one object. Nothing is visible before the last request, and what was sent is aborted without it.

    The client has no call to abort a streamed upload, but it aborts one whose source of bytes raises. So
    the bytes go through a separate thread, whose source raises when the writer gives up.

    Args:
        read: reads another object of the bucket.
    """

    def __init__(
        self, store: S3Store, name: str, *, attributes: dict[str, str], read: Callable[[str], Iterator[bytes]]
    ) -> None:
        self._store, self._name, self._attributes, self._read = store, name, attributes, read
        self._buffer = bytearray()
        self._digest = hashlib.sha256()
        self._size = 0
        self._parts: queue.Queue[bytes | _AbandonedError | None] = queue.Queue(_PARTS_WAITING)
        self._thread: threading.Thread | None = None
        self._error: BaseException | None = None

    def write(self, data: bytes | memoryview) -> None:
        """Append."""
        self._digest.update(data)
        self._size += len(data)
        self._buffer += data
        while len(self._buffer) > _PART_BYTES:
            self._send(bytes(self._buffer[:_PART_BYTES]))
            del self._buffer[:_PART_BYTES]

    def append(self, name: str) -> int:
        """As `Writer.append`: the bytes go through here, for their digest."""
        before = self._size
        for piece in self._read(name):
            self.write(piece)
        return self._size - before

    def finish(self) -> Stored:
        """Send what is left, and complete."""
        if self._thread is None:
            with _named_errors(self._name):
                self._put(bytes(self._buffer), use_multipart=False)
        else:
            self._send(bytes(self._buffer))
            self._send(None)
            self._join()
            self._raise()
        return Stored(self._name, self._size, self._digest.hexdigest())

    def close(self) -> None:
        """Abort what was not finished."""
        if self._thread is not None:
            self._send(_AbandonedError())
            self._join()

    def _send(self, part: bytes | _AbandonedError | None) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._upload, name="effects-upload", daemon=True)
            self._thread.start()
        while self._thread.is_alive():
            try:
                self._parts.put(part, timeout=0.1)
            except queue.Full:
                continue
            return
        if not isinstance(part, _AbandonedError):
            self._raise()
            raise StorageUnavailable(f"the upload of {self._name!r} ended early", code="storage_unavailable")

    def _join(self) -> None:
        assert self._thread is not None
        self._thread.join()

    def _raise(self) -> None:
        if self._error is not None:
            raise _fate(self._error, self._name) from self._error

    def _upload(self) -> None:
        try:
            self._put(self._received(), use_multipart=True)
        except _AbandonedError:
            return
        except Exception as error:
            self._error = error

    def _received(self) -> Iterator[bytes]:
        while (part := self._parts.get()) is not None:
            if isinstance(part, _AbandonedError):
                raise part
            yield part

    def _put(self, content: Any, *, use_multipart: bool) -> None:
        obstore.put(
            self._store, self._name, content, attributes=dict(self._attributes), use_multipart=use_multipart,
            chunk_size=_PART_BYTES, max_concurrency=2,
        )  # fmt: skip


@contextmanager
def _named_errors(name: str) -> Iterator[None]:
    """Errors of the client inside the block, as ours, about the object `name`."""
    try:
        yield
    except (BaseError, OSError) as error:
        raise _fate(error, name) from error


def _fate(error: BaseException, name: str) -> DeliveryError:
    """Classify by the response's code and status; without a response the storage is unavailable."""
    text = str(error)
    code, status = _CODE.search(text), _STATUS.search(text)
    detail = f" ({code[1]})" if code else f" (status {status[1]})" if status else ""
    if code and code[1] == "NoSuchBucket":
        return StorageRefused(
            "the bucket does not exist: create it, or correct EFFECTS_STORAGE_URL", code="storage_bucket"
        )
    if isinstance(error, FileNotFoundError):
        return ObjectMissing(f"the storage holds no file {name!r}", code="storage_missing")
    if (code and code[1] in _FULL) or (status and status[1] == _FULL_STATUS):
        cure = f"the bucket is full{detail}: make room or raise its quota"
        return StorageFull(f"{name!r} cannot be kept: {cure}", cure=cure)
    if isinstance(error, PermissionDeniedError | UnauthenticatedError):
        return StorageRefused(
            f"the storage denies access to {name!r}{detail}: check the credentials and their permissions "
            "(get, put, delete, list, abort multipart uploads)",
            code="storage_permission",
        )
    if status and 400 <= int(status[1]) < 500 and int(status[1]) not in _THROTTLED:
        return StorageRefused(f"the storage refused {name!r}{detail}", code="storage_refused")
    return StorageUnavailable(f"the storage failed on {name!r}{detail or ': no answer'}", code="storage_unavailable")
