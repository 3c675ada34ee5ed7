"""One part, from its rows to its bytes."""

from __future__ import annotations

from sqlalchemy import Connection

from effects.storage.base import Writer
from effects_reports.formats.base import ChunkResult, ChunkSource, Format, Progress
from effects_reports.formats.packing import Packer
from effects_reports.readers.batches import batches, columns_of
from effects_reports.readers.copying import can_copy, copy_rows
from effects_reports.readers.routes import choose_route


def write_chunk(
    source: ChunkSource,
    format: Format,  # noqa: A002 - the word
    connection: Connection | None,
    out: Writer,
    *,
    progress: Progress,
) -> ChunkResult:
    """Read the rows, encode and pack them, and write them to `out`, whose `finish` is the caller's.

    In constant memory: `source.batch_rows` rows, or 256 KiB on the route `copy`.

    Args:
        connection: to the database that is read, in a transaction, in which settings of the session may be made; None
            for an iterable.
        progress: called with the rows and bytes written so far after each batch or block; what it raises ends the
            chunk and passes through.

    Raises:
        ReportRefused: a mapping gave a row that does not fit the columns, or the format cannot hold a value.
    """
    route = choose_route(source, format, connection.dialect.name if connection is not None else None)
    if route == "copy" and not (connection is not None and can_copy(connection)):
        route = "batch"
    packer = Packer(out, format.packing)
    rows = 0
    if route == "copy":
        assert connection is not None
        for block, count in copy_rows(source, format, connection):
            packer.write(block)
            rows += count
            progress(rows, packer.bytes)
    else:
        for batch in batches(source, connection):
            packer.write(format.encode(source.columns, columns_of(source, batch)))
            rows += len(batch)
            progress(rows, packer.bytes)
    if rows:
        packer.end()
    return ChunkResult(rows=rows, bytes=packer.bytes, route=route)
