"""The defence against texts that a spreadsheet would run as formulas.

A text that begins with `= + - @`, a tab, a line break, or the full-width form of one of the four signs, gets an
apostrophe before it, unless it is a plain number: -12.50 stays what it is. Numbers, dates and booleans are no texts
and are never touched. (OWASP, "CSV Injection", for the list.)
"""

from __future__ import annotations

import re

import sqlalchemy as sa
from sqlalchemy import ColumnElement

BEGINNINGS = "=+-@\t\r\n＝＋－＠"
_NUMBER = r"[+-]?([0-9]+(\.[0-9]*)?|\.[0-9]+)([eE][+-]?[0-9]+)?"
_is_number = re.compile(_NUMBER).fullmatch


def defended(text: str) -> str:
    """The text as a spreadsheet will show it and not run it."""
    return f"'{text}" if text and text[0] in BEGINNINGS and not _is_number(text) else text


def defended_sql(text: ColumnElement[str]) -> ColumnElement[str]:
    """`defended`, compiled into a statement for PostgreSQL with UTF-8. Costs one look at the first character."""
    dangerous = sa.func.ascii(text).in_([sa.literal_column(str(ord(one))) for one in BEGINNINGS])
    no_number = text.bool_op("!~")(sa.literal_column(f"'^{_NUMBER}$'"))
    return sa.case((sa.and_(dangerous, no_number), sa.literal_column("''''").op("||")(text)), else_=text)
