"""What must not be shown: fields that a payload class declares sensitive, and how they are kept out of sight.

    @dataclass
    class Login:
        user: str
        code: Annotated[str, Sensitive]

Such a field is sealed in the database (`effects.sealing`), opened only for the handler, left out of the
payload's `repr`, and redacted in the attempt's report.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from typing import Any, get_args, get_type_hints

import msgspec

HIDDEN = "[hidden]"
# Messages of msgspec and json that name types, positions and our own fields, and quote no value.
_NAMES_NO_VALUE = (
    "Expected `", "Object missing required field", "Object of type ", "Encoding objects of type ", "Out of range float",
    "Input data was truncated", "JSON is malformed",
)  # fmt: skip
_UNKNOWN_FIELD = re.compile(r"Object contains unknown field `([A-Za-z_][A-Za-z0-9_]{0,39})`", re.ASCII)  # else personal
_STRUCK_CHARS_MIN = 4  # redacting every "7" or "no" would hide the sentence and protect nothing


class Sensitive:
    """The mark in `Annotated[…, Sensitive]`: secret or personal.

    A field is sealed as a whole if the mark occurs anywhere in its type, in a nested class too. Idempotency,
    group and limit keys are stored and shown in clear: never derive one from a sensitive value.
    """


def sensitive_fields(payload: object) -> tuple[str, ...]:
    """The fields of a payload class that hold the mark, by their names in JSON.

    Raises:
        TypeError, NameError: an annotation of the class cannot be resolved.
    """
    return _sensitive_fields(payload) if isinstance(payload, type) and _has_fields(payload) else ()


@cache
def _sensitive_fields(payload: type) -> tuple[str, ...]:
    names = _json_names(payload)
    hints = get_type_hints(payload, include_extras=True)
    return tuple(names.get(name, name) for name, hint in hints.items() if _marked(hint, frozenset({payload})))


def hide_in_repr(payload: type) -> None:
    """Make the class, and those nested in it, leave its sensitive fields out of `repr`.

    It replaces the `__repr__` of the class, which traceback viewers, log lines and f-strings all use.
    """
    for nested in _classes(payload, set()):
        hidden = _own_sensitive(nested)
        if hidden:
            _replace_repr(nested, hidden)


def repr_without(value: object, hidden: Iterable[str]) -> str:
    """`Class(field=…, …)` with these fields hidden."""
    hidden = set(hidden)
    shown = (f"{name}={HIDDEN if name in hidden else repr(getattr(value, name, None))}" for name in _names(value))
    return f"{type(value).__name__}({', '.join(shown)})"


def secret_texts(payload: Any, fields: Iterable[str]) -> list[str]:
    """Every text in the sensitive fields of this payload, long ones first."""
    sealed = set(fields)
    values = [value for name, value in _fields_of(payload) if name in sealed]
    texts = {text for text in _texts(values) if len(text) >= _STRUCK_CHARS_MIN}
    return sorted(texts, key=len, reverse=True)


def redact(value: Any, secrets: Iterable[str]) -> Any:
    """The text, list or mapping with every secret in it replaced."""
    if isinstance(value, str):
        for secret in secrets:
            value = value.replace(secret, HIDDEN)
        return value
    if isinstance(value, Mapping):
        return {redact(name, secrets): redact(element, secrets) for name, element in value.items()}
    if isinstance(value, list | tuple):
        return [redact(element, secrets) for element in value]
    if isinstance(value, int | float) and not isinstance(value, bool) and str(value) in set(secrets):
        return HIDDEN
    return value


def why_invalid(error: Exception) -> str:
    """What a conversion found wrong, without the value that it found."""
    text = str(error)
    if text.startswith(_NAMES_NO_VALUE):
        return text
    _, at, path = text.rpartition(" - at `$")
    unknown = _UNKNOWN_FIELD.match(text)
    if unknown is not None:
        what = f"there is no field `{unknown[1]}`"
    else:
        what = "a field is unknown" if text.startswith("Object contains unknown field") else "a value is not allowed"
    return f"{what}{f' - at `${path}' if at else ''} ({type(error).__name__})"


# -- the classes -----------------------------------------------------------------------------------------


def _has_fields(kind: object) -> bool:
    return isinstance(kind, type) and (dataclasses.is_dataclass(kind) or issubclass(kind, msgspec.Struct))


def _json_names(payload: type) -> dict[str, str]:
    if issubclass(payload, msgspec.Struct):
        return {field.name: field.encode_name for field in msgspec.structs.fields(payload)}
    return {}


def _names(value: object) -> Iterator[str]:
    if isinstance(value, msgspec.Struct):
        yield from value.__struct_fields__
    else:
        yield from (field.name for field in dataclasses.fields(value))  # type: ignore[arg-type]


def _marked(hint: object, seen: frozenset[object]) -> bool:
    if hint is Sensitive or isinstance(hint, Sensitive):
        return True
    if _has_fields(hint) and hint not in seen:
        inner = get_type_hints(hint, include_extras=True)
        return any(_marked(field_type, seen | {hint}) for field_type in inner.values())
    return any(_marked(argument, seen) for argument in (*get_args(hint), *getattr(hint, "__metadata__", ())))


def _classes(hint: object, seen: set[type]) -> Iterator[type]:
    """The classes with fields in a type, each once."""
    if isinstance(hint, type) and _has_fields(hint):
        if hint in seen:
            return
        seen.add(hint)
        yield hint
        for inner in get_type_hints(hint, include_extras=True).values():
            yield from _classes(inner, seen)
    else:
        for inner in get_args(hint):
            yield from _classes(inner, seen)


def _own_sensitive(payload: type) -> frozenset[str]:
    hints = get_type_hints(payload, include_extras=True)
    return frozenset(name for name, hint in hints.items() if _marked(hint, frozenset({payload})))


def _replace_repr(payload: type, hidden: frozenset[str]) -> None:
    def show(self: object) -> str:
        return repr_without(self, hidden)

    payload.__repr__ = show  # type: ignore[assignment, method-assign]


def _fields_of(payload: Any) -> Iterator[tuple[str, Any]]:
    """The fields of a payload by their names in JSON."""
    if isinstance(payload, Mapping):
        yield from payload.items()
    else:
        names = _json_names(type(payload))
        yield from ((names.get(name, name), getattr(payload, name)) for name in _names(payload))


def _texts(value: object) -> Iterator[str]:
    """Every text in a value, the keys of mappings too; not the names of a class's fields, which hide nothing."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for name, element in value.items():
            yield from _texts(name)
            yield from _texts(element)
    elif isinstance(value, list | tuple | set | frozenset):
        for element in value:
            yield from _texts(element)
    elif _has_fields(type(value)):
        for _, element in _fields_of(value):
            yield from _texts(element)
    elif value is not None and not isinstance(value, bool):
        yield str(value)
