"""What must not be shown: fields that a payload class declares sensitive, and how they are kept out of sight.

    @dataclass
    class Login:
        user: str
        code: Annotated[str, Sensitive]

Such a field is sealed in the database (`effects.keys.sealing`), opened only for the handler, left out of the
payload's `repr`, and redacted in the attempt's report. Here is also what else a look at a payload's class tells: which
field does not fit it (msgspec writes `$[...]` for any value of a mapping), and every type inside of it.
"""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache
from types import UnionType
from typing import (
    Annotated,
    Any,
    NewType,
    TypeGuard,
    TypeVar,
    Union,
    get_args,
    get_origin,
    get_type_hints,
    is_typeddict,
)
from urllib.parse import quote

import msgspec

HIDDEN = "[hidden]"
# Messages of msgspec and json that name types, positions and our own fields, and quote no value.
_NAMES_NO_VALUE = (
    "Expected `", "Object missing required field", "Object of type ", "Encoding objects of type ", "Out of range float",
    "Input data was truncated", "JSON is malformed",
)  # fmt: skip
_UNKNOWN_FIELD = re.compile(r"Object contains unknown field `([A-Za-z_][A-Za-z0-9_]{0,39})`", re.ASCII)  # else personal
_STRUCK_CHARS_MIN = 4  # redacting every "7" or "no" would hide the sentence and protect nothing
_WORD_CHARS_MAX = 16  # a longer word is a secret by its length, and hidden within another one too
_PLAIN = re.compile(r"[^\W\d]+|[0-9]+")  # letters alone, or digits alone
# A word, a name that is made of words, or a number; what `repr` and JSON write for a line's end is no part of one.
_NAME = re.compile(r"\\[nrt]|[^\W\d](?:\w|[.-](?=\w))*|[0-9]+")
_PATH = re.compile(r" - at `(\$[^`]*)`$")
_VALUE_OF_MAPPING = re.compile(r"\$((?:\.\w+)*)\[\.\.\.\]")
_FIELD_NAME = re.compile(r"[A-Za-z_]\w{0,63}", re.ASCII)  # another key may be personal, such as an address


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


def secret_texts(payload: Any, fields: Iterable[str], *, clear: Iterable[str] = ()) -> list[str]:
    """Every text in the sensitive fields of this payload, long ones first; not what its other fields hold in clear.

    Args:
        clear: further names that are no secret, although a sensitive field may hold the same text.
    """
    sealed = set(fields)
    values = [value for name, value in _fields_of(payload) if name in sealed]
    shown = {*clear, *_texts([value for name, value in _fields_of(payload) if name not in sealed])}
    texts = {text for text in _texts(values) if len(text) >= _STRUCK_CHARS_MIN} - shown
    return sorted({form for text in texts for form in _forms(text)}, key=len, reverse=True)


def _forms(text: str) -> tuple[str, ...]:
    """The text, and as `repr`, JSON and a URL write it."""
    in_url = quote(text, safe="", errors="replace")
    return text, repr(text)[1:-1], json.dumps(text)[1:-1], json.dumps(text, ensure_ascii=False)[1:-1], in_url


def redact(value: Any, secrets: Iterable[str]) -> Any:
    """The text, list or mapping with every secret in it replaced, wherever it stands.

    A secret that is a short plain word or a number is compared with whole words and numbers: `orders` hides neither
    `orders_ready` nor `orders.daily`.
    """
    texts = list(secrets)
    words = {text for text in texts if len(text) < _WORD_CHARS_MAX and _PLAIN.fullmatch(text)}
    return _redact(value, words, [text for text in texts if text not in words])


def _redact(value: Any, words: set[str], texts: Sequence[str]) -> Any:
    if isinstance(value, str):
        for text in texts:  # first: a word may be a part of one
            value = value.replace(text, HIDDEN)
        return _NAME.sub(lambda match: HIDDEN if match[0] in words else match[0], value) if words else value
    if isinstance(value, Mapping):
        return {_redact(name, words, texts): _redact(element, words, texts) for name, element in value.items()}
    if isinstance(value, list | tuple):
        return [_redact(element, words, texts) for element in value]
    if isinstance(value, int | float) and not isinstance(value, bool) and (str(value) in words or str(value) in texts):
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


def why_unfit(error: Exception, plain: object, kind: Any, *, strict: bool = True) -> str:
    """What a conversion of `plain` to `kind` found wrong, as `why_invalid`, with the names of fields in its path."""
    reason = why_invalid(error)
    if (at := _PATH.search(reason)) is None:
        return reason
    path = at[1]
    while (unnamed := _VALUE_OF_MAPPING.match(path)) is not None:
        names = unnamed[1].split(".")[1:]
        name = _wrong_field(str(error), plain, names, kind, strict=strict)
        if name is None:
            break
        path = f"{'.'.join(('$', *names, name))}{path[unnamed.end() :]}"
    return f"{reason[: at.start(1)]}{path}{reason[at.end(1) :]}"


def _wrong_field(text: str, plain: object, names: Sequence[str], kind: Any, *, strict: bool) -> str | None:
    """The field of the mapping at `names` that alone gives the same error."""
    for name, value in _mapping_at(plain, names).items():
        if not isinstance(name, str) or not _FIELD_NAME.fullmatch(name):
            continue
        try:
            msgspec.convert(_replaced(plain, names, {name: value}), kind, strict=strict)
        except Exception as error:  # of the class's own, too
            if str(error) == text:
                return name
    return None


def _mapping_at(plain: object, names: Sequence[str]) -> Mapping[Any, Any]:
    """Empty if there is no mapping, as for a set."""
    for name in names:
        plain = plain.get(name) if isinstance(plain, Mapping) else None
    return plain if isinstance(plain, Mapping) else {}


def _replaced(plain: Any, names: Sequence[str], inner: Mapping[str, Any]) -> Mapping[str, Any]:
    """The same with another mapping at `names`."""
    return {**plain, names[0]: _replaced(plain[names[0]], names[1:], inner)} if names else inner


def has_fields(kind: object) -> TypeGuard[type]:
    """Whether a class names the fields of a JSON object: a dataclass, a Struct, a TypedDict, a class of attrs."""
    return isinstance(kind, type) and (
        dataclasses.is_dataclass(kind)
        or issubclass(kind, msgspec.Struct)
        or is_typeddict(kind)
        or hasattr(kind, "__attrs_attrs__")
    )


def field_types(kind: type) -> dict[str, Any]:
    """The types of a class's fields, by their names in Python.

    Raises:
        TypeError, NameError: an annotation of the class cannot be resolved.
    """
    return get_type_hints(kind, include_extras=True)


def json_names(kind: type) -> dict[str, str]:
    """The names of fields in JSON, where they may differ from those in Python."""
    if issubclass(kind, msgspec.Struct):
        return dict(zip(kind.__struct_fields__, kind.__struct_encode_fields__, strict=True))
    return {}


def field_names(value: object) -> Iterator[str]:
    """The names of a value's fields in Python."""
    if isinstance(value, msgspec.Struct):
        yield from value.__struct_fields__
    elif dataclasses.is_dataclass(value):
        yield from (field.name for field in dataclasses.fields(value))
    else:
        yield from (attribute.name for attribute in getattr(type(value), "__attrs_attrs__", ()))


def alternatives(hint: object) -> Iterator[object]:
    """The types that a value of this one may be: those of a union, and what an alias or a NewType stands for."""
    named = _named_type(hint)
    if named is not None:
        yield from alternatives(named)
    elif get_origin(hint) is Annotated:
        yield from alternatives(get_args(hint)[0])
    elif get_origin(hint) in (Union, UnionType):
        for argument in get_args(hint):
            yield from alternatives(argument)
    else:
        yield hint


def object_class(hint: object) -> type | None:
    """The class with fields that a type is, or that it is an alias of with arguments, such as `Box[int]`."""
    kind = hint if isinstance(hint, type) and get_origin(hint) is None else get_origin(hint)
    return kind if has_fields(kind) else None


def parts(hint: object) -> Iterator[object]:
    """The types and marks directly inside of a type: arguments, fields, and what an alias or a NewType stands for.

    Raises:
        TypeError, NameError: as `field_types`.
    """
    yield from get_args(hint)
    yield from (inner for inner in (get_origin(hint), _named_type(hint)) if inner is not None)
    if has_fields(hint) or _is_named_tuple(hint):
        yield from field_types(hint).values()


def is_recursive(hint: object) -> bool:
    """Whether a type may be inside of itself: a class with fields, or an alias by name."""
    return isinstance(hint, type) or _named_type(hint) is not None


def _named_type(hint: object) -> object:
    """What a NewType, or an alias of a `type` statement, stands for."""
    if isinstance(hint, NewType):
        return hint.__supertype__
    is_alias = type(hint).__name__ == "TypeAliasType"  # of `typing` from Python 3.12 on, or of typing_extensions
    return getattr(hint, "__value__") if is_alias else None  # noqa: B009 - no class that mypy knows has it


def _is_named_tuple(kind: object) -> TypeGuard[type]:
    return isinstance(kind, type) and issubclass(kind, tuple) and hasattr(kind, "_fields")
