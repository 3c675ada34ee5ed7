"""Checks of a job type when it is registered: errors are one line, before any job is written."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator
from functools import lru_cache
from typing import Any, TypeGuard, get_args, get_origin

import msgspec

from effects import arguments
from effects.errors import ConfigurationError
from effects.model.job import QUARANTINE_QUEUE
from effects.model.job_type import JobType
from effects.retry import ON_UNKNOWN, RetryPolicy, is_number
from effects.text.redact import has_mark_outside_of_fields, hide_in_repr
from effects.text.wording import described

_NAME = re.compile(r"[a-z][a-z0-9_]*(\.[a-z][a-z0-9_]*)*")

# How the core calls each hook; what it is called with does not matter here.
HOOKS: dict[str, tuple[tuple[object, ...], dict[str, object]]] = {
    "perform": (("payload", "attempt"), {}),
    "load": (("connection", "jobs"), {}),
    "route": (("payload",), {}),
    "check_declared": (("payload",), {}),
    "limit_keys_of": (("connection", "tenant"), {}),
    "max_in_flight": (("limit_key",), {}),
    "classify": (("error",), {"released": True}),
    "can_ask": (("job",), {}),
    "instead_of_requeue": (("key", "error_code"), {}),
    "explain": (("key", "error_code", "detail"), {}),
    "worker_starts": ((), {}),
    "worker_ends": ((), {}),
    "prune": (("keep_seconds",), {"dry_run": True, "go_on": None}),
}


def check_job_type(candidate: object) -> None:
    """Refuse what cannot be registered.

    Raises:
        ConfigurationError: names the attribute or method, and what it may be.
    """
    if isinstance(candidate, type):
        name = candidate.__name__
        raise ConfigurationError(f"job type {name}: the class was given; give an instance, {name}()")
    if not isinstance(candidate, JobType):
        raise ConfigurationError(f"{described(candidate)} is no job type; give an instance of a subclass of JobType")
    named = candidate.name or type(candidate).__name__
    for problem in _problems(candidate):
        raise ConfigurationError(f"job type {named!r}: {problem}")
    try:
        if candidate.sensitive:
            hide_in_repr(candidate.payload)
        is_mark_lost = has_mark_outside_of_fields(candidate.payload)
    except (NameError, TypeError) as error:
        raise ConfigurationError(
            f"job type {named!r}: the types of its payload class cannot be read: {error}"
        ) from error
    if is_mark_lost:
        raise ConfigurationError(
            f"job type {named!r}: Sensitive marks a part of its payload that is no field and would be stored in clear; "
            "mark a field of a dataclass, a msgspec Struct or a TypedDict"
        )


def _problems(job_type: JobType[Any]) -> Iterator[str]:
    if not (isinstance(job_type.name, str) and _NAME.fullmatch(job_type.name)):
        yield "the name must be dotted lower case, such as 'report.chunk'"
    if (why := arguments.one_of(ON_UNKNOWN)(job_type.on_unknown)) is not None:
        yield f"on_unknown {why}"
    if arguments.printable()(job_type.queue) is not None or job_type.queue == QUARANTINE_QUEUE:
        yield f"queue {job_type.queue!r} is not a name that a job type's queue may have"
    if not isinstance(job_type.retry, RetryPolicy):
        yield f"retry is {described(job_type.retry)}; give a RetryPolicy"
    if (why := arguments.whole(-32000, 32000)(job_type.priority)) is not None:
        yield f"priority {why}"
    if job_type.keep_error_text not in (True, False, None):
        yield f"keep_error_text is {described(job_type.keep_error_text)}; give True, False or None"
    yield from _wrong_numbers(job_type)
    yield from _wrong_hooks(job_type)
    yield from _wrong_payload(job_type)


def _wrong_numbers(job_type: JobType[Any]) -> Iterator[str]:
    positive = arguments.optional(arguments.positive)
    for name, rule in (
        ("retention_days", positive), ("retention_effects_days", positive),
        ("time_limit_seconds", arguments.positive), ("failing_after_seconds", positive),
    ):  # fmt: skip
        if (why := rule(getattr(job_type, name))) is not None:
            yield f"{name} {why}"
    if not (is_number(job_type.unknown_after_seconds) and job_type.unknown_after_seconds >= 0):
        yield "unknown_after_seconds must not be negative"
    if not (is_number(job_type.reserved_share) and 0 <= job_type.reserved_share < 1):
        yield f"reserved_share is {_shown(job_type.reserved_share)}; give 0 to below 1"


def _wrong_hooks(job_type: JobType[Any]) -> Iterator[str]:
    if getattr(type(job_type), "perform", None) is JobType.perform and "perform" not in vars(job_type):
        yield "it has no perform; write `def perform(self, payload, attempt)`"
    for name in HOOKS:
        hook = getattr(job_type, name)
        if getattr(hook, "__func__", None) is getattr(JobType, name):
            continue  # not overridden
        if inspect.ismethod(hook) and hook.__self__ is job_type:
            problem = _problem_of_method(hook.__func__, name)
        else:
            problem = _problem_of_hook(hook, name, ())
        if problem is not None:
            yield problem


@lru_cache(1024)  # of the methods of classes, which an application's tests register again and again
def _problem_of_method(function: Callable[..., object], name: str) -> str | None:
    return _problem_of_hook(function, name, ("self",))


def _problem_of_hook(hook: Any, name: str, before: tuple[object, ...]) -> str | None:
    positional, named = HOOKS[name]
    if not callable(hook):
        return f"{name} is {described(hook)}; it must be a method"
    if inspect.iscoroutinefunction(hook) and name != "perform":
        return f"{name} is `async def`; write a plain `def`: only perform may be async"
    if inspect.isgeneratorfunction(hook) or inspect.isasyncgenfunction(hook):
        return f"{name} is a generator (it has a `yield`); it must return its answer"
    if not _fits(hook, (*before, *positional), named):
        parameters = ", ".join(["self", *map(str, positional), *(["*"] if named else []), *named])
        return f"{name} cannot be called as the worker does; write `def {name}({parameters})`"
    return None


def _fits(hook: Any, positional: tuple[object, ...], named: dict[str, object]) -> bool:
    try:
        inspect.signature(hook).bind(*positional, **named)
    except TypeError:
        return False
    except ValueError:  # a builtin without a signature
        return True
    return True


def _wrong_payload(job_type: JobType[Any]) -> Iterator[str]:
    declared = _declared_payload(type(job_type))
    if job_type.payload is dict and _has_fields(declared):
        yield f"it is a JobType[{declared.__name__}] without a payload class; write `payload = {declared.__name__}`"
    if not isinstance(job_type.payload, type) and get_origin(job_type.payload) is None:
        yield f"payload is {described(job_type.payload)}; give a class: a dataclass, a msgspec Struct, or dict"
        return
    try:
        msgspec.json.Decoder(job_type.payload)
    except (NameError, TypeError) as error:
        yield f"its payload class cannot be read from JSON: {error}"


def _declared_payload(kind: type) -> object:
    """The X of the nearest `JobType[X]` that it derives from."""
    for ancestor in kind.__mro__:
        for base in getattr(ancestor, "__orig_bases__", ()):
            if isinstance(origin := get_origin(base), type) and issubclass(origin, JobType):
                return get_args(base)[0]
    return None


def _has_fields(payload: object) -> TypeGuard[type]:
    return isinstance(payload, type) and hasattr(payload, "__annotations__") and payload not in (dict, Any)


def _shown(value: object) -> str:
    return str(value) if isinstance(value, int | float) else described(value)
