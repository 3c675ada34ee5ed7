"""What an app gives as data, turned into what JSON has: one conversion for mail contexts and webhook data.

Moments, dates, durations, UUIDs and decimals become texts (`1.10` stays `"1.10"`), bytes base64, sets and tuples lists;
dataclasses, msgspec structs, attrs classes, pydantic models and named mappings become objects.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, ClassVar, Protocol, TypeAlias

import msgspec

from effects.kit.text.scrub import class_name

_DEPTH_MAX = 50
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_-]{0,39}")
# What marks a class with fields → their names.
_FIELDS: dict[str, Callable[[Any], Iterable[str]]] = {
    "__struct_fields__": lambda kind: kind.__struct_fields__,
    "model_fields": lambda kind: kind.model_fields,
    "__dataclass_fields__": lambda kind: kind.__dataclass_fields__,
    "__attrs_attrs__": lambda kind: (attribute.name for attribute in kind.__attrs_attrs__),
}


NOT_JSON = (TypeError, ValueError, RecursionError)


class NoJsonForm(TypeError):
    """A value has no form in JSON. The text names its class alone."""


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
        NoJsonForm: a value has no such form.
        RecursionError: it is nested too deeply, or holds itself.
    """
    return msgspec.to_builtins(value, str_keys=True, enc_hook=_beyond_msgspec)


def _json_of(value: Any) -> str:
    return msgspec.json.encode(value, enc_hook=to_plain).decode()


def require_json(
    what: str, value: Any, error: type[Exception], *, encode: Callable[[Any], str] = _json_of, hint: str = ""
) -> str:
    """Encode a value as JSON.

    Args:
        encode: how. Default: by msgspec, what it does not know by `to_plain`.
        hint: the end of the error.

    Raises:
        `error`, if it has no such form: names the part of `what` and why, and does not quote it.
    """
    try:
        return encode(value)
    except NOT_JSON as fault:
        raise error(f"{what}{path_of_fault(value, encode)}: {_why_not_json(fault)}{hint}") from None


def _why_not_json(error: Exception) -> str:
    if isinstance(error, RecursionError):
        return "it is nested too deeply for JSON, or holds itself"
    if isinstance(error, TypeError):  # names the class
        return str(error)
    if isinstance(error, UnicodeEncodeError):
        return "half of a surrogate pair, which UTF-8 cannot carry"
    return "an integer of too many digits" if "digits" in str(error) else "NaN and infinities are not JSON"


def path_of_fault(value: Any, attempt: Callable[[Any], object]) -> str:
    """The path, such as `.lines[3].price`, to the smallest part of a value with which an attempt fails.

    Empty for the value itself. A key is shown where it is a name; any other, as an address may be, is `[…]`.

    Args:
        attempt: a function that raises if a value cannot be used.
    """
    path = ""
    for _ in range(_DEPTH_MAX):
        part = next(((step, child) for step, child in _parts(value) if _fails(attempt, child)), None)
        if part is None:
            return path
        path, value = f"{path}{part[0]}", part[1]
    return ""  # it holds itself, or might


def _fails(attempt: Callable[[Any], object], value: Any) -> bool:
    try:
        attempt(value)
    except NOT_JSON:
        return True
    return False


def _parts(value: Any) -> Iterator[tuple[str, Any]]:
    """What a value holds, each with its step in a path."""
    if isinstance(value, Mapping):
        yield from ((_step(key), child) for key, child in value.items())
    elif isinstance(value, list | tuple | set | frozenset):
        yield from ((f"[{index}]", child) for index, child in enumerate(value))
    else:
        names = next((names(type(value)) for has, names in _FIELDS.items() if hasattr(type(value), has)), ())
        yield from ((f".{name}", getattr(value, name)) for name in names if hasattr(value, name))


def _step(key: object) -> str:
    return f".{key}" if isinstance(key, str) and _NAME.fullmatch(key) else "[…]"


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
    raise NoJsonForm(f"{class_name(value)} has no JSON form")
