"""Numbers in texts of people, headers and rows."""

from __future__ import annotations

DIGITS_MAX = 18  # what a column of 64 bits takes, whatever the digits


def whole_number(text: str, digits_max: int = DIGITS_MAX) -> int | None:
    """The number that ASCII digits write; None where the text is anything else, or has more of them.

    `int` alone takes the digits of every script, blanks and underscores. It raises ValueError for thousands of digits,
    and for `²`, which is one to `isdigit`.
    """
    return int(text) if text.isascii() and text.isdecimal() and len(text) <= digits_max else None
