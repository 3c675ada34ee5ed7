"""The job types of one app, by name: its own, and those that installed packages offer."""

from __future__ import annotations

import inspect
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any, TypeGuard, get_args, get_origin

import msgspec
from sqlalchemy import Connection

from effects.errors import ConfigurationError, EnqueueError, PayloadInvalid, UnknownJobType
from effects.kit import arguments
from effects.kit.importing import entry_points
from effects.kit.logs import error_places
from effects.kit.text.redact import has_mark_outside_of_fields, hide_in_repr
from effects.kit.text.scrub import class_name
from effects.kit.text.unsafe import nearest
from effects.kit.text.wording import described
from effects.model.job import PRIORITY_MAX, PRIORITY_MIN, QUARANTINE_QUEUE
from effects.model.job_type import JobType, Routing, routing_of
from effects.model.schedules import PLACEHOLDERS, Schedule, why_unfilled
from effects.retry import ON_UNKNOWN, RetryPolicy, is_number

_NAME = re.compile(r"[a-z][a-z0-9_]*(\.[a-z][a-z0-9_]*)*")

# How the core calls each hook; what it is called with does not matter here.
HOOKS: dict[str, tuple[tuple[object, ...], dict[str, object]]] = {
    "perform": (("payload", "attempt"), {}),
    "load": (("connection", "jobs"), {}),
    "route": (("payload",), {}),
    "check_declared": (("payload",), {}),
    "declared_jobs": ((), {}),
    "check_followers": (("connection", "payload"), {}),
    "limit_keys_of": (("connection", "tenant"), {}),
    "max_in_flight": (("limit_key",), {}),
    "classify": (("error",), {"released": True}),
    "can_ask": (("job",), {}),
    "clear_names": (("payload",), {}),
    "instead_of_requeue": (("key", "error_code"), {}),
    "why_retry_fails": (("error_code",), {}),
    "before_retry": (("connection", "job_id", "key"), {"done": True}),
    "retry_effect": (("connection", "key"), {"actor": "cli:ann", "reason": None}),
    "cancel_effect": (("connection", "key"), {"actor": "cli:ann", "reason": None}),
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
    if arguments.queue_name(job_type.queue) is not None or job_type.queue == QUARANTINE_QUEUE:
        yield f"queue {job_type.queue!r} is not a name that a job type's queue may have"
    if not isinstance(job_type.retry, RetryPolicy):
        yield f"retry is {described(job_type.retry)}; give a RetryPolicy"
    if (why := arguments.whole(PRIORITY_MIN, PRIORITY_MAX)(job_type.priority)) is not None:
        yield f"priority {why}"
    if job_type.result not in (True, False, "sealed"):
        yield f"result is {described(job_type.result)}; give True, False or 'sealed'"
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
    name = getattr(job_type.payload, "__name__", "")
    try:
        msgspec.json.Decoder(job_type.payload)
    except (NameError, TypeError) as error:
        yield f"its payload class cannot be read from JSON: {error}"
        return
    if isinstance(msgspec.inspect.type_info(job_type.payload), msgspec.inspect.CustomType):
        how = f", and make {name}.model_validate(…) of it" if hasattr(job_type.payload, "model_validate") else ""
        yield (
            f"its payload class {name} cannot be made of JSON: give a dataclass, a msgspec Struct, or dict{how}; "
            "enqueue converts models and dataclasses to a dict"
        )


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


class Registry:
    """The job types of one Effects, by name."""

    def __init__(self, job_types: Iterable[JobType[Any]] = ()) -> None:
        self._by_name: dict[str, JobType[Any]] = {}
        for job_type in job_types:
            self.add(job_type)

    def add(self, job_type: JobType[Any]) -> None:
        """Register one.

        Raises:
            ConfigurationError: the declaration is wrong, or the name is taken.
        """
        check_job_type(job_type)
        if (before := self._by_name.get(job_type.name)) is not None:
            raise ConfigurationError(
                f"job type {job_type.name!r} is registered twice: {before.declared_at} and {job_type.declared_at}"
            )
        self._by_name[job_type.name] = job_type

    def replace(self, job_type: JobType[Any]) -> None:
        """Register one over the registered one of its name: a built-in type with other policies.

        Raises:
            ConfigurationError: the declaration is wrong.
            UnknownJobType: no job type of this name to replace.
        """
        check_job_type(job_type)
        self.get(job_type.name)
        self._by_name[job_type.name] = job_type

    def remove(self, name: str) -> None:
        """Forget the job type of this name.

        Raises:
            UnknownJobType: no job type of this name.
        """
        self.get(name)
        del self._by_name[name]

    def get(self, name: str) -> JobType[Any]:
        """The job type of this name.

        Raises:
            UnknownJobType: no job type of this name; the message lists the registered ones.
        """
        try:
            return self._by_name[name]
        except KeyError:
            names = ", ".join(sorted(self._by_name)) or "none"
            similar = nearest(name, self._by_name)
            raise UnknownJobType(f"no job type {name!r} is registered (known: {names}){similar}") from None

    def check_schedule(self, schedule: Schedule) -> None:
        """Refuse a schedule of a job type that is not registered, or whose payload does not fit it or holds a secret.

        Raises:
            ConfigurationError: names the schedule and what is wrong.
        """
        try:
            job_type = self.get(schedule.job_type)
            if secret := sorted((set(job_type.sensitive) - set(job_type.clear_when_scheduled)) & set(schedule.payload)):
                raise ConfigurationError(
                    f"the payload's {', '.join(secret)} is sensitive, and a schedule is stored in clear: "
                    "give an id, and let the handler look it up"
                )
            if (
                why := why_unfilled(msgspec.json.decode(schedule.template()), (*PLACEHOLDERS, *job_type.placeholders))
            ) is not None:
                raise ConfigurationError(why)
            job_type.encode(schedule.payload_of(datetime(2000, 1, 1, tzinfo=UTC)))
        except (ConfigurationError, PayloadInvalid) as error:
            raise ConfigurationError(f"schedule {schedule.name!r}: {error}") from None

    def check_declared(self, schedule: Schedule, connection: Connection | None = None) -> Routing:
        """Refuse a schedule whose next job its own type would refuse when it runs.

        Args:
            connection: to look at what the job leads to, too; see `JobType.check_followers`.

        Returns:
            Where that job goes.

        Raises:
            ConfigurationError: names the schedule and what is wrong.
        """
        self.check_schedule(schedule)
        slot = next(schedule.times.after(datetime.now(UTC)), datetime.now(UTC))
        payload = schedule.payload_of(slot)
        return self.check_job(f"schedule {schedule.name!r}", schedule.job_type, payload, connection)

    def check_job(self, who: str, name: str, payload: Mapping[str, Any], connection: Connection | None) -> Routing:
        """Refuse a job that its own type would refuse when it runs; say where it goes.

        Raises:
            ConfigurationError: begins with `who`.
        """
        try:
            job_type = self.get(name)
            checked = job_type.checked(payload)[0]
            job_type.check_declared(checked)
            if connection is not None:
                job_type.check_followers(connection, checked)
            return routing_of(job_type, checked)
        except (ConfigurationError, EnqueueError) as error:
            raise ConfigurationError(f"{who}: {error}") from None
        except (Exception, SystemExit, GeneratorExit) as error:  # of the app's own code, which may quote a value
            raised = f"{class_name(error)} at {error_places(error)}"
            raise ConfigurationError(f"{who}: the check of its payload raised {raised}") from error

    def __iter__(self) -> Iterator[JobType[Any]]:
        return iter(self._by_name.values())

    def __contains__(self, name: object) -> bool:
        return name in self._by_name

    def names(self) -> list[str]:
        return sorted(self._by_name)

    def async_queues(self) -> set[str]:
        """The queues whose job types are all async: what they have in flight takes up no threads."""
        return {queue for queue, kinds in self._kinds().items() if kinds == {True}}

    def mixed_queues(self) -> dict[str, list[str]]:
        """The queues with both kinds, each with its async job types: their attempts take up threads there."""
        mixed = sorted(queue for queue, kinds in self._kinds().items() if len(kinds) > 1)
        async_types = sorted((job_type.queue, job_type.name) for job_type in self if job_type.is_async)
        return {queue: [name for its_queue, name in async_types if its_queue == queue] for queue in mixed}

    def _kinds(self) -> dict[str, set[bool]]:
        """Queue → whether its job types are async, of each kind that is there."""
        kinds: dict[str, set[bool]] = defaultdict(set)
        for job_type in self:
            kinds[job_type.queue].add(job_type.is_async)
        return kinds

    def loading_queues(self) -> set[str]:
        """The queues with a job type that loads what a claimed batch needs."""
        return {job_type.queue for job_type in self if type(job_type).load is not JobType.load}


class Unregistered(JobType[Any]):
    """Placeholder for a job type missing from this code, used to settle a lost job of it."""

    on_unknown = "hold"

    def __init__(self, name: str) -> None:
        self.name = name


def installed_job_types(app: Any) -> Iterator[JobType[Any]]:
    """The job types that installed packages offer under the entry point group `effects.job_types`.

    Each entry point is a callable that takes the Effects and returns its job types.
    """
    for entry in entry_points("effects.job_types"):
        offer: Callable[[Any], Iterable[JobType[Any]]] = entry.load()
        yield from offer(app)
