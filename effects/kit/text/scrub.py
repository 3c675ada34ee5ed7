"""Sanitising of texts and reports for both databases: bounded, plain, without characters they cannot store.

Nothing here raises, so that the verdict is always written.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import msgspec

KEY_CHARS_MAX = 255  # of names and keys: an index of PostgreSQL takes at most 2,704 bytes
TEXT_CHARS_MAX = 4096
CODE_CHARS_MAX = 64
DETAIL_BYTES_MAX = 64 * 1024
DEPTH_MAX = 16
QUICK_DEPTH_MAX = 4
VALUES_MAX = 10_000
_INTEGER_MAX = 2**63  # beyond it JSON readers disagree

_TOO_DEEP = "[nested too deep]"
_TOO_MANY = "[too many values]"


def clean_text(value: str, chars_max: int = TEXT_CHARS_MAX) -> str:
    """The text without NUL and lone surrogates, cut at `chars_max` characters."""
    if type(value) is str and len(value) <= chars_max and value.isascii() and "\0" not in value:
        return value  # as most are
    text = str.__getitem__(value, slice(chars_max))
    return str.encode(text, "utf-8", "replace").decode().replace("\0", "\ufffd")


def clean_detail(detail: Mapping[str, Any], bytes_max: int = DETAIL_BYTES_MAX) -> dict[str, Any]:
    """Reduce a mapping to what JSON and both databases can store, at most 64 KiB of JSON.

    Long texts are cut, what is nested deeper than 16 is left out, and what JSON cannot hold is named by its class. What
    is too large even so is replaced by its size, under `dropped`; what cannot be read at all, by the error's class.
    """
    try:
        if type(detail) is dict and (copy := _copy_of_clean(detail, [bytes_max])) is not None:
            return copy
        plain = _Plain().of(detail, 0)
        size = len(msgspec.json.encode(plain))
    except BaseException as error:  # of the mapping's own methods
        return {"dropped": f"the detail cannot be read: {class_name(error)}"}
    if size > bytes_max:
        return {"dropped": f"the detail has {size:,} bytes; the limit is {bytes_max:,}"}
    return plain if isinstance(plain, dict) else {"dropped": "the detail is not a mapping"}


def class_name(value: object) -> str:
    """The name of a value's class, even if its metaclass overrides it."""
    return clean_text(type.__getattribute__(type(value), "__name__"), 128)


def _copy_of_clean(detail: dict[Any, Any], room: list[int], depth: int = 0) -> dict[str, Any] | None:
    """A copy of what has nothing to be cleaned and is small, as most details are; None where a glance does not show it.

    Args:
        room: how many bytes of JSON may still come; 6 for a character, and 32 for what is around a value, are enough.
    """
    if depth > QUICK_DEPTH_MAX:
        return None
    copy: dict[str, Any] = {}
    for key, item in detail.items():
        kind, value = type(item), item
        if type(key) is not str or len(key) > KEY_CHARS_MAX or not key.isascii() or "\0" in key:
            return None
        room[0] -= 32 + 6 * len(key)
        if kind is str:
            room[0] -= 6 * len(item)
            if len(item) > TEXT_CHARS_MAX or not item.isascii() or "\0" in item:
                return None
        elif kind is dict:
            value = _copy_of_clean(item, room, depth + 1)
            if value is None:
                return None
        elif not (
            item is None
            or kind is bool
            or (kind is int and -_INTEGER_MAX <= item < _INTEGER_MAX)
            or (kind is float and math.isfinite(item))
        ):
            return None
        if room[0] < 0:
            return None
        copy[key] = value
    return copy


class _Plain:
    """One walk over a value; it counts what it meets, so that a value that contains itself ends too."""

    def __init__(self) -> None:
        self._values = 0

    def of(self, value: Any, depth: int) -> Any:
        self._values += 1
        if depth > DEPTH_MAX:
            return _TOO_DEEP
        if isinstance(value, str):
            return clean_text(value)
        if isinstance(value, Mapping):
            return self._mapping(value, depth)
        if isinstance(value, list | tuple | set | frozenset):
            return self._list(value, depth)
        return _scalar(value) if value is None or isinstance(value, bool | int | float) else self._foreign(value, depth)

    def _mapping(self, value: Mapping[Any, Any], depth: int) -> dict[str, Any]:
        plain: dict[str, Any] = {}
        for key, item in value.items():
            if self._values > VALUES_MAX:
                plain["dropped"] = _TOO_MANY
                break
            plain[clean_text(key if isinstance(key, str) else repr(key), 255)] = self.of(item, depth + 1)
        return plain

    def _list(self, value: Any, depth: int) -> list[Any]:
        plain: list[Any] = []
        for item in value:
            if self._values > VALUES_MAX:
                plain.append(_TOO_MANY)
                break
            plain.append(self.of(item, depth + 1))
        return plain

    def _foreign(self, value: Any, depth: int) -> Any:
        """Moments, UUIDs, decimals, dataclasses and Structs as JSON writes them; anything else by its class."""
        try:
            builtin = msgspec.to_builtins(value)
        except BaseException:  # of the value's own methods
            return f"[{class_name(value)}]"
        return self.of(builtin, depth + 1)


def _scalar(value: Any) -> Any:
    if isinstance(value, float):
        number = float.__float__(value)
        return number if math.isfinite(number) else repr(number)
    if value is None or isinstance(value, bool):
        return value
    whole = int.__index__(value)
    return whole if -_INTEGER_MAX <= whole < _INTEGER_MAX else f"[{whole.bit_length()} bits]"
