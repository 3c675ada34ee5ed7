"""Parquet: row groups of parts, one after the other, under a footer that lists all of them.

A part is a sequence of frames, each a row group: its metadata (a RowGroup of Parquet's footer, whose offsets count
from the group's first byte) and its bytes, as pyarrow has written them. An assembly copies the bytes and adds to the
offsets: nothing is decoded, and of the rows only the metadata of their groups is held.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from effects.extend import Writer, lazy
from effects_reports.formats.base import Column, Packing, Part
from effects_reports.formats.columnar import thrift
from effects_reports.formats.columnar.arrays import batch_of, major_version, schema_of
from effects_reports.formats.columnar.gathering import pieces_of
from effects_reports.formats.columnar.kinds import with_kinds
from effects_reports.formats.columnar.thrift import Field, Items, Struct
from effects_reports.formats.fragments import Pieces

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.parquet as pq
else:
    pa, pq = lazy.module("pyarrow"), lazy.module("pyarrow.parquet")

_MAGIC = b"PAR1"
_FOOTER_LENGTH = struct.Struct("<I")
_FRAME = struct.Struct("<II")
# A dictionary that grows larger costs memory and makes the file no smaller.
_OPTIONS = {"compression": "zstd", "version": "2.6", "store_schema": False, "dictionary_pagesize_limit": 128 * 1024}
# Numbers of fields, as parquet.thrift has them.
_NUM_ROWS, _ROW_GROUPS, _CREATED_BY = 3, 4, 6  # of FileMetaData
_COLUMNS, _GROUP_ROWS, _GROUP_OFFSET, _ORDINAL = 1, 3, 5, 7  # of RowGroup
_CHUNK_OFFSET, _META_DATA = 2, 3  # of ColumnChunk
_DATA_PAGE, _INDEX_PAGE, _DICTIONARY_PAGE = 9, 10, 11  # of ColumnMetaData, each an offset


class Parquet:
    """Columns of their own types, compressed by zstd, in row groups of about 100,000 rows or 4 MiB."""

    name = "parquet"
    extension = ".parquet"
    content_type = "application/vnd.apache.parquet"
    rows_max: int | None = None
    columns_max: int | None = None
    by_copy = False
    typed = True
    packing: Packing = "parquet"

    def encode(self, columns: Sequence[Column], values: Sequence[Sequence[Any]]) -> Any:
        """As `Format.encode`: a record batch.

        Raises:
            ReportRefused: a value is not of its column's type.
        """
        return batch_of(with_kinds(columns), values)

    def assemble(self, columns: Sequence[Column], parts: Iterable[Part], out: Writer) -> None:
        """As `Format.assemble`."""
        footer = _footer_of(_file(schema_of(with_kinds(columns)).empty_table()))
        groups = _Groups(out)
        for part in parts:
            groups.add(part)
        footer[_NUM_ROWS] = Field(thrift.I64, groups.rows)
        # As pyarrow names itself, for readers that know its mistakes; workers may differ in the rest of its version.
        footer[_CREATED_BY] = Field(thrift.BINARY, f"parquet-cpp-arrow version {major_version()}.0.0".encode())
        written = thrift.write_struct(footer | {_ROW_GROUPS: Field(thrift.LIST, Items(thrift.STRUCT, groups.listed))})
        out.write(written + _FOOTER_LENGTH.pack(len(written)) + _MAGIC)


def row_group(table: Any) -> Iterator[bytes]:
    """The frame of a part that holds these rows."""
    data = _file(table)
    [group] = _footer_of(data)[_ROW_GROUPS].value.values
    metadata = thrift.write_struct(_moved(group, -len(_MAGIC)))
    end = _footer_start(data)
    yield _FRAME.pack(len(metadata), end - len(_MAGIC)) + metadata
    yield from pieces_of(data, len(_MAGIC), end)


class _Groups:
    """The row groups of a file that is being joined.

    Attributes:
        listed: their metadata, in order; rows: of all of them.
    """

    def __init__(self, out: Writer) -> None:
        self.listed: list[Struct] = []
        self.rows = 0
        self._out, self._place = out, len(_MAGIC)
        out.write(_MAGIC)

    def add(self, part: Iterable[bytes]) -> None:
        """Copy a part's groups. It is known to be whole once it has ended: only then is its metadata read."""
        frames = list(self._copied(part))
        for metadata, place in frames:
            group = _moved(thrift.read_struct(metadata)[0], place)
            self.listed.append(group)
            self.rows += group[_GROUP_ROWS].value

    def _copied(self, part: Iterable[bytes]) -> Iterator[tuple[bytes, int]]:
        pieces = Pieces(part)
        while header := pieces.take(_FRAME.size):
            if len(header) < _FRAME.size:
                continue
            of_metadata, of_pages = _FRAME.unpack(header)
            yield pieces.take(of_metadata), self._place
            for piece in pieces.up_to(of_pages):
                self._out.write(piece)
            self._place += of_pages


def _file(table: Any) -> Any:
    """A Parquet file of one row group, or of none where the table is empty."""
    sink = pa.BufferOutputStream()
    with pq.ParquetWriter(sink, table.schema, **_OPTIONS) as writer:
        if table.num_rows:
            writer.write_table(table, row_group_size=table.num_rows)
    return sink.getvalue()


def _footer_start(data: Any) -> int:
    end = len(data) - len(_MAGIC) - _FOOTER_LENGTH.size
    return end - int(_FOOTER_LENGTH.unpack_from(data, end)[0])


def _footer_of(data: Any) -> Struct:
    return thrift.read_struct(bytes(memoryview(data)[_footer_start(data) :]))[0]


def _moved(group: Struct, by: int) -> Struct:
    """The same row group so many bytes further; without its number, which is optional."""
    columns = [_moved_column(column, by) for column in group[_COLUMNS].value.values]
    moved = _shifted(group, by, (_GROUP_OFFSET,)) | {_COLUMNS: Field(thrift.LIST, Items(thrift.STRUCT, columns))}
    return {number: field for number, field in moved.items() if number != _ORDINAL}


def _moved_column(column: Struct, by: int) -> Struct:
    """`file_offset` of a column chunk is 0 where no metadata stands beside its pages, and stays so."""
    metadata = _shifted(column[_META_DATA].value, by, (_DATA_PAGE, _INDEX_PAGE, _DICTIONARY_PAGE))
    offsets = () if column[_CHUNK_OFFSET].value == 0 else (_CHUNK_OFFSET,)
    return _shifted(column, by, offsets) | {_META_DATA: Field(thrift.STRUCT, metadata)}


def _shifted(struct_: Struct, by: int, numbers: Sequence[int]) -> Struct:
    there = {number: struct_[number] for number in numbers if number in struct_}
    return struct_ | {number: Field(kind, value + by) for number, (kind, value) in there.items()}
