"""One part, from its rows to its bytes, and which way they take."""

from __future__ import annotations

from sqlalchemy import Connection
from sqlalchemy.types import Enum, Interval, TypeDecorator, TypeEngine

from effects.extend import Writer
from effects_reports.formats.base import ChunkResult, ChunkSource, Column, Format, Progress, Route
from effects_reports.formats.packing import open_packer
from effects_reports.readers.batches import batches, columns_of
from effects_reports.readers.copying import can_copy, copy_rows

NAME_BYTES_MAX = 63  # of PostgreSQL, which leaves off the rest without an error


def write_chunk(
    source: ChunkSource,
    format: Format,  # noqa: A002 - the word
    connection: Connection | None,
    out: Writer,
    *,
    progress: Progress,
) -> ChunkResult:
    """Read the rows, encode and pack them, and write them to `out`, whose `finish` is the caller's.

    In constant memory: `source.batch_rows` rows or some MiB of them, or 256 KiB on the route `copy`, and one row more.

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
    packer = open_packer(out, format.packing)
    rows = suspicious = 0
    if route == "copy":
        assert connection is not None
        for block, count, looked_at in copy_rows(source, format, connection):
            packer.write(block)
            rows += count
            suspicious += looked_at
            progress(rows, packer.bytes)
    else:
        for batch in batches(source, connection):
            packer.write(format.encode(source.columns, columns_of(source, batch)))
            rows += len(batch)
            progress(rows, packer.bytes)
    if rows:
        packer.end()
    return ChunkResult(rows=rows, bytes=packer.bytes, route=route, suspicious=suspicious)


def choose_route(source: ChunkSource, format: Format, dialect_name: str | None) -> Route:  # noqa: A002 - the word
    """The quickest way that is open, known before a row is read.

    `iterable`: the rows are no table's. `batch`, `row`: Python code maps them, many or one at a time. `sqlite`: they
    are streamed and encoded here. `copy`: PostgreSQL itself writes the format; where a column's type needs Python
    (a TypeDecorator, an Enum of a class), a name is too long for it, or for XLSX, they are streamed and encoded here:
    `batch`.

    Args:
        dialect_name: of the database that is read; None for an iterable.
    """
    if source.rows is not None:
        return "iterable"
    if source.map_row is not None:
        return "row"
    if source.map_batch is not None:
        return "batch"
    if dialect_name == "sqlite":
        return "sqlite"
    plain = dialect_name == "postgresql" and format.by_copy and all(map(_is_plain, source.columns))
    return "copy" if plain else "batch"


def _is_plain(column: Column) -> bool:
    """Whether what the database holds is what Python would give, under a name that it does not cut."""
    kind = column.type
    if len(column.name.encode()) > NAME_BYTES_MAX:
        return False
    if kind is None or isinstance(kind, Interval):
        return True
    if isinstance(kind, TypeDecorator) or (isinstance(kind, Enum) and kind.enum_class is not None):
        return False
    return _is_builtin(kind) and all(map(_is_builtin, kind._variant_mapping.values()))


def _is_builtin(kind: TypeEngine[object]) -> bool:
    return type(kind).__module__.startswith("sqlalchemy.") and not isinstance(kind, TypeDecorator)
