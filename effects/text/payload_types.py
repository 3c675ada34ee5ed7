"""What the type of a payload is made of: the classes that its JSON object may be, and every type inside of them."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from types import UnionType
from typing import Annotated, Any, NewType, TypeGuard, Union, get_args, get_origin, get_type_hints, is_typeddict

import msgspec


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
        return {field.name: field.encode_name for field in msgspec.structs.fields(kind)}
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
