"""Record batches on their way to a part: gathered until there are enough for a group of rows."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Protocol

from effects.extend import Writer, lazy

if TYPE_CHECKING:
    import pyarrow as pa
else:
    pa = lazy.module("pyarrow")

GROUP_ROWS = 100_000
# Of Arrow's arrays; a group ends with the batch that reaches it. An Arrow file's are not compressed, so that they are
# held several times while they are written.
GROUP_BYTES = {"parquet": 4 * 1024 * 1024, "arrow": 1024 * 1024}
_PIECE_BYTES = 256 * 1024


class FrameOf(Protocol):
    """What makes the bytes of a part of a group of rows, in pieces."""

    def __call__(self, table: Any, /) -> Iterable[bytes]: ...


class GroupPacker:
    """Writes record batches as groups of rows. `end` completes the part; the writer's `finish` is the caller's.

    Args:
        bytes_max: of a group, one of `GROUP_BYTES`.

    Attributes:
        bytes: how many were written so far.
    """

    def __init__(self, out: Writer, frame_of: FrameOf, bytes_max: int) -> None:
        self.bytes = 0
        self._out, self._frame_of, self._bytes_max = out, frame_of, bytes_max
        self._batches: list[Any] = []
        self._rows = self._size = 0

    def write(self, batch: Any) -> None:
        """Append."""
        self._batches.append(batch)
        self._rows += batch.num_rows
        self._size += batch.nbytes
        if self._rows >= GROUP_ROWS or self._size >= self._bytes_max:
            self.end()

    def end(self) -> None:
        """Write what is gathered."""
        if not self._batches:
            return
        table = pa.Table.from_batches(self._batches)
        self._batches, self._rows, self._size = [], 0, 0
        for piece in self._frame_of(table):
            self._out.write(piece)
            self.bytes += len(piece)


def pieces_of(buffer: Any, start: int = 0, end: int | None = None) -> Iterable[bytes]:
    """The bytes of a buffer of Arrow's, of which no second copy is made."""
    view = memoryview(buffer)[start:end]
    for place in range(0, len(view), _PIECE_BYTES):
        yield bytes(view[place : place + _PIECE_BYTES])
