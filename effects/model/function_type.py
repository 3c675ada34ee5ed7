"""Job types that are made of a function: its payload class, its policies, and what cannot be one."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Generic, Literal, TypedDict, TypeVar, cast, get_origin, get_type_hints

from effects.errors import ConfigurationError
from effects.kit.frames import relative
from effects.kit.text.scrub import class_name
from effects.kit.text.unsafe import nearest
from effects.kit.text.wording import described
from effects.model.job import Attempt
from effects.model.job_type import JobType
from effects.model.ledger import Ledger
from effects.model.outcome import HandlerAnswer, Outcome
from effects.model.schedules import Schedule
from effects.retry import OnUnknown, RetryPolicy

P = TypeVar("P")
Release = Literal["before", "manual"]
_RELEASES = ("before", "manual")


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
    **dict.fromkeys(("key", "delay", "run_at", "group_key", "limit_key"), "it to each job: .enqueue(…)"),
    **dict.fromkeys(("rate", "rate_limit", "concurrency"), "each job a limit_key, and limits by `effects limits set`"),
}


class FunctionJobType(JobType[P], Generic[P]):
    """The job type of one function.

    Args:
        name: as of any job type.
        function: takes the payload, and the Attempt if it has a second parameter.
        release: `before` (each attempt is released before the function is called), or `manual`: the function calls
            `attempt.release()` itself, or awaits `attempt.release_async()`.
        policies: see `JobPolicies`.
        names: what the annotations may refer to besides the function's module: the local names where it was defined.

    Raises:
        ConfigurationError: names the function, where it is, and what is wrong with it.
    """

    def __init__(
        self,
        name: str,
        function: Callable[..., HandlerAnswer],
        *,
        release: Release,
        policies: Mapping[str, Any],
        names: Mapping[str, Any],
    ) -> None:
        self.name = name
        self.function = function
        self._check(release, policies)
        parameters = _parameters(function)
        self._takes_attempt = len(parameters) > 1
        self._releases = release == "before"
        if release == "manual" and not self._takes_attempt:
            how = "await attempt.release_async()" if inspect.iscoroutinefunction(function) else "call attempt.release()"
            raise self.refusal(f"release='manual' needs a second parameter, attempt, to {how}")
        self.payload = self._payload(parameters[0], names)
        for policy, value in policies.items():
            setattr(self, policy, value)
        if inspect.iscoroutinefunction(function):
            self.perform = self._perform_async  # type: ignore[method-assign]

    def perform(self, payload: P, attempt: Attempt) -> HandlerAnswer:
        """Call the function."""
        if self._releases:
            attempt.release()
        return self._call(payload, attempt)

    async def _perform_async(self, payload: P, attempt: Attempt) -> Outcome | None:
        if self._releases:
            await attempt.release_async()
        return await cast("Awaitable[Outcome | None]", self._call(payload, attempt))

    def _call(self, payload: P, attempt: Attempt) -> HandlerAnswer:
        return self.function(payload, attempt) if self._takes_attempt else self.function(payload)

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

    def _payload(self, parameter: inspect.Parameter, names: Mapping[str, Any]) -> type[P]:
        if parameter.annotation is parameter.empty:
            raise self.refusal(
                f"its first parameter, {parameter.name}, has no annotation: write the class of the payload, a "
                "dataclass, a msgspec Struct, or dict"
            )
        function = inspect.unwrap(self.function)
        try:
            hints = get_type_hints(function, localns=dict(names), include_extras=True)
        except (NameError, TypeError, SyntaxError) as error:
            raise self.refusal(
                f"its annotations cannot be read: {error}. Define the classes above the function, and outside of "
                "`if TYPE_CHECKING`"
            ) from None
        payload: type[P] = hints[parameter.name]
        return dict if payload is Mapping or get_origin(payload) is Mapping else payload  # type: ignore[return-value]


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
    """Say why this is no function that a worker can call with a payload; None if it is one."""
    if inspect.isclass(function):
        return "it is a class; decorate a function, or register an instance of a subclass of JobType"
    if inspect.ismethod(function) or isinstance(function, staticmethod | classmethod):
        return "it is a method; a job is a function of a module"
    if not inspect.isfunction(function):
        return f"it is {described(function)}; give a function"
    if function.__name__ == "<lambda>":
        return "it is a lambda; write a function, whose annotation names the payload's class"
    owner = function.__qualname__.rpartition(".")[0]
    if owner and not owner.endswith("<locals>"):
        return f"it is a method of {owner}; a job is a function of a module"
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        return "it is a generator (it has a `yield`); it must return its answer"
    return None if _fits(function) else "it must take the payload, or the payload and the attempt, and nothing else"


def _fits(function: Callable[..., Any]) -> bool:
    parameters = _parameters(function)
    try:
        inspect.signature(function).bind(*parameters)
    except TypeError:
        return False
    return 1 <= len(parameters) <= 2


def _parameters(function: Callable[..., Any]) -> list[inspect.Parameter]:
    """The parameters that a worker gives: those without a default, and one called attempt."""
    positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    parameters = [each for each in inspect.signature(function).parameters.values() if each.kind in positional]
    return [
        parameter
        for number, parameter in enumerate(parameters)
        if number == 0 or parameter.default is parameter.empty or (number == 1 and parameter.name == "attempt")
    ]
