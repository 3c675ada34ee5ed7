"""Key values as JSON and back: the bounds of a chunk outlive the process that found them."""

from __future__ import annotations

import base64
import datetime as dt
import decimal
import math
import uuid
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import msgspec

from effects.extend import described
from effects_reports.errors import ReportRefused

Key: TypeAlias = tuple[Any, ...]

# What JSON has no word for is written as {"type": text}.
_WRITE: dict[type, tuple[str, Callable[[Any], str]]] = {
    dt.datetime: ("datetime", dt.datetime.isoformat),
    dt.date: ("date", dt.date.isoformat),
    dt.time: ("time", dt.time.isoformat),
    decimal.Decimal: ("decimal", str),
    uuid.UUID: ("uuid", str),
    bytes: ("bytes", lambda value: base64.b64encode(value).decode()),
}
_READ: dict[str, Callable[[str], Any]] = {
    "datetime": dt.datetime.fromisoformat,
    "date": dt.date.fromisoformat,
    "time": dt.time.fromisoformat,
    "decimal": decimal.Decimal,
    "uuid": uuid.UUID,
    "bytes": base64.b64decode,
    "float": float,
}


def key_to_json(key: Sequence[Any]) -> list[Any]:
    """A key as JSON can hold it.

    Raises:
        ReportRefused: a value is of a type that cannot be a bound.
    """
    return [_write(value) for value in key]


def _write(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return {"float": repr(value)}
    if isinstance(value, str):
        return str.__str__(value)  # of a subclass too: a moment beyond Python, an Enum's member
    if isinstance(value, bool | int | float):
        return value
    try:
        name, write = _WRITE[type(value)]
    except KeyError:
        raise ReportRefused(
            f"a key or cursor holds {described(value)}; give numbers, texts, times, UUIDs or bytes",
            code="key_type",
        ) from None
    return {name: write(value)}


def key_from_json(text: str | None) -> Key | None:
    """The key that `key_to_json` wrote; None for an open end."""
    if text is None:
        return None
    return tuple(_read(value) for value in msgspec.json.decode(text))


def _read(value: Any) -> Any:
    if not isinstance(value, dict):
        return value
    [(name, text)] = value.items()
    return _READ[name](text)
