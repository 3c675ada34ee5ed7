"""The JSON text of a payload that is a dict: what `json` makes of it, most of it in a quarter of the time."""

from __future__ import annotations

import json
from types import NoneType
from typing import Any

import msgspec

_JSON = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":"))  # construction is expensive
_NAMES, _PLAIN = frozenset([str]), frozenset([str, int, bool, NoneType])  # msgspec writes these as `json` does


def encode_dict(payload: Any) -> str:
    """Encode it compactly.

    Raises:
        TypeError, ValueError: something in it has no JSON, such as a date, a number that is not one, or a circle.
        UnicodeEncodeError: a text has half a character.
    """
    is_plain = type(payload) is dict and _PLAIN.issuperset(map(type, payload.values()))
    if is_plain and _NAMES.issuperset(map(type, payload)):
        return msgspec.json.encode(payload).decode()
    return _JSON.encode(payload)
