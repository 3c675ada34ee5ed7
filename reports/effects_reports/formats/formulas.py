r"""The defence against texts that a spreadsheet would run as formulas.

A text that begins with `= + - @`, or another form of these signs, gets an apostrophe before it, and so does what stands
behind a semicolon, a tab, a bar or a line break inside it: where the list separator is not the comma, a spreadsheet
begins a cell there, whatever our quotes say. Spaces, quotes and invisible characters before a sign are looked through,
because programs strip them. A text that begins with a tab or a line break gets an apostrophe in any case. A plain
number stays what it is, as the whole text (-12.50) or as a cell of its own inside it (a;-5;b). Numbers, dates and
booleans are no texts and are never touched.

The comma needs no look inside a field: wherever it separates, the file's own quotes hold. Sources: OWASP, "CSV
Injection"; Unicode, compatibility forms of the four signs (full-width, small, superscript, subscript).
"""

from __future__ import annotations

import re

import sqlalchemy as sa
from sqlalchemy import ColumnElement

_SIGNS = "=+@\\-\uff1d\uff0b\uff0d\uff20\ufe62\ufe63\ufe66\ufe6b\u207a\u207b\u207c\u208a\u208b\u208c"
_BREAKS = ";|\\t\\r\\n"
_STRIPPED = ' "\u00a0\u00ad\u1680\u180e\u2000-\u200f\u2028-\u202f\u205f-\u2064\u3000\ufeff'
_NUMBER = "[+\\-]?([0-9]+([.][0-9]*)?|[.][0-9]+)([eE][+\\-]?[0-9]+)?"

# Regular expressions that Python and PostgreSQL read alike.
SUSPICIOUS = f"[{_BREAKS}][{_STRIPPED}]*[{_SIGNS}]"  # inside a text
SUSPICIOUS_START = f"[{_STRIPPED}]*[{_SIGNS}]|[\\t\\r\\n]"
_ANYWHERE = f"^({SUSPICIOUS_START})|{SUSPICIOUS}"
# A number inside a text is one cell only between two breaks of one kind. Before a break of another kind, or at the
# text's end, the cell continues, and what follows is part of its formula.
_INNER = "|".join(f"{end}(?!{_NUMBER}{end})" for end in (";", "[|]", "\\t", "[\\r\\n]"))
_CELL = f"(^(?!{_NUMBER}\\Z)|{_INNER})(?=[{_STRIPPED}]*[{_SIGNS}])"
_FIRST_BREAK = "^(?=[\\t\\r\\n])"

_is_suspicious = re.compile(_ANYWHERE).search
_cell = re.compile(_CELL)
_first_break = re.compile(_FIRST_BREAK)


def defended(text: str) -> str:
    """The text as a spreadsheet will show it and not run it."""
    return _first_break.sub("'", _cell.sub(r"\1'", text)) if _is_suspicious(text) else text


def defended_sql(text: ColumnElement[str]) -> ColumnElement[str]:
    """`defended`, compiled into a statement for PostgreSQL with UTF-8. Most texts cost one look."""
    cells = sa.func.regexp_replace(text, _literal(_CELL), _literal(r"\1'"), _literal("g"))
    defence = sa.func.regexp_replace(cells, _literal(_FIRST_BREAK), _literal("'"))
    return sa.case((text.bool_op("~")(_literal(_ANYWHERE)), defence), else_=text)


def _literal(text: str) -> ColumnElement[str]:
    """A text in the statement itself: COPY takes no parameters."""
    quoted = text.replace("'", "''")
    return sa.literal_column(f"'{quoted}'", sa.Text)
