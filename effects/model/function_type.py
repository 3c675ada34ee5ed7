"""Job types that are made of a function: its arguments, its policies, and what cannot be one.

A payload is the JSON object of what a call gives, by the names of the parameters. A row holds that and no more: what a
call leaves out is the default of the code that carries it out.
"""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import cached_property
from types import CoroutineType
from typing import Any, Literal, TypedDict, get_args, get_type_hints

import msgspec

from effects.errors import ConfigurationError, PayloadInvalid
from effects.kit.frames import relative
from effects.kit.plain_values import to_plain
from effects.kit.text.scrub import class_name
from effects.kit.text.unsafe import nearest
from effects.kit.text.wording import described, with_article
from effects.model.job import Attempt
from effects.model.job_type import JobType, ResultPolicy
from effects.model.ledger import Ledger
from effects.model.outcome import OUTCOMES, Done, HandlerAnswer
from effects.model.payload_codec import PayloadCodec, json_of
from effects.model.schedules import Schedule
from effects.retry import OnUnknown, RetryPolicy

Release = Literal["before", "manual"]
_RELEASES = ("before", "manual")


_BY_NAME = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
_MISSING = re.compile("Object missing required field(?! `[^`]*` - at)")  # of the arguments, and of nothing in them
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,39}")  # another may be personal, such as an address


class JobPolicies(TypedDict, total=False):
    """The policies of a job type, as keyword arguments; see `JobType` for each."""

    queue: str
    priority: int
    fair: bool
    reserved_share: float
    failing_after_seconds: float | None
    retry: RetryPolicy
    time_limit_seconds: float
    enqueues_more: bool
    on_unknown: OnUnknown
    unknown_after_seconds: float
    ledger: Ledger | None
    schedule: Schedule | None
    retention_days: float | None
    retention_effects_days: float | None
    keep_error_text: bool | None
    placeholders: tuple[str, ...]
    captured_in_tests: bool
    internal: bool
    trusted_fields: tuple[str, ...]


# What others call it, or where it belongs → what to write.
_ELSEWHERE = {
    **dict.fromkeys(("max_attempts", "max_retries", "retries", "attempts"), "retry=RetryPolicy(max_attempts=…)"),
    **dict.fromkeys(("backoff", "retry_backoff"), "retry=Exponential(…), or another policy of effects.retry"),
    **dict.fromkeys(("timeout", "time_limit", "timeout_seconds"), "time_limit_seconds="),
    **dict.fromkeys(("key", "delay", "run_at", "group_key", "limit_key"), "it to each job: .using(…).enqueue(…)"),
    **dict.fromkeys(("rate", "rate_limit", "concurrency"), "each job a limit_key, and limits by `effects limits set`"),
}


class FunctionJobType(JobType[Any]):
    """The job type of one function. Its payload has the function's arguments.

    Args:
        name: as of any job type.
        function: its first parameter is the attempt, if it is annotated `Attempt`; all others are arguments.
        release: `before` (each attempt is released before the function is called), or `manual`: the function calls
            `attempt.release()` itself, or awaits `attempt.release_async()`.
        result: see `JobType`: what the function returns is the result, unless it is an outcome.
        policies: see `JobPolicies`.
        names: what the annotations may refer to besides the function's module: the local names where it was defined.

    Raises:
        ConfigurationError: names the function, where it is, and what is wrong with it.
    """

    def __init__(
        self,
        name: str,
        function: Callable[..., Any],
        *,
        release: Release,
        result: ResultPolicy,
        policies: Mapping[str, Any],
        names: Mapping[str, Any],
    ) -> None:
        self.name = name
        self.function = function
        self.result = result
        self._check(release, policies)
        self._read(names)
        self._releases = release == "before"
        if release == "manual" and not self._takes_attempt:
            how = "await attempt.release_async()" if inspect.iscoroutinefunction(function) else "call attempt.release()"
            raise self.refusal(f"release='manual' needs a first parameter, attempt: Attempt, to {how}")
        for policy, value in policies.items():
            setattr(self, policy, value)
        if inspect.iscoroutinefunction(function):
            self.perform = self._perform_async  # type: ignore[method-assign]

    @property
    def argument_names(self) -> tuple[str, ...]:
        """In the order of the function's parameters."""
        names: tuple[str, ...] = self.payload.__struct_fields__
        return names

    def arguments(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """Name the arguments of a call.

        Raises:
            PayloadInvalid: the function could not be called with them.
        """
        signature = inspect.signature(self.function)
        if self._takes_attempt:
            signature = signature.replace(parameters=list(signature.parameters.values())[1:])
        try:
            return signature.bind(*args, **kwargs).arguments
        except TypeError as error:
            takes = ", ".join(signature.parameters) or "none"
            raise PayloadInvalid(f"{self.name}, {describe(self.function)}: {error}; it takes {takes}") from None

    def perform(self, payload: Any, attempt: Attempt) -> HandlerAnswer:
        """Call the function."""
        if self._releases:
            attempt.release()
        answer: HandlerAnswer = self._answer(self._call(payload, attempt))
        return answer

    async def _perform_async(self, payload: Any, attempt: Attempt) -> Any:
        if self._releases:
            await attempt.release_async()
        return self._answer(await self._call(payload, attempt))

    def _answer(self, returned: Any) -> Any:
        """A coroutine is no result: the function was to be awaited."""
        is_answer = not self.result or issubclass(type(returned), (*OUTCOMES, CoroutineType))
        return returned if is_answer else Done(result=returned)

    def _call(self, payload: Any, attempt: Attempt) -> Any:
        arguments = msgspec.structs.asdict(payload)
        return self.function(attempt, **arguments) if self._takes_attempt else self.function(**arguments)

    @cached_property
    def _codec(self) -> ArgumentsCodec:
        return ArgumentsCodec(self.name, self.payload, describe(self.function))

    @property
    def declared_at(self) -> str:
        """File and line of the function."""
        return place_of(self.function)

    def refusal(self, why: str) -> ConfigurationError:
        """Make the error that names this function."""
        return ConfigurationError(f"job type {self.name!r}, {describe(self.function)}: {why}")

    def _check(self, release: object, policies: Mapping[str, Any]) -> None:
        if (why := _no_handler(self.function)) is not None:
            raise self.refusal(why)
        if release not in _RELEASES:
            raise self.refusal(f"release is {release!r}; give 'before' or 'manual'")
        for policy in policies:
            if policy not in JobPolicies.__annotations__:
                valid = sorted(JobPolicies.__annotations__)
                hint = f"; give {_ELSEWHERE[policy]}" if policy in _ELSEWHERE else nearest(policy, valid)
                raise self.refusal(f"there is no policy {policy!r}{hint} (known: {', '.join(valid)})")

    def _read(self, names: Mapping[str, Any]) -> None:
        try:
            self._takes_attempt = takes_attempt(self.function, names)
            self.payload = arguments_class(self.function, names)
        except NotAnArgument as error:
            raise self.refusal(str(error)) from None
        except (NameError, TypeError, SyntaxError) as error:
            raise self.refusal(
                f"its annotations cannot be read: {error}. Define the classes above the function, and outside of "
                "`if TYPE_CHECKING`"
            ) from None


def local_names(depth: int) -> Mapping[str, Any]:
    """The local names of the function that is so many calls above the caller; empty for a module."""
    frame = sys._getframe(depth + 1)
    return {} if frame.f_locals is frame.f_globals else dict(frame.f_locals)


def describe(function: object) -> str:
    """Name a function, and say where it is."""
    return f"{getattr(function, '__qualname__', class_name(function))} ({place_of(function)})"


def place_of(function: object) -> str:
    """File and line of a function; where it has none, its class."""
    code = getattr(inspect.unwrap(function) if callable(function) else function, "__code__", None)
    return class_name(function) if code is None else f"{relative(code.co_filename)}:{code.co_firstlineno}"


def _no_handler(function: object) -> str | None:
    """Say why this is no function that a worker can call; None if it is one."""
    if inspect.isclass(function):
        return "it is a class; decorate a function, or register an instance of a subclass of JobType"
    if inspect.ismethod(function) or isinstance(function, staticmethod | classmethod):
        return "it is a method; a job is a function of a module"
    if not inspect.isfunction(function):
        return f"it is {described(function)}; give a function"
    if function.__name__ == "<lambda>":
        return "it is a lambda; write a function, whose annotations name the types of its arguments"
    owner = function.__qualname__.rpartition(".")[0]
    if owner and not owner.endswith("<locals>"):
        return f"it is a method of {owner}; a job is a function of a module"
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        return "it is a generator (it has a `yield`); it must return its answer"
    return None


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
