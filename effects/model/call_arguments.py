"""The arguments of a job function as a payload: the JSON object of what a call gives, by the parameters' names.

A row holds what its call gave and no more: what it leaves out is the default of the code that carries it out.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, get_args, get_type_hints

import msgspec

from effects.errors import PayloadInvalid
from effects.kit.plain_values import to_plain
from effects.kit.text.wording import with_article
from effects.model.job import Attempt
from effects.model.payload_codec import PayloadCodec, json_of

_BY_NAME = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
_MISSING = re.compile("Object missing required field(?! `[^`]*` - at)")  # of the arguments, and of nothing in them
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,39}")  # another may be personal, such as an address


class NotAnArgument(TypeError):
    """A parameter that no row could hold."""


class ArgumentUnknown(PayloadInvalid):
    """A stored job has an argument that this code does not know: a newer release may."""


def takes_attempt(function: Callable[..., Any], names: Mapping[str, Any]) -> bool:
    """Whether the function's first parameter is annotated `Attempt`.

    Args:
        names: what annotations may refer to besides the function's module.
    """
    first = next(iter(inspect.signature(function).parameters), None)
    return first is not None and _hints(function, names).get(first) is Attempt


def arguments_class(function: Callable[..., Any], names: Mapping[str, Any]) -> type[msgspec.Struct]:
    """Make a class of the parameters of a function, but for its Attempt.

    Raises:
        NotAnArgument: says which parameter cannot be an argument, and why.
        NameError, TypeError, SyntaxError: an annotation cannot be read.
    """
    hints = _hints(function, names)
    parameters = list(inspect.signature(function).parameters.values())[takes_attempt(function, names) :]
    for parameter in parameters:
        if (why := _why_no_argument(parameter, hints.get(parameter.name))) is not None:
            raise NotAnArgument(f"its parameter {parameter.name} {why}")
    fields = [(each.name, _plain_hint(hints[each.name]), _default(each)) for each in parameters]
    name, module = str(getattr(function, "__name__", "arguments")), getattr(function, "__module__", None)
    return msgspec.defstruct(name, fields, kw_only=True, forbid_unknown_fields=True, module=module)


def _hints(function: Callable[..., Any], names: Mapping[str, Any]) -> dict[str, Any]:
    return get_type_hints(inspect.unwrap(function), localns=dict(names), include_extras=True)


def _plain_hint(hint: Any) -> Any:
    """A mapping of any kind is a dict."""
    return dict if hint is Mapping else hint


def _default(parameter: inspect.Parameter) -> Any:
    if parameter.default is parameter.empty:
        return msgspec.NODEFAULT
    return msgspec.field(default_factory=lambda: parameter.default)


def _why_no_argument(parameter: inspect.Parameter, hint: Any) -> str | None:
    if parameter.kind not in _BY_NAME:
        return f"is {parameter.kind.description}: a row holds arguments by their names; give each a name of its own"
    if hint is None or parameter.annotation is parameter.empty:
        return "has no annotation: write its type, such as int, date, dict, or a dataclass"
    if hint is Attempt or Attempt in get_args(hint):
        return "is the attempt: put it first, annotated Attempt and nothing else"
    info = msgspec.inspect.type_info(_plain_hint(hint))
    kinds = [each.cls for each in getattr(info, "types", (info,)) if isinstance(each, msgspec.inspect.CustomType)]
    if kinds and not is_model(kinds[0]):
        kind = with_article(kinds[0].__name__)
        return f"is {kind}, which cannot be made of JSON: give an id, and look it up in the function"
    return None


def is_model(kind: object) -> bool:
    """Whether it is a class of models, as pydantic's, that makes itself of JSON."""
    return hasattr(kind, "model_validate_json")


def _made_of_json(kind: Any, value: Any) -> Any:
    if not is_model(kind):
        raise NotImplementedError
    return kind.model_validate_json(msgspec.json.encode(value))


class ArgumentsCodec(PayloadCodec[Any]):
    """Of one job function.

    Args:
        job_type: its name, for errors.
        kind: of `arguments_class`.
        declared: names the function and its place, for errors.
    """

    def __init__(self, job_type: str, kind: type[msgspec.Struct], declared: str) -> None:
        super().__init__(job_type, kind, _made_of_json)
        self._declared, self._names = declared, kind.__struct_fields__

    def checked(self, payload: Any) -> tuple[Any, str]:
        """Check arguments; gives them with their defaults, and the JSON text of those that are given.

        Raises:
            PayloadInvalid: names the argument.
        """
        if (unknown := self._unknown(payload)) is not None:
            raise self._invalid(f"it has no argument {unknown}; it takes {', '.join(self._names) or 'none'}")
        return super().checked(payload)

    def decode(self, text: str) -> Any:
        """The arguments of a stored job; those that it leaves out have their defaults.

        Raises:
            ArgumentUnknown: it has others, too.
            PayloadInvalid: one is missing that has no default, or is of another type.
        """
        try:
            return super().decode(text)
        except PayloadInvalid:
            with suppress(ValueError):
                if (unknown := self._unknown(msgspec.json.decode(text))) is not None:
                    raise ArgumentUnknown(self._words(f"it has no argument {unknown}")) from None
            raise

    def _encode(self, payload: Any) -> tuple[Any, str]:
        plain = to_plain(payload)
        typed = self._convert(plain)
        return typed, json_of({name: getattr(typed, name) for name in plain})

    def _unknown(self, payload: object) -> str | None:
        names = payload if isinstance(payload, Mapping) else ()
        unknown = [name for name in names if name not in self._names]
        return next((str(name) if _NAME.fullmatch(str(name)) else "of such a name" for name in unknown), None)

    def _invalid(self, problem: str) -> PayloadInvalid:
        return PayloadInvalid(self._words(problem))

    def _words(self, problem: str) -> str:
        what = _MISSING.sub("there is no argument", problem.replace("payload is", "arguments are"))
        return f"{self._job_type}, {self._declared}: {what}"
