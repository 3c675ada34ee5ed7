"""Rows in batches of a stated size, mapped by Python where the report wants it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, TypeAlias

from sqlalchemy import Connection, Row

from effects_reports.errors import ReportRefused
from effects_reports.formats.base import ChunkSource, MappedRow

Batch: TypeAlias = Sequence[MappedRow]


def batches(source: ChunkSource, connection: Connection | None) -> Iterator[Batch]:
    """The file's rows, at most `source.batch_rows` at once and never none."""
    if source.rows is not None:
        yield from _cut(source.rows, source.batch_rows)
        return
    assert source.select is not None
    assert connection is not None
    # The size is said twice: without the first the driver fetches every row, without the second the first partition
    # of some statements is all of them. On PostgreSQL it is a cursor of the server's.
    streamed = connection.execute(source.select, execution_options={"yield_per": source.batch_rows})
    with streamed:
        for rows in streamed.partitions(source.batch_rows):
            if batch := _mapped(source, rows):
                yield batch


def _cut(rows: Iterable[MappedRow], size: int) -> Iterator[Batch]:
    given = iter(rows)
    while batch := list(islice(given, size)):
        yield batch


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
    try:
        lengths = set(map(len, batch))
    except TypeError:
        raise _wrong(f"it is a {type(batch[0]).__name__}; give a sequence or a mapping") from None
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


def _wrong(why: str) -> ReportRefused:
    return ReportRefused(f"a row that the report's code made does not fit the report: {why}", code="row_shape")
