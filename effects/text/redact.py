"""What must not be shown: fields that a payload class declares sensitive, and how they are kept out of sight.

    @dataclass
    class Login:
        user: str
        code: Annotated[str, Sensitive]

Such a field is sealed in the database (`effects.secrets.sealing`), opened only for the handler, left out of the
payload's `repr`, and redacted in the attempt's report.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cache
from typing import Any, TypeVar, get_args

from effects.text.payload_types import (
    alternatives,
    field_names,
    field_types,
    has_fields,
    is_recursive,
    json_names,
    object_class,
    parts,
)

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
    """The fields of a payload class that hold the mark, by their names in JSON; of a union, those of each class.

    Raises:
        TypeError, NameError: an annotation of the class cannot be resolved.
    """
    names: dict[str, None] = {}
    for hint in alternatives(payload):
        if (kind := object_class(hint)) is not None:
            in_json = json_names(kind)
            names |= {in_json.get(name, name): None for name in _sensitive_fields(kind, _has_marked_argument(hint))}
    return tuple(names)


def has_mark_outside_of_fields(payload: object) -> bool:
    """Whether a payload's type holds the mark where no name of a field says what to seal, as in `dict[str, Secret]`.

    Raises:
        TypeError, NameError: as `sensitive_fields`.
    """
    return any(object_class(hint) is None and _holds_mark(hint) for hint in alternatives(payload))


def hide_in_repr(payload: object) -> None:
    """Make the class, and those nested in it, leave its sensitive fields out of `repr`.

    It replaces the `__repr__` of the class, which traceback viewers, log lines and f-strings all use.
    """
    hidden: dict[type, set[str]] = {}
    for kind, is_argument_marked in _classes(payload, set()):
        hidden.setdefault(kind, set()).update(_sensitive_fields(kind, is_argument_marked))
    for kind, names in hidden.items():
        if names:
            _replace_repr(kind, frozenset(names))


def repr_without(value: object, hidden: Iterable[str]) -> str:
    """`Class(field=…, …)` with these fields hidden."""
    hidden = set(hidden)
    shown = (f"{name}={HIDDEN if name in hidden else repr(getattr(value, name, None))}" for name in field_names(value))
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


@cache
def _sensitive_fields(kind: type, is_argument_marked: bool) -> tuple[str, ...]:
    """The names in Python of a class's fields that hold the mark.

    Args:
        is_argument_marked: of a generic class: what it has of the type of a variable is sensitive, too.
    """
    return tuple(
        name
        for name, hint in field_types(kind).items()
        if _holds(hint, _is_mark, {kind}) or (is_argument_marked and _holds(hint, _is_type_variable, {kind}))
    )


def _has_marked_argument(hint: object) -> bool:
    return any(_holds_mark(argument) for argument in get_args(hint))


def _holds_mark(hint: object) -> bool:
    return _holds(hint, _is_mark, set())


def _is_mark(part: object) -> bool:
    return part is Sensitive or isinstance(part, Sensitive)


def _is_type_variable(part: object) -> bool:
    return isinstance(part, TypeVar)


def _holds(hint: object, is_wanted: Callable[[object], bool], seen: set[object]) -> bool:
    """Whether a type is, or has anywhere inside of it, what is wanted. `seen`: the types that were looked into."""
    if is_wanted(hint):
        return True
    if is_recursive(hint):
        if hint in seen:
            return False
        seen.add(hint)
    return any(_holds(part, is_wanted, seen) for part in parts(hint))


def _classes(hint: object, seen: set[object]) -> Iterator[tuple[type, bool]]:
    """The classes with fields in a type, and whether each is one of a marked argument."""
    if (kind := object_class(hint)) is not None:
        yield kind, _has_marked_argument(hint)
    if is_recursive(hint):
        if hint in seen:
            return
        seen.add(hint)
    for part in parts(hint):
        yield from _classes(part, seen)


def _replace_repr(payload: type, hidden: frozenset[str]) -> None:
    def show(self: object) -> str:
        return repr_without(self, hidden)

    payload.__repr__ = show  # type: ignore[assignment, method-assign]


def _fields_of(payload: Any) -> Iterator[tuple[str, Any]]:
    """The fields of a payload by their names in JSON."""
    if isinstance(payload, Mapping):
        yield from payload.items()
    else:
        names = json_names(type(payload))
        yield from ((names.get(name, name), getattr(payload, name)) for name in field_names(payload))


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
    elif has_fields(type(value)):
        for _, element in _fields_of(value):
            yield from _texts(element)
    elif value is not None and not isinstance(value, bool):
        yield str(value)
