"""The part of a file that a request asks for (RFC 9110, section 14)."""

from __future__ import annotations

import re

_SINGLE_RANGE = re.compile(r"bytes=\s*([0-9]{0,19})-([0-9]{0,19})\s*")


class UnsatisfiableError(ValueError):
    """The range begins behind the end of the file."""


def asked_range(header: str | None, size: int) -> tuple[int, int] | None:
    """(first byte, end) of the only range that a Range header names; None for the whole file.

    Several ranges, another unit and what is no range are answered with the whole file, as the standard allows.

    Raises:
        UnsatisfiableError: there is nothing in it.
    """
    match = _SINGLE_RANGE.fullmatch(header) if header else None
    if match is None or match[1] == match[2] == "":
        return None
    if match[1] == "":  # the last so many
        start, stop = size - min(int(match[2]), size), size
    else:
        start, stop = int(match[1]), min(int(match[2] or size) + bool(match[2]), size)
        if match[2] and int(match[2]) < start:
            return None
    if start >= stop:
        raise UnsatisfiableError
    return start, stop
