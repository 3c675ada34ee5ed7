"""The params of a report: what its function takes, and what a request gives."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import is_dataclass
from typing import Any, get_type_hints, is_typeddict

import msgspec

from effects.extend import described, nearest, why_unfit
from effects_reports.errors import DefinitionInvalid, ParamsInvalid
from effects_reports.source.since import Since

AS_OF, SINCE, AFTER = "as_of", "since", "after"
_MISSING = inspect.Parameter.empty


def injected_names(source: Callable[..., Any]) -> list[str]:
    """Arguments that are no params: the time of the plan, what is new since the last run, an iterable's cursor."""
    takes = {
        AS_OF: AS_OF in inspect.signature(source).parameters,
        SINCE: takes_since(source),
        AFTER: takes_after(source),
    }
    return [name for name, is_taken in takes.items() if is_taken]


def takes_since(source: Callable[..., Any]) -> bool:
    """Whether it has an argument `since`, annotated by `Since` or not at all: one of another type is a param."""
    return _is_ours(source, SINCE, Since.__name__, Since)


def takes_after(source: Callable[..., Any]) -> bool:
    """Whether it has an argument `after`, annotated by `Cursor` or not at all: one of another type is a param."""
    return _is_ours(source, AFTER, "Cursor")


def check_after(who: str, source: Callable[..., Any], iterable: bool) -> None:
    """Refuse an argument `after` that might be meant as a cursor or as a param.

    Raises:
        DefinitionInvalid: it is a cursor by its type and the function no iterable's, or the reverse.
    """
    if AFTER in inspect.signature(source).parameters and iterable != takes_after(source):
        raise DefinitionInvalid(
            f"{who}: the argument `after` of an iterable is its cursor, and has no type or Cursor; that of a select() "
            "is a param, and has its type"
        )


def _is_ours(source: Callable[..., Any], name: str, class_name: str, *classes: type[Any]) -> bool:
    argument = inspect.signature(source).parameters.get(name)
    if argument is None:
        return False
    hint = _hints(source).get(name, argument.annotation)
    return hint in (_MISSING, Any, *classes) or (isinstance(hint, str) and hint.rpartition(".")[2] == class_name)


def takes_params(source: Callable[..., Any]) -> bool:
    """Whether the function has arguments of its own."""
    return bool(_own(source))


def takes_keywords(source: Callable[..., Any]) -> bool:
    """Whether the function names its params one by one, as keyword-only arguments."""
    return any(argument.kind is argument.KEYWORD_ONLY for argument in _own(source))


def _own(source: Callable[..., Any]) -> list[inspect.Parameter]:
    ours = injected_names(source)
    return [argument for name, argument in inspect.signature(source).parameters.items() if name not in ours]


def declared_by(source: Callable[..., Any]) -> type[Any] | None:
    """The class of the params by the function's own annotations; None where it names none.

    That of its one argument, if it is a dataclass, a Struct or a TypedDict; or one of its keyword-only arguments.
    """
    hints = _hints(source)
    if takes_keywords(source):
        fields = [_field(argument, hints.get(argument.name, Any)) for argument in _own(source)]
        return msgspec.defstruct("Params", fields, frozen=True, kw_only=True)
    kind = next((hints.get(argument.name) for argument in _own(source)), None)
    return kind if isinstance(kind, type) and has_fields(kind) else None


def has_fields(kind: type[Any]) -> bool:
    return is_dataclass(kind) or issubclass(kind, msgspec.Struct) or is_typeddict(kind)


def _plain(who: str, values: Any) -> Mapping[Any, Any]:
    plain = {} if values is None else values if isinstance(values, Mapping) else _builtins(values)
    if not isinstance(plain, Mapping):
        raise ParamsInvalid(f"{who}: params is {described(values)}; give a dict, a dataclass or a struct")
    return plain


def _builtins(values: Any) -> Any:
    try:
        return msgspec.to_builtins(values)
    except TypeError:
        return None


def read_params(who: str, source: Callable[..., Any], kind: type[Any] | None, values: Any) -> Any:
    """What a request gives, as the function takes it.

    Raises:
        ParamsInvalid: it does not fit; names the fields.
    """
    plain = _plain(who, values)
    if plain and not takes_params(source):
        raise ParamsInvalid(f"{who} takes no params: {', '.join(map(str, plain))} are given")
    schema = kind or dict[str, Any]
    names = _names(schema)
    if kind is not None and (unknown := [str(name) for name in plain if name not in names]):
        raise ParamsInvalid(f"{who} takes no param {unknown[0]!r}{_taken(names)}{nearest(unknown[0], names)}")
    try:
        return msgspec.convert(plain, schema, strict=False)
    except (msgspec.ValidationError, TypeError) as error:
        reason = why_unfit(error, plain, schema, strict=False)
        raise ParamsInvalid(f"{who}: the params do not fit: {reason}{_taken(names)}") from None


def named_params(source: Callable[..., Any], kind: type[Any] | None, typed: Any) -> dict[str, Any]:
    """Of params that several functions share, those that this one names; all where it takes a dict of any."""
    plain: dict[str, Any] = msgspec.to_builtins(typed)
    if kind is None:
        return plain if takes_params(source) else {}
    return {name: value for name, value in plain.items() if name in _names(kind)}


def _hints(source: Callable[..., Any]) -> dict[str, Any]:
    try:
        return get_type_hints(source)
    except (NameError, TypeError):  # a class that only type checkers see
        return {}


def _field(argument: inspect.Parameter, kind: Any) -> Any:
    if argument.default is _MISSING:
        return (argument.name, kind)
    return (argument.name, kind, argument.default)


def _names(kind: Any) -> list[str]:
    return [field.encode_name for field in getattr(msgspec.inspect.type_info(kind), "fields", ())]


def _taken(names: list[str]) -> str:
    """` (it takes day, region)`."""
    return f" (it takes {', '.join(names)})" if names else ""
