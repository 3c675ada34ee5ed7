"""CSV (RFC 4180) in six dialects, and the texts that a spreadsheet would run as formulas.

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

import sqlalchemy as sa
from sqlalchemy import ColumnElement

from effects.extend.files import Writer
from effects_reports.formats.base import Column, Dialect, Packing, Part
from effects_reports.formats.packing import CONTENT_TYPES, SUFFIXES, PackedFile
from effects_reports.formats.values import has_point, is_free, is_long, text_of, texts_of, with_comma

# Characters as escapes that Python's and PostgreSQL's regular expressions share.
_SIGNS = (
    "=+@\\-\\u2212\\uff1d\\uff0b\\uff0d\\uff20\\ufe62\\ufe63\\ufe66\\ufe6b\\ufb29\\u207a\\u207b\\u207c\\u208a\\u208b\\u208c"
    "\\u2260\\u2a75\\u2a76"  # which decompose into `=` and more
)
_LINE_ENDS = "\\u000b\\u000c\\u001c-\\u001e\\u0085\\u2028\\u2029"  # Unicode's, and `str.splitlines`
_SEPARATOR_FORMS = "\\u037e\\ufe14\\ufe54\\uff1b\\uff5c\\ufe10\\ufe50\\uff0c"  # of semicolon, bar and comma
_OTHER_BREAKS = f"{_LINE_ENDS}{_SEPARATOR_FORMS}"
_BREAKS = f";|\\t\\r\\n{_OTHER_BREAKS}"
# Quotes, spaces, control and format characters, and whatever else has no picture of its own (Unicode's
# Default_Ignorable_Code_Point). None is a break too: a text of nothing else is searched once, not from each of them.
_STRIPPED = (
    ' "\\u0000-\\u0008\\u000e-\\u001b\\u001f\\u007f-\\u0084\\u0086-\\u00a0\\u00ad\\u034f\\u0600-\\u0605\\u061c'
    "\\u06dd\\u070f\\u0890\\u0891\\u08e2\\u115f\\u1160\\u1680\\u17b4\\u17b5\\u180b-\\u180f\\u2000-\\u200f"
    "\\u202a-\\u202f\\u205f-\\u206f\\u2800\\u3000\\u3164\\ufe00-\\ufe0f\\ufeff\\uffa0\\ufff0-\\ufffb"
    "\\U000110bd\\U000110cd\\U00013430-\\U0001343f\\U0001bca0-\\U0001bca3\\U0001d173-\\U0001d17a\\U000e0000-\\U000e0fff"
)
_NUMBER = "[+\\-\\u2212]?([0-9]+([.][0-9]*)?|[.][0-9]+)([eE][+\\-]?[0-9]+)?"

SIGNS = tuple(_SIGNS.replace("\\-", "-").encode().decode("unicode_escape"))

_FIRST_BREAK = "^(?=[\\t\\r\\n])"
_first_break = re.compile(_FIRST_BREAK)


class _Defence:
    """The regular expressions, which Python and PostgreSQL read alike.

    Args:
        separator: of the file's own fields, which its quotes protect; a comma elsewhere begins a cell.

    Attributes:
        inside, start: what calls for a closer look inside a text, and at its beginning.
    """

    def __init__(self, separator: str) -> None:
        comma = "" if separator == "," else ","
        self.inside = f"[{comma}{_BREAKS}][{_STRIPPED}]*[{_SIGNS}]"
        self.start = f"[{_STRIPPED}]*[{_SIGNS}]|[\\t\\r\\n]"
        self._anywhere = f"^({self.start})|{self.inside}"
        # A number inside a text is one cell only between two breaks of one kind. Before a break of another kind, or at
        # the text's end, the cell continues, and what follows is part of its formula.
        ends = (*comma, ";", "[|]", "\\t", "[\\r\\n]")
        inner = "|".join((*(f"{end}(?!{_NUMBER}{end})" for end in ends), f"[{_OTHER_BREAKS}]"))
        self._cell = f"(^(?!{_NUMBER}\\Z)|{inner})(?=[{_STRIPPED}]*[{_SIGNS}])"
        self._is_suspicious, self._cells = re.compile(self._anywhere).search, re.compile(self._cell)

    def defended(self, text: str) -> str:
        """The text as a spreadsheet will show it and not run it."""
        return _first_break.sub("'", self._cells.sub(r"\1'", text)) if self._is_suspicious(text) else text

    def defended_sql(self, text: ColumnElement[str]) -> ColumnElement[str]:
        """`defended`, compiled into a statement for PostgreSQL with UTF-8. Most texts cost one look."""
        cells = sa.func.regexp_replace(text, _literal(self._cell), _literal(r"\1'"), _literal("g"))
        defence = sa.func.regexp_replace(cells, _literal(_FIRST_BREAK), _literal("'"))
        return sa.case((text.bool_op("~")(_literal(self._anywhere)), defence), else_=text)


DEFENCES = {separator: _Defence(separator) for separator in (",", ";")}


def _literal(text: str) -> ColumnElement[str]:
    """A text in the statement itself: COPY takes no parameters."""
    quoted = text.replace("'", "''")
    return sa.literal_column(f"'{quoted}'", sa.Text)


Cells: TypeAlias = list[str]

_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_SYLK = b"ID"  # a file that begins so is one of SYLK to Excel, which warns and may not open it; a quote prevents that
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
        if self.dialect.startswith("excel"):
            return _BYTE_ORDER_MARK + line
        return _first_quoted(line) if line.startswith(_SYLK) else line

    def assemble(self, columns: Sequence[Column], parts: Iterable[Part], out: Writer) -> None:
        """As `Format.assemble`."""
        file = PackedFile(out, self.packing)
        file.write(self.header(columns))
        for part in parts:
            file.append(part)
        file.end()

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


def _first_quoted(line: bytes) -> bytes:
    """The line with its first field, which needs no quotes, in quotes."""
    field = re.split(rb"[,\r\n]", line, maxsplit=1)[0]
    return b'"%s"%s' % (field, line[len(field) :])


def _alone(field: str) -> str:
    """PostgreSQL quotes what would end its own input, where it is a whole line."""
    return f'"{field}"' if field == "\\." else field


_QUOTE = '"'
_PLAIN = {bool, int, float}
