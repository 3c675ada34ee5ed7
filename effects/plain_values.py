"""What an app gives as data, turned into what JSON has: one conversion for mail contexts and webhook data.

Moments, dates, durations, UUIDs and decimals become texts (`1.10` stays `"1.10"`), bytes base64, sets and tuples lists;
dataclasses, msgspec structs, attrs classes, pydantic models and named mappings become objects.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Protocol, TypeAlias

import msgspec

from effects.scrub import class_name


class DataclassInstance(Protocol):
    """An instance of any dataclass."""

    __dataclass_fields__: ClassVar[dict[str, Any]]


class PydanticModel(Protocol):
    """A pydantic model, of version 2."""

    def model_dump(self, *, mode: str) -> dict[str, Any]: ...


ObjectData: TypeAlias = Mapping[str, Any] | DataclassInstance | msgspec.Struct | PydanticModel


def to_plain(value: Any) -> Any:
    """Convert a value, and all that it holds, to dicts with text keys, lists, texts, numbers, booleans and None.

    Raises:
        TypeError: a value has no such form; names its class, never the value.
        RecursionError: it is nested too deeply, or holds itself.
    """
    return msgspec.to_builtins(value, str_keys=True, enc_hook=_beyond_msgspec)


def _beyond_msgspec(value: Any) -> Any:
    if hasattr(type(value), "model_dump"):
        return value.model_dump(mode="json")
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, str):  # a subclass, such as Markup
        return str.__str__(value)
    if isinstance(value, int):
        return int.__int__(value)
    if isinstance(value, float):
        return float.__float__(value)
    raise TypeError(f"{class_name(value)} has no JSON form")
