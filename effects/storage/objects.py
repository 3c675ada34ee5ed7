"""Files in a bucket of S3, or of what speaks like it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import TYPE_CHECKING

from effects.errors import ConfigurationError
from effects.storage.base import PIECE_BYTES, StoredObject
from effects.storage.disposition import attachment
from effects.storage.errors import ObjectMissing
from effects.storage.names import check_name, check_prefix, is_listed
from effects.storage.probe import probe
from effects.storage.urls import Bucket

try:
    import obstore
    from obstore.store import S3Store

    from effects.storage.object_errors import object_errors
    from effects.storage.upload import Upload
except ImportError as error:
    raise ConfigurationError(
        "EFFECTS_STORAGE_URL names object storage, which needs a client: pip install 'effects-toolkit[s3]'"
    ) from error

if TYPE_CHECKING:
    from obstore.store import S3Config

LINK_SECONDS_MAX = 7 * 86_400
_DELETED_AT_ONCE = 1000


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
        with object_errors(name):
            result = obstore.get(self._store, name, options={"range": (start, stop)})
            for piece in result.stream(min_chunk_size=PIECE_BYTES):
                whole = memoryview(piece)
                for begin in range(0, len(whole), PIECE_BYTES):
                    yield bytes(whole[begin : begin + PIECE_BYTES])

    def size(self, name: str) -> int | None:
        """As `Storage.size`."""
        check_name(name)
        try:
            with object_errors(name):
                return int(obstore.head(self._store, name)["size"])
        except ObjectMissing:
            return None

    def delete(self, names: Iterable[str]) -> None:
        """As `Storage.delete`, up to 1,000 a request."""
        waiting = [check_name(name) for name in names]
        for begin in range(0, len(waiting), _DELETED_AT_ONCE):
            batch = waiting[begin : begin + _DELETED_AT_ONCE]
            try:
                with object_errors(batch[0]):
                    obstore.delete(self._store, batch)
            except ObjectMissing:
                continue

    def list(self, prefix: str) -> Iterator[StoredObject]:
        """As `Storage.list`. Uploads that were never finished do not show."""
        folder = check_prefix(prefix).rpartition("/")[0]
        with object_errors(prefix):
            for page in obstore.list(self._store, folder or None, chunk_size=1000):
                for entry in page:
                    if entry["path"].startswith(prefix) and is_listed(entry["path"]):
                        yield StoredObject(entry["path"], entry["size"], entry["last_modified"])

    def check(self) -> None:
        """As `Storage.check`."""
        probe(self)

    def link(self, name: str, *, seconds: float) -> str | None:
        """As `Storage.link`; at most 7 days, and no longer than temporary credentials live."""
        with object_errors(name):
            return obstore.sign(self._store, "GET", check_name(name), timedelta(seconds=min(seconds, LINK_SECONDS_MAX)))


def _config(bucket: Bucket) -> S3Config:
    """Options from the URL; the others come from the environment."""
    config: S3Config = {}
    if bucket.endpoint:
        config["endpoint"] = bucket.endpoint
    if bucket.region:
        config["region"] = bucket.region
    return config
