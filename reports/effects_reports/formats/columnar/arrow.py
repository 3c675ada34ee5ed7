"""Arrow: the IPC file format, record batches of parts one after the other under a footer that lists them."""

from __future__ import annotations

import struct
import sys
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from effects.extend import Writer, lazy
from effects_reports.formats.base import Column, Packing, Part
from effects_reports.formats.columnar.arrays import batch_of, schema_of
from effects_reports.formats.columnar.gathering import pieces_of
from effects_reports.formats.columnar.kinds import with_kinds
from effects_reports.formats.fragments import Pieces

if TYPE_CHECKING:
    import pyarrow as pa
else:
    pa = lazy.module("pyarrow")

_LENGTH = struct.Struct("<I")


class Arrow:
    """Columns of their own types, not compressed, in record batches of about 100,000 rows or 1 MiB."""

    name = "arrow"
    extension = ".arrow"
    content_type = "application/vnd.apache.arrow.file"
    rows_max: int | None = None
    columns_max: int | None = None
    by_copy = False
    typed = True
    packing: Packing = "arrow"

    def encode(self, columns: Sequence[Column], values: Sequence[Sequence[Any]]) -> Any:
        """As `Format.encode`: a record batch.

        Raises:
            ReportRefused: a value is not of its column's type.
        """
        return batch_of(with_kinds(columns), values)

    def assemble(self, columns: Sequence[Column], parts: Iterable[Part], out: Writer) -> None:
        """As `Format.assemble`; one batch at a time is held."""
        with pa.ipc.new_file(pa.PythonFile(_Sink(out), mode="w"), schema_of(with_kinds(columns))) as file:
            for part in parts:
                for batch in _batches(part):
                    file.write_batch(batch)


def record_batch(table: Any) -> Iterator[bytes]:
    """The frame of a part that holds these rows: an Arrow stream of one batch behind its length."""
    [batch] = table.combine_chunks().to_batches()
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as stream:
        stream.write_batch(batch)
    data = sink.getvalue()
    yield _LENGTH.pack(len(data))
    yield from pieces_of(data)


def _batches(part: Iterable[bytes]) -> Iterator[Any]:
    """A part's record batches; a broken part is read to its end, where it is known to be broken."""
    pieces = Pieces(part)
    while header := pieces.take(_LENGTH.size):
        try:
            [size] = _LENGTH.unpack(header)
            yield pa.ipc.open_stream(pieces.take(size)).read_next_batch()
        except (struct.error, pa.ArrowException, OSError):
            for _ in pieces.up_to(sys.maxsize):
                pass
            raise


class _Sink:
    """What pyarrow writes to."""

    closed = False

    def __init__(self, out: Writer) -> None:
        self._out, self._written = out, 0

    def write(self, data: Any) -> int:
        taken = bytes(data)
        self._out.write(taken)
        self._written += len(taken)
        return len(taken)

    def tell(self) -> int:
        return self._written

    def flush(self) -> None:
        """All is written at once."""

    def close(self) -> None:
        """The writer is the caller's."""
