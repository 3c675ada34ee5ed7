"""Record batches on their way from `encode` to a part: gathered until there are enough for a row group.

`encode` gives a batch as bytes (an Arrow stream behind its length), because parts are made of bytes; a packer may get
them in pieces of any size.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Any

from effects.extend import lazy

if TYPE_CHECKING:
    import pyarrow as pa
else:
    pa = lazy.module("pyarrow")

LENGTH = struct.Struct("<I")
GROUP_ROWS = 100_000
GROUP_BYTES = 8 * 1024 * 1024  # of Arrow's arrays; a group ends with the batch that reaches it


def framed(batch: Any) -> bytes:
    """A batch as bytes."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as stream:
        stream.write_batch(batch)
    data: bytes = sink.getvalue().to_pybytes()
    return LENGTH.pack(len(data)) + data


class Gatherer:
    """Bytes of `framed` to groups of rows; `write_group`, of a subclass, makes bytes of a group."""

    def __init__(self) -> None:
        self._waiting = bytearray()
        self._batches: list[Any] = []
        self._rows = self._bytes = 0

    def compress(self, block: bytes | memoryview, /) -> bytes:
        """The groups that are full by now; mostly none is."""
        self._waiting += block
        full = b""
        while len(self._waiting) >= LENGTH.size:
            [size] = LENGTH.unpack_from(self._waiting)
            end = LENGTH.size + size
            if len(self._waiting) < end:
                break
            self._gather(bytes(self._waiting[LENGTH.size : end]))
            del self._waiting[:end]
            if self._rows >= GROUP_ROWS or self._bytes >= GROUP_BYTES:
                full += self.flush()
        return full

    def flush(self) -> bytes:
        """The last group."""
        if not self._batches:
            return b""
        table = pa.Table.from_batches(self._batches)
        self._batches, self._rows, self._bytes = [], 0, 0
        return self.write_group(table)

    def _gather(self, data: bytes) -> None:
        batch = pa.ipc.open_stream(data).read_next_batch()
        self._batches.append(batch)
        self._rows += batch.num_rows
        self._bytes += len(data)

    def write_group(self, table: Any) -> bytes:
        raise NotImplementedError
