"""Values as a workbook's options want them, before they are cells."""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence
from typing import Any

from effects_reports.formats.cells import TEXT_UNITS_MAX
from effects_reports.formats.values import text_of

_LONG_KINDS = (str, dict, list, tuple)
_CHARS_ALWAYS_FIT = TEXT_UNITS_MAX // 2
_MARK = "…"


def in_zone(values: Sequence[Any], zone: dt.tzinfo) -> Sequence[Any]:
    """Moments that have a zone as a clock in this zone shows them."""
    if not any(issubclass(kind, dt.datetime) for kind in set(map(type, values))):
        return values
    return [_local(value, zone) if isinstance(value, dt.datetime) and value.tzinfo else value for value in values]


def _local(value: dt.datetime, zone: dt.tzinfo) -> dt.datetime:
    try:
        return value.astimezone(zone).replace(tzinfo=None)
    except OverflowError:  # at an end of Python's calendar
        return value.replace(tzinfo=None)


def shortened(values: Sequence[Any]) -> tuple[Sequence[Any], int]:
    """The values with texts that fit a cell, and how many were too long."""
    kinds = set(map(type, values))
    if kinds.isdisjoint(_LONG_KINDS) or (kinds == {str} and max(map(len, values)) <= _CHARS_ALWAYS_FIT):
        return values, 0
    short = [_short(value) if isinstance(value, _LONG_KINDS) else None for value in values]
    fitting = [value if text is None else text for value, text in zip(values, short, strict=True)]
    return fitting, sum(text is not None for text in short)


def _short(value: Any) -> str | None:
    """Its text, cut; None where it fits."""
    text = text_of(value).replace("\r\n", "\n")
    if len(text) <= _CHARS_ALWAYS_FIT:
        return None
    units = text.encode("utf-16-le", "surrogatepass")
    if len(units) // 2 <= TEXT_UNITS_MAX:
        return None
    return units[: 2 * (TEXT_UNITS_MAX - len(_MARK))].decode("utf-16-le", "ignore") + _MARK
