"""One part, from its rows to its bytes: by COPY, or in batches of rows that Python encodes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias, TypeVar

from sqlalchemy import Connection, Row, Select
from sqlalchemy.types import Enum, Float, Integer, NullType, String, TypeEngine

from effects.extend.files import Writer
from effects.extend.text import described
from effects_reports.errors import ReportRefused
from effects_reports.formats.base import ChunkResult, ChunkSource, Column, Format, MappedRow, Progress, Route
from effects_reports.formats.packing import open_packer
from effects_reports.formats.values import JsonText
from effects_reports.source.copying import can_copy, copy_rows
from effects_reports.source.kinds import is_as_stored, readable
from effects_reports.source.wide_values import KINDS, ValueOutOfRange, columns_of_type, read_wide_values

Batch: TypeAlias = Sequence[MappedRow]
T = TypeVar("T")
BATCH_BYTES = 1024 * 1024  # of texts and bytes; a batch ends with the fetch that reaches it
_FETCH_ROWS = 500  # each fetch is a round trip
_FETCH_BYTES = 1024 * 1024  # so few rows are fetched at once that, as large as the largest so far, they stay below
_NO_ROWS = {str, bytes, bytearray, set, frozenset}  # with a length, and no values in an order that is theirs
_UNREADABLE = (ValueError, LookupError, ArithmeticError)  # raised by types for values that they cannot convert


def batches(source: ChunkSource, connection: Connection | None, file: Format) -> Iterator[Batch]:
    """The file's rows, at most `source.batch_rows` or about `BATCH_BYTES` at once, and at least one.

    Raises:
        ReportRefused: a value cannot be read as its column's type.
    """
    if source.rows is not None:
        yield from _joined(_pieces(source.rows), source.batch_rows)
        return
    assert source.select is not None
    assert connection is not None
    read_wide_values(connection, mapped=source.mapped)

    def read(step: Callable[[], T]) -> T:
        try:
            return step()
        except ValueOutOfRange as error:
            raise _out_of_range(columns_of_type(connection, select, error.oid), KINDS[error.oid]) from None
        except _UNREADABLE as error:
            raise _unreadable(select, error) from None

    select = source.select
    rows_select = select if source.mapped else readable(connection, select, source.columns, file)
    # Without these options the driver fetches every row. On PostgreSQL it is a cursor of the server's.
    options = {"stream_results": True, "max_row_buffer": 1}
    with read(lambda: connection.execute(rows_select, execution_options=options)) as streamed:
        for rows in _joined(_fetched(lambda count: read(lambda: streamed.fetchmany(count))), source.batch_rows):
            if batch := _mapped(source, rows):
                yield batch


def _joined(pieces: Iterator[tuple[Sequence[Any], int]], rows_max: int) -> Iterator[list[Any]]:
    """Pieces of rows, each with its bytes, put together until there are enough of either."""
    batch: list[Any] = []
    size = 0
    for rows, size_bytes in pieces:
        batch += rows
        size += size_bytes
        while len(batch) >= rows_max:
            yield batch[:rows_max]
            del batch[:rows_max]
            size = 0
        if size >= BATCH_BYTES:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


def _pieces(rows: Iterable[MappedRow]) -> Iterator[tuple[Sequence[MappedRow], int]]:
    """An iterable's rows, one by one, because the size of the next is not known."""
    for row in rows:
        yield [row], _bytes_of(row.values() if isinstance(row, Mapping) else row)


def _fetched(fetch: Callable[[int], Sequence[Row[Any]]]) -> Iterator[tuple[Sequence[Row[Any]], int]]:
    """A few rows at a time: fewer once one of them was large."""
    count, largest = 1, 1
    while rows := fetch(count):
        size, widest = _measured(rows)
        yield rows, size
        largest = max(largest, widest)
        count = max(1, min(2 * count, _FETCH_ROWS, _FETCH_BYTES // largest))


def _measured(rows: Sequence[Row[Any]]) -> tuple[int, int]:
    """About the memory of these rows' long values, and of a row that had the longest of each column."""
    total = widest = 0
    for column in zip(*rows, strict=True):
        kinds = _LENGTHS.keys() & set(map(type, column))
        if kinds:
            lengths = [_LENGTHS[type(value)](value) for value in column if type(value) in kinds]
            total += sum(lengths)
            widest += max(lengths)
    return total, widest


def _bytes_of(values: Any) -> int:
    """About the memory of a row's long values: a text, bytes, or the text of a JSON document."""
    try:
        return sum([_LENGTHS[type(value)](value) for value in values if type(value) in _LENGTHS])
    except TypeError:  # not a row; the encoder reports it
        return 0


def _document_length(value: object) -> int:
    return len(str(value))


_LENGTHS: dict[type, Callable[[Any], int]] = {
    str: len, JsonText: len, bytes: len, bytearray: len, memoryview: len, dict: _document_length,
    list: _document_length,
}  # fmt: skip


def _out_of_range(columns: Sequence[str], kind: str) -> ReportRefused:
    return ReportRefused(
        f"a value of {_listed(columns)} ({kind}) is beyond what Python can hold, such as infinity, the "
        "year 10000 or a month: cast the column to text in the SELECT, or leave such rows out",
        code="value_out_of_range",
    )


def _unreadable(select: Select[Any], error: Exception) -> ReportRefused:
    converted = [str(column.key) for column in select.selected_columns if _is_converted(column.type)]
    return ReportRefused(
        f"a value of {_listed(converted)} cannot be read as the type that its column is declared with "
        f"({type(error).__name__}): fix the row, or cast the column to text in the SELECT",
        code=type(error).__name__,
    )


def _is_converted(kind: TypeEngine[Any]) -> bool:
    """Whether what the driver gives is not what the report takes."""
    return isinstance(kind, Enum) or not isinstance(kind, String | Integer | Float | NullType)


def _listed(names: Sequence[str]) -> str:
    return f"column {names[0]!r}" if len(names) == 1 else f"one of the columns {', '.join(map(repr, names))}"


def _mapped(source: ChunkSource, rows: Sequence[Row[Any]]) -> Batch:
    if source.map_row is not None:
        return [row for row in map(source.map_row, rows) if row is not None]
    if source.map_batch is not None:
        return list(source.map_batch(rows))
    return rows


def columns_of(source: ChunkSource, batch: Batch) -> list[tuple[Any, ...]]:
    """The batch's columns in the order of the file's.

    Raises:
        ReportRefused: a row lacks a column, or has another number of values.
    """
    if isinstance(batch[0], Mapping):
        return _named_columns([column.name for column in source.columns], batch)
    if not _NO_ROWS.isdisjoint(map(type, batch)):
        raise _no_row(next(row for row in batch if type(row) in _NO_ROWS))
    try:
        lengths = set(map(len, batch))
    except TypeError:
        raise _no_row(batch[0]) from None
    if lengths != {len(source.columns)}:
        wrong = (lengths - {len(source.columns)}).pop()
        raise _wrong(f"it has {wrong} values and the report {len(source.columns)} columns")
    return list(zip(*batch, strict=True))


def _named_columns(names: Sequence[str], batch: Sequence[Any]) -> list[tuple[Any, ...]]:
    try:
        return [tuple([row[name] for row in batch]) for name in names]
    except KeyError as error:
        raise _wrong(f"it has no column {error.args[0]!r}") from None
    except TypeError:
        raise _wrong("some rows are mappings, others are not; give one kind") from None


def _no_row(value: object) -> ReportRefused:
    return _wrong(f"it is {described(value)}; give a sequence or a mapping")


def _wrong(why: str) -> ReportRefused:
    return ReportRefused(f"a row that the report's code made does not fit the report: {why}", code="row_shape")


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
    packer = open_packer(out, format.packing, source.rows_before)
    rows = suspicious = 0
    if route == "copy":
        assert connection is not None
        for block, count, looked_at in copy_rows(source, format, connection):
            packer.write(block)
            rows += count
            suspicious += looked_at
            progress(rows, packer.bytes)
    else:
        for batch in batches(source, connection, format):
            packer.write(format.encode(source.columns, columns_of(source, batch)))
            rows += len(batch)
            progress(rows, packer.bytes)
    if rows:
        packer.end()
    return ChunkResult(
        rows=rows, bytes=packer.bytes, route=route, suspicious=suspicious, plain_bytes=packer.plain_bytes,
        plain_crc32=packer.plain_crc32,
    )  # fmt: skip


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
    return len(column.name.encode()) <= NAME_BYTES_MAX and is_as_stored(column.type)
