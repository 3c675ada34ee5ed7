r"""The defence against texts that a spreadsheet would run as formulas.

A text that begins with `= + - @`, or another form of these signs, gets an apostrophe before it, and so does what stands
behind a semicolon, a tab, a bar or a line break inside it: where the list separator is not the comma, a spreadsheet
begins a cell there, whatever our quotes say. Spaces, quotes, control and invisible characters before a sign are looked
through, because programs strip them. Every line end and every form of a separator counts, because programs normalise
text. A text that begins with a tab or a line break gets an apostrophe in any case. A plain number stays what it is, as
the whole text (-12.50) or as a cell of its own inside it (a;-5;b). Numbers, dates and booleans are no texts and are
never touched.

The comma needs no look inside a field of a file whose separator it is: wherever it separates, the file's own quotes
hold. In a file with semicolons it begins a cell as a semicolon does in the others. Sources: OWASP, "CSV
Injection"; Unicode, forms of the four signs and of the separators that normalise to them (full-width, small, …).
"""

from __future__ import annotations

import re

import sqlalchemy as sa
from sqlalchemy import ColumnElement

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


class Defence:
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


DEFENCES = {separator: Defence(separator) for separator in (",", ";")}


def _literal(text: str) -> ColumnElement[str]:
    """A text in the statement itself: COPY takes no parameters."""
    quoted = text.replace("'", "''")
    return sa.literal_column(f"'{quoted}'", sa.Text)
