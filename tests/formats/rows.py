"""Writing rows through the package's own readers, into memory."""

from __future__ import annotations

import hashlib
import json
import zlib
from collections.abc import Iterable, Sequence
from typing import Any

import sqlalchemy as sa
from sqlalchemy import Connection, Select

from effects.kit.files import Stored, Writer
from effects_reports.formats.base import ChunkResult, ChunkSource, Column, Dialect
from effects_reports.formats.opening import open_format
from effects_reports.readers import batches, write_chunk
from effects_reports.readers import columns_of as values_of
from effects_reports.source.paging import key_from_json, key_to_json
from effects_reports.source.statements import ranged, read_bounds


class Memory:
    """A writer that keeps what it was given."""

    def __init__(self) -> None:
        self.data = bytearray()

    def write(self, data: bytes | memoryview) -> None:
        self.data += data

    def append(self, name: str) -> int:
        raise AssertionError(name)  # it knows no other object

    def finish(self) -> Stored:
        return Stored("memory", len(self.data), hashlib.sha256(self.data).hexdigest())


def columns_of(select: Select[Any]) -> tuple[Column, ...]:
    return tuple(Column(str(column.key), str(column.key), column.type) for column in select.selected_columns)


def part(
    source: ChunkSource, name: str = "csv", dialect: Dialect = "excel", connection: Connection | None = None
) -> tuple[bytes, ChunkResult]:
    """One part's bytes."""
    out = Memory()
    result = write_chunk(source, open_format(name, dialect), connection, out, progress=lambda rows, size: None)
    assert result.bytes == len(out.data)
    return bytes(out.data), result


def encoded(
    select: Select[Any], name: str, dialect: Dialect, connection: Connection, *, batch_rows: int = 5000
) -> bytes:
    """What Python writes of rows that nothing maps, as where one of the columns has a type of the app's."""
    columns, file = columns_of(select), open_format(name, dialect)
    source = ChunkSource(columns, select, batch_rows=batch_rows)
    return b"".join(
        file.encode(columns, values_of(source, batch)) for batch in batches(source, connection, file)
    )  # fmt: skip


def both_routes(
    select: Select[Any], name: str, dialect: Dialect, connection: Connection, *, batch_rows: int = 5000
) -> tuple[bytes, bytes]:
    """What PostgreSQL writes, and what Python writes of the same rows."""
    by_python = encoded(select, name, dialect, connection, batch_rows=batch_rows)
    for formulas in (True, False):  # defended by PostgreSQL, and by us
        source = ChunkSource(columns_of(select), select, formulas=formulas)
        copied, result = part(source, name, dialect, connection)
        assert result.route == "copy"
        if formulas:
            assert copied == by_python
    return copied, by_python


def numbers_by_ranges(connection: Connection, select: Select[Any], key: Sequence[str], size: int) -> list[int]:
    """The rows' `n`, read range by range; each bound travels as JSON."""
    bounds = [key_to_json(bound) for bound, _ in read_bounds(connection, select, key, size, 100)]
    ends = [key_from_json(json.dumps(bound, allow_nan=False)) for bound in bounds]
    return [
        row.n for lo, hi in zip([None, *ends], ends, strict=False) for row in
        connection.execute(ranged(select, key, lo, hi, ["n"]))
    ]  # fmt: skip


class _Part(list[bytes]):
    """A part's pieces; of a gzip file, what its chunk counted is counted here again."""

    @property
    def plain_bytes(self) -> int:
        return len(self._plain())

    @property
    def plain_crc32(self) -> int:
        return zlib.crc32(self._plain())

    def _plain(self) -> bytes:
        try:
            return zlib.decompressobj(-15).decompress(b"".join(self))
        except zlib.error:  # no part of a gzip file
            return b""

    def append_to(self, out: Writer) -> None:
        for piece in self:
            out.write(piece)


def whole(columns: Sequence[Column], parts: Iterable[bytes], name: str, dialect: Dialect = "excel") -> bytes:
    """The file of these parts."""
    out = Memory()
    open_format(name, dialect).assemble(columns, (_Part([chunk]) for chunk in parts), out)
    return bytes(out.data)


def values(connection: Connection, types: Sequence[str], rows: Sequence[Sequence[Any]]) -> Select[Any]:
    """A SELECT of these rows, each column of its PostgreSQL type, from a temporary table."""
    names = [f"column {number}" for number in range(len(types))]
    declared = ", ".join(f'"{name}" {kind}' for name, kind in zip(names, types, strict=True))
    connection.exec_driver_sql("DROP TABLE IF EXISTS given")
    connection.exec_driver_sql(f"CREATE TEMPORARY TABLE given (n serial, {declared})")
    marks = ", ".join(f"%s::{kind}" for kind in types)
    quoted = ", ".join(f'"{name}"' for name in names)
    for row in rows:
        connection.exec_driver_sql(f"INSERT INTO given ({quoted}) VALUES ({marks})", tuple(row))
    table = sa.table("given", sa.column("n"), *(sa.column(name) for name in names))
    return sa.select(*(table.c[name] for name in names)).order_by(table.c.n)
