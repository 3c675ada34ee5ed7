"""Texts that others wrote: what no outlet may get of them, numbers in them, names that were mistyped.

Outlets are terminals, logs, JSON, metrics, file names, names in mail headers. One list, `UNSAFE`, has what may move a
cursor, colour a screen, turn text round or hide in it: control characters (C0 and C1), format characters (direction
marks, zero width, tags), surrogates, line and paragraph separators; Unicode's categories Cc, Cf, Cs, Zl and Zp.
Imports no library: the first error of a command may come before any is needed.
"""

from __future__ import annotations

import difflib
import json
import re
import unicodedata
from collections.abc import Iterable

UNSAFE = re.compile(
    "[\x00-\x1f\x7f-\x9f\xad\u0600-\u0605\u061c\u06dd\u070f\u0890\u0891\u08e2\u180e\u200b-\u200f\u2028-\u202e\u2060-\u2064"
    "\u2066-\u206f\ud800-\udfff\ufeff\ufff9-\ufffb\U000110bd\U000110cd\U00013430-\U0001343f\U0001bca0-\U0001bca3"
    "\U0001d173-\U0001d17a\U000e0001\U000e0020-\U000e007f]"
)
_BUT_LINES = re.compile(rf"(?![\n\t]){UNSAFE.pattern}")
DIGITS_MAX = 18  # what a column of 64 bits takes, whatever the digits


def without_unsafe(text: str, instead: str = " ") -> str:
    """The text on one line, every unsafe character as `instead`."""
    return UNSAFE.sub(instead, text)


def lines_without_unsafe(text: str) -> str:
    """The text with its lines and tabs, every other unsafe character as a space."""
    return _BUT_LINES.sub(" ", text)


def escape_unsafe(document: str) -> str:
    r"""A JSON document, or a text quoted as JSON, with every unsafe character as `\uXXXX`; it means the same."""
    return _BUT_LINES.sub(lambda match: json.dumps(match[0])[1:-1], document)


def is_printable(text: str) -> bool:
    """Whether the text is one line of visible characters and spaces: what names and reasons may hold."""
    return text.isprintable()


def escape_unprintable(text: str, chars_max: int) -> str:
    """A stranger's text, safe to store and show: whatever is not printable, but a line break, as an escape.

    That covers control characters (a terminal would obey them), bidirectional ones (they reorder what is read) and NUL
    (PostgreSQL does not store it).
    """
    if text.isascii() and is_printable(text.replace("\n", "")):  # most are: no look at each character
        return text[:chars_max]
    shown = "".join(char if _is_plain(char) else char.encode("unicode_escape").decode() for char in text[:chars_max])
    return shown[:chars_max]


def _is_plain(char: str) -> bool:
    category = unicodedata.category(char)
    return char == "\n" or (category[0] != "C" and category not in ("Zl", "Zp"))


def nearest(name: str, names: Iterable[str]) -> str:
    """The end of an error: `; is it 'pager.page'?`, or nothing where no name is similar."""
    matches = difflib.get_close_matches(name, list(names), n=1)
    return f"; is it {matches[0]!r}?" if matches else ""


def whole_number(text: str, digits_max: int = DIGITS_MAX) -> int | None:
    """The number that ASCII digits write; None where the text is anything else, or has more of them.

    `int` alone takes the digits of every script, blanks and underscores. It raises ValueError for thousands of digits,
    and for `²`, which is one to `isdigit`.
    """
    return int(text) if text.isascii() and text.isdecimal() and len(text) <= digits_max else None
