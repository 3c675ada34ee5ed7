"""Job types that are made of a function: its arguments, its policies, and what cannot be one."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Awaitable, Callable, Mapping
from functools import cached_property
from typing import Any, Literal, TypedDict, cast

import msgspec

from effects.errors import ConfigurationError, PayloadInvalid
from effects.kit.frames import relative
from effects.kit.text.scrub import class_name
from effects.kit.text.unsafe import nearest
from effects.kit.text.wording import described
from effects.model.call_arguments import ArgumentsCodec, NotAnArgument, arguments_class, takes_attempt
from effects.model.job import Attempt
from effects.model.job_type import JobType
from effects.model.ledger import Ledger
from effects.model.outcome import HandlerAnswer, Outcome
from effects.model.schedules import Schedule
from effects.retry import OnUnknown, RetryPolicy

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
        return self._call(payload, attempt)

    async def _perform_async(self, payload: Any, attempt: Attempt) -> Outcome | None:
        if self._releases:
            await attempt.release_async()
        return await cast("Awaitable[Outcome | None]", self._call(payload, attempt))

    def _call(self, payload: Any, attempt: Attempt) -> HandlerAnswer:
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
