"""An object in the making on object storage: small ones in one request, others in parts while they are written."""

from __future__ import annotations

import hashlib
import queue
import threading
from collections.abc import Callable, Iterator
from typing import Any

import obstore
from obstore.store import S3Store

from effects.storage.base import Stored
from effects.storage.errors import StorageUnavailable
from effects.storage.object_errors import object_errors, object_fate

PART_BYTES = 8 * 1024 * 1024  # 10,000 of them make 80 GB, the largest object
_PARTS_WAITING = 1  # between writer and upload; with those on their way, 40 MiB at most


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
        while len(self._buffer) > PART_BYTES:
            self._send(bytes(self._buffer[:PART_BYTES]))
            del self._buffer[:PART_BYTES]

    def append(self, name: str) -> int:
        """As `Writer.append`: the bytes go through here, for their digest."""
        before = self._size
        for piece in self._read(name):
            self.write(piece)
        return self._size - before

    def finish(self) -> Stored:
        """Send what is left, and complete."""
        if self._thread is None:
            with object_errors(self._name):
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
            raise object_fate(self._error, self._name) from self._error

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
            chunk_size=PART_BYTES, max_concurrency=2,
        )  # fmt: skip
