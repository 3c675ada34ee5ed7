"""Parquet: row groups of parts, one after the other, under a footer that lists all of them.

A part is a sequence of frames, each a row group: its metadata (a RowGroup of Parquet's footer, whose offsets count
from the group's first byte) and its bytes, as pyarrow has written them. An assembly copies the bytes and adds to the
offsets: nothing is decoded, and of the rows only the metadata of their groups is held.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple, TypeAlias

from effects.extend.files import Writer
from effects.extend.process import lazy
from effects_reports.formats.arrow import batch_of, major_version, pieces_of, schema_of, with_kinds
from effects_reports.formats.base import Column, Packing, Part
from effects_reports.formats.fragments import Pieces

with lazy.modules(__name__):
    import pyarrow as pa
    import pyarrow.parquet as pq

TRUE, FALSE, BYTE, I16, I32, I64, DOUBLE, BINARY, LIST, SET, MAP, STRUCT = range(1, 13)
_LONG_LIST = 15

Struct: TypeAlias = "dict[int, Field]"


class Field(NamedTuple):
    """A value and its type, one of the constants above."""

    type: int
    value: Any


class Items(NamedTuple):
    """The values of a list and their type."""

    type: int
    values: list[Any]


def read_struct(data: bytes, start: int = 0) -> tuple[Struct, int]:
    """The struct that begins there, and where it ends.

    Raises:
        ValueError, LookupError: it is no struct.
    """
    reader = _StructReader(data, start)
    return reader.struct(), reader.place


def write_struct(struct: Struct) -> bytes:
    """The bytes of a struct."""
    out = bytearray()
    _put_struct(out, struct)
    return bytes(out)


class _StructReader:
    def __init__(self, data: bytes, start: int) -> None:
        self._data, self.place = data, start

    def struct(self) -> Struct:
        fields: Struct = {}
        number = 0
        while head := self._byte():
            step, kind = head >> 4, head & 15
            number = number + step if step else self._signed()
            fields[number] = Field(kind, kind == TRUE if kind in (TRUE, FALSE) else self._value(kind))
        return fields

    def _value(self, kind: int) -> Any:
        if kind in (TRUE, FALSE, BYTE):
            return self._byte()
        if kind in (I16, I32, I64):
            return self._signed()
        if kind == DOUBLE:
            return self._bytes(8)
        if kind == BINARY:
            return self._bytes(self._unsigned())
        if kind in (LIST, SET):
            return self._items()
        if kind == STRUCT:
            return self.struct()
        raise ValueError(f"type {kind} of Thrift does not occur in Parquet")

    def _items(self) -> Items:
        head = self._byte()
        count, kind = head >> 4, head & 15
        if count == _LONG_LIST:
            count = self._unsigned()
        return Items(kind, [self._value(kind) for _ in range(count)])

    def _byte(self) -> int:
        byte = self._data[self.place]
        self.place += 1
        return byte

    def _bytes(self, size: int) -> bytes:
        taken = self._data[self.place : self.place + size]
        if len(taken) < size:
            raise ValueError("the struct is cut off")
        self.place += size
        return taken

    def _unsigned(self) -> int:
        value = shift = 0
        while (byte := self._byte()) & 0x80:
            value |= (byte & 0x7F) << shift
            shift += 7
        return value | byte << shift

    def _signed(self) -> int:
        value = self._unsigned()
        return value >> 1 ^ -(value & 1)


def _put_struct(out: bytearray, struct: Struct) -> None:
    before = 0
    for number, (kind, value) in sorted(struct.items()):
        shown = (TRUE if value else FALSE) if kind in (TRUE, FALSE) else kind
        step = number - before
        if 0 < step < 16:
            out.append(step << 4 | shown)
        else:
            out.append(shown)
            _put_signed(out, number)
        if kind not in (TRUE, FALSE):
            _PUT[kind](out, value)
        before = number
    out.append(0)


def _put_items(out: bytearray, items: Items) -> None:
    count = len(items.values)
    out.append(min(count, _LONG_LIST) << 4 | items.type)
    if count >= _LONG_LIST:
        _put_unsigned(out, count)
    put = _PUT[items.type]
    for value in items.values:
        put(out, value)


def _put_binary(out: bytearray, value: bytes) -> None:
    _put_unsigned(out, len(value))
    out += value


def _put_unsigned(out: bytearray, value: int) -> None:
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)


def _put_signed(out: bytearray, value: int) -> None:
    _put_unsigned(out, value << 1 if value >= 0 else (-value << 1) - 1)


_PUT: dict[int, Callable[[bytearray, Any], None]] = {
    TRUE: bytearray.append, FALSE: bytearray.append, BYTE: bytearray.append, I16: _put_signed, I32: _put_signed,
    I64: _put_signed, DOUBLE: bytearray.extend, BINARY: _put_binary, LIST: _put_items, SET: _put_items,
    STRUCT: _put_struct,
}  # fmt: skip


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
        footer[_NUM_ROWS] = Field(I64, groups.rows)
        # As pyarrow names itself, for readers that know its mistakes; workers may differ in the rest of its version.
        footer[_CREATED_BY] = Field(BINARY, f"parquet-cpp-arrow version {major_version()}.0.0".encode())
        written = write_struct(footer | {_ROW_GROUPS: Field(LIST, Items(STRUCT, groups.listed))})
        out.write(written + _FOOTER_LENGTH.pack(len(written)) + _MAGIC)


def row_group(table: Any) -> Iterator[bytes]:
    """The frame of a part that holds these rows."""
    data = _file(table)
    [group] = _footer_of(data)[_ROW_GROUPS].value.values
    metadata = write_struct(_moved(group, -len(_MAGIC)))
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
            group = _moved(read_struct(metadata)[0], place)
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
    return read_struct(bytes(memoryview(data)[_footer_start(data) :]))[0]


def _moved(group: Struct, by: int) -> Struct:
    """The same row group so many bytes further; without its number, which is optional."""
    columns = [_moved_column(column, by) for column in group[_COLUMNS].value.values]
    moved = _shifted(group, by, (_GROUP_OFFSET,)) | {_COLUMNS: Field(LIST, Items(STRUCT, columns))}
    return {number: field for number, field in moved.items() if number != _ORDINAL}


def _moved_column(column: Struct, by: int) -> Struct:
    """`file_offset` of a column chunk is 0 where no metadata stands beside its pages, and stays so."""
    metadata = _shifted(column[_META_DATA].value, by, (_DATA_PAGE, _INDEX_PAGE, _DICTIONARY_PAGE))
    offsets = () if column[_CHUNK_OFFSET].value == 0 else (_CHUNK_OFFSET,)
    return _shifted(column, by, offsets) | {_META_DATA: Field(STRUCT, metadata)}


def _shifted(struct_: Struct, by: int, numbers: Sequence[int]) -> Struct:
    there = {number: struct_[number] for number in numbers if number in struct_}
    return struct_ | {number: Field(kind, value + by) for number, (kind, value) in there.items()}
