"""CSV (RFC 4180) in six dialects.

| dialect | line ends | begins with | texts that look like formulas |
|---|---|---|---|
| `excel` | CRLF | the UTF-8 byte order mark, by which Excel knows UTF-8 | get apostrophes |
| `excel_semicolon` | CRLF | the byte order mark | get apostrophes |
| `rfc4180` | CRLF | the header | get apostrophes |
| `raw` | LF | the header | stay as they are |

The fields of `excel_semicolon` stand between semicolons, its decimals have a comma, its moments (in UTC) no zone:
so they are numbers and moments to the spreadsheets of countries where the comma is decimal.

A spreadsheet keeps 15 digits of a number. `excel_exact` and `excel_semicolon_exact` write longer integers as
`="1234567890123456789"`, a formula whose value is the text of all digits.

A field is quoted where it holds the separator, a quote or a line break. NULL is an empty field, the empty text is `""`.
These are the rules of PostgreSQL's COPY, which writes the same bytes.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any, TypeAlias

from effects.extend import Writer
from effects_reports.formats.base import Column, Dialect, Packing, Part
from effects_reports.formats.formulas import DEFENCES
from effects_reports.formats.packing import CONTENT_TYPES, SUFFIXES, Packer
from effects_reports.formats.values import has_point, is_free, is_long, text_of, texts_of, with_comma

Cells: TypeAlias = list[str]

_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
# Joins a column, so that it can be searched at once: never begins a formula, is never looked through, never quoted.
_BETWEEN = "\xa4"
_NONE = type(None)


class Csv:
    """CSV, plain or packed."""

    rows_max: int | None = None
    columns_max: int | None = None
    by_copy = True
    typed = False

    def __init__(self, dialect: Dialect = "excel", packing: Packing = "") -> None:
        self.dialect, self.packing = dialect, packing
        self.defended = dialect != "raw"
        self.decimal_comma = dialect.startswith("excel_semicolon")
        self.separator = ";" if self.decimal_comma else ","
        self.exact = dialect.endswith("_exact")
        self.line_end = "\n" if dialect == "raw" else "\r\n"
        self.name = f"csv{SUFFIXES[packing]}"
        self.extension = f".{self.name}"
        self.content_type = CONTENT_TYPES.get(packing, "text/csv; charset=utf-8")
        # Whatever needs a second look: to be quoted, or as a formula at the beginning of a field.
        defence = DEFENCES[self.separator]
        formulas = rf"|{defence.inside}|(?:^|{_BETWEEN})(?:{defence.start})" if self.defended else ""
        self._special = re.compile(rf'["{self.separator}\r\n]{formulas}').search
        self._quotable = re.compile(rf'["{self.separator}\r\n]').search
        self.defend = defence.defended

    def encode(self, columns: Sequence[Column], values: Sequence[Sequence[Any]]) -> bytes:
        """Rows as bytes; `values` are the columns' values, all of one length, at least 1."""
        fields = list(map(self._fields, values))
        if len(fields) == 1:
            fields = [[_alone(field) for field in fields[0]]]
        lines = self.line_end.join(map(self.separator.join, zip(*fields, strict=True)))
        return f"{lines}{self.line_end}".encode("utf-8", "replace")

    def header(self, columns: Sequence[Column]) -> bytes:
        """The first line, with what comes before it."""
        line = self.encode(columns, [[column.header] for column in columns])
        return _BYTE_ORDER_MARK + line if self.dialect.startswith("excel") else line

    def assemble(self, columns: Sequence[Column], parts: Iterable[Part], out: Writer) -> None:
        """As `Format.assemble`."""
        packer = Packer(out, self.packing)
        packer.write(self.header(columns))
        packer.end()
        for part in parts:
            part.append_to(out)

    def _fields(self, values: Sequence[Any]) -> Cells:
        """A column's fields. Mostly its values are of one type, and nothing in them needs a second look."""
        kinds = set(map(type, values))
        if len(kinds - {_NONE}) > 1 or (self.exact and any(map(is_long, values))):
            return [self._field(value) for value in values]
        if kinds == {_NONE}:
            return [""] * len(values)
        [kind] = kinds - {_NONE}
        if _NONE not in kinds:
            return self._quoted(self._texts(values, kind), kind)
        texts = iter(self._quoted(self._texts([value for value in values if value is not None], kind), kind))
        return ["" if value is None else next(texts) for value in values]

    def _texts(self, values: Sequence[Any], kind: type) -> Cells:
        if self.decimal_comma and has_point(kind):
            return list(map(self._text, values))
        return texts_of(values, kind)

    def _text(self, value: Any) -> str:
        text = text_of(value)
        return with_comma(text) if self.decimal_comma and has_point(type(value)) else text

    def _quoted(self, texts: Cells, kind: type) -> Cells:
        if kind in _PLAIN:
            return texts
        free = is_free(kind)
        if "" not in texts and not self._special(_BETWEEN.join(texts)):
            return texts
        return [self._quote(text, free=free) for text in texts]

    def _field(self, value: Any) -> str:
        if self.exact and is_long(value):
            return self.in_quotes(f'="{text_of(value)}"')
        return "" if value is None else self._quote(self._text(value), free=is_free(type(value)))

    def _quote(self, text: str, *, free: bool) -> str:
        if not text:
            return '""'
        if free and self.defended:
            text = self.defend(text)
        return self.in_quotes(text)

    def in_quotes(self, text: str) -> str:
        """A text that is not empty, in quotes where it needs them."""
        return f'"{text.replace(_QUOTE, _QUOTE * 2)}"' if self._quotable(text) else text


def _alone(field: str) -> str:
    """PostgreSQL quotes what would end its own input, where it is a whole line."""
    return f'"{field}"' if field == "\\." else field


_QUOTE = '"'
_PLAIN = {bool, int, float}
