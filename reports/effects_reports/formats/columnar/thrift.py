"""The compact protocol of Thrift, in which Parquet writes its footer: read into plain values, and written again.

A struct is a dict from a field's number to its value with its type; a list is its items with theirs. What is read and
written again has the same bytes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, TypeAlias

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
