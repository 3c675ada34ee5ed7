"""NDJSON: one JSON object (RFC 8259) a line, its names those of the columns, in their order."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from effects.extend import Writer
from effects_reports.formats.base import Column, Packing, Part
from effects_reports.formats.packing import CONTENT_TYPES, SUFFIXES, Packer
from effects_reports.formats.values import json_of, json_scalar, json_text, texts_of

_NONE = type(None)


class Ndjson:
    """NDJSON, plain or packed. Numbers are JSON numbers with all their digits; NaN and infinities are texts."""

    rows_max: int | None = None
    columns_max: int | None = None
    by_copy = True
    typed = False

    def __init__(self, packing: Packing = "") -> None:
        self.packing = packing
        self.name = f"ndjson{SUFFIXES[packing]}"
        self.extension = f".{self.name}"
        self.content_type = CONTENT_TYPES.get(packing, "application/x-ndjson")

    def encode(self, columns: Sequence[Column], values: Sequence[Sequence[Any]]) -> bytes:
        """Rows as bytes; `values` are the columns' values, all of one length, at least 1."""
        members = []
        for number, (column, column_values) in enumerate(zip(columns, values, strict=True)):
            before = f"{',' if number else '{'}{json_text(column.name)}:"
            members.append([before + shown for shown in _members(column_values)])
        lines = "}\n".join(map("".join, zip(*members, strict=True)))
        return f"{lines}}}\n".encode("utf-8", "replace")

    def assemble(self, columns: Sequence[Column], parts: Iterable[Part], out: Writer) -> None:
        """As `Format.assemble`: there is no header. A packed file without rows is an empty member."""
        counting = _CountingWriter(out)
        for part in parts:
            part.append_to(counting)
        if not counting.bytes:
            Packer(out, self.packing).end()


class _CountingWriter:
    """A writer that knows how many bytes came.

    Attributes:
        bytes: how many.
    """

    def __init__(self, out: Writer) -> None:
        self.bytes = 0
        self._out = out

    def write(self, data: bytes | memoryview) -> None:
        self.bytes += len(data)
        self._out.write(data)

    def append(self, name: str) -> int:
        size = self._out.append(name)
        self.bytes += size
        return size

    def finish(self) -> Any:
        return self._out.finish()


def _members(values: Sequence[Any]) -> list[str]:
    kinds = set(map(type, values))
    if kinds == {str}:
        return list(map(json_text, values))
    if kinds <= {int, bool} and len(kinds) == 1:
        return texts_of(values, kinds.pop())
    return ["null" if value is None else _member(value) for value in values]


def _member(value: Any) -> str:
    return json_of(value) if isinstance(value, _NESTED) else json_scalar(value)


_NESTED = (dict, list, tuple, set, frozenset)
