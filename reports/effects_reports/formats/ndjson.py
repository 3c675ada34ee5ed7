"""NDJSON: one JSON object (RFC 8259) a line, its names those of the columns, in their order."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any

from effects.extend.files import Writer
from effects_reports.formats.base import BigIntegers, Column, Packing, Part
from effects_reports.formats.packing import CONTENT_TYPES, SUFFIXES, PackedFile
from effects_reports.formats.values import json_of, json_scalar, json_text, texts_of

BIG = 2**53 - 1  # beyond it a double, which JavaScript makes of every number, is not exact (RFC 8259, section 6)
# A text, in which nothing is a number, or an integer of 16 digits and more: no fraction, no exponent.
_LONG_INTEGER = re.compile(rb'"(?:[^"\\]|\\.)*"|(?<=[\[:, ])-?\d{16,}(?![\d.eE])')
_MAY_BE_LONG = re.compile(rb"\d{16}").search


class Ndjson:
    """NDJSON, plain or packed. Numbers are JSON numbers with all their digits; NaN and infinities are texts.

    Args:
        big_integers: `text` writes integers beyond 2^53 - 1 as texts, those inside documents too.
    """

    rows_max: int | None = None
    columns_max: int | None = None
    by_copy = True
    typed = False

    def __init__(self, packing: Packing = "", big_integers: BigIntegers = "number") -> None:
        self.packing, self.big_integers = packing, big_integers
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
        return self.spelled(f"{lines}}}\n".encode("utf-8", "replace"))

    def spelled(self, lines: bytes) -> bytes:
        """Whole rows with their integers as the file has them."""
        if self.big_integers == "number" or not _MAY_BE_LONG(lines):
            return lines
        return _LONG_INTEGER.sub(_as_text, lines)

    def assemble(self, columns: Sequence[Column], parts: Iterable[Part], out: Writer) -> None:
        """As `Format.assemble`: there is no header."""
        file = PackedFile(out, self.packing)
        for part in parts:
            file.append(part)
        file.end()


def _as_text(match: re.Match[bytes]) -> bytes:
    token = match[0]
    return token if token.startswith(b'"') or abs(int(token)) <= BIG else b'"%s"' % token


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
