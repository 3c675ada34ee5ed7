"""What the arguments of public calls may be: one rule for each kind, and one sentence for each mistake.

A rule returns why a value is invalid, without a value that may be personal, or None if it is valid.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from functools import wraps
from typing import Any, ParamSpec, TypeAlias, TypeVar

from effects.errors import EffectsError
from effects.kit.moments import FOREVER_SECONDS
from effects.kit.text.scrub import KEY_CHARS_MAX
from effects.kit.text.unsafe import is_printable
from effects.kit.text.wording import described, with_article
from effects.retry import is_number

Rule: TypeAlias = Callable[[Any], str | None]
T = TypeVar("T")
R = TypeVar("R")
P = ParamSpec("P")
SHOWN_CHARS = 80
REASON_CHARS_MAX = 1000
LIST_MAX = 100_000  # rows that a call lists at once
_END = datetime(9999, 12, 31, 23, 59, 59, tzinfo=UTC).timestamp()  # a float of more digits would round up
_BEGIN = datetime(1, 1, 1, tzinfo=UTC).timestamp()


def checked(error: type[EffectsError], **rules: Rule) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Check the arguments of a public call before it does anything, each by the rule that has its name.

    Args:
        error: what the call then raises; it names the argument and what it may be.
        rules: parameter → its rule. Parameters without one are checked by the call itself.

    Raises:
        TypeError: at import, if a rule names no parameter.
    """

    def decorate(call: Callable[P, R]) -> Callable[P, R]:
        code: Any = getattr(call, "__code__")  # noqa: B009 - of a function; a callable has none for mypy
        names = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
        if unknown := rules.keys() - set(names):
            raise TypeError(f"{call} has no parameter {', '.join(sorted(unknown))}")

        @wraps(call)
        def checking(*args: P.args, **kwargs: P.kwargs) -> R:
            for name, value in (*zip(names, args, strict=False), *kwargs.items()):
                if name in rules and (why := rules[name](value)) is not None:
                    raise error(f"{name} {why}")
            return call(*args, **kwargs)

        return checking

    return decorate


def check_arguments(values: object, rules: Mapping[str, Rule], error: type[EffectsError]) -> None:
    """Check the attributes of `values` that the rules name.

    Raises:
        error: names the argument and what it may be.
    """
    for name, rule in rules.items():
        if (why := rule(getattr(values, name))) is not None:
            raise error(f"{name} {why}")


def check_fields(values: object, rules: Mapping[str, Rule], error: type[EffectsError]) -> None:
    """Check the attributes of `values` that the rules name and that are not None.

    Raises:
        error: names the argument and what it may be.
    """
    for name, rule in rules.items():
        value = getattr(values, name)
        if value is not None and (why := rule(value)) is not None:
            raise error(f"{name} {why}")


def require(name: str, value: Any, rule: Rule, error: type[EffectsError]) -> None:
    """Check one value.

    Raises:
        error: names the argument and what it may be.
    """
    if (why := rule(value)) is not None:
        raise error(f"{name} {why}")


def each_of(items: Iterable[T], kind: type[T], name: str, error: type[EffectsError]) -> Iterator[T]:
    """The items, each of which must be of this class.

    Raises:
        error: names the first invalid item by its position.
    """
    if isinstance(items, (kind, str, bytes, Mapping)) or not isinstance(items, Iterable):
        raise error(f"{name} is {described(items)}; give a list of {kind.__name__}")
    rule = instance_of(kind)
    for number, item in enumerate(items):
        if (why := rule(item)) is not None:
            raise error(f"{name}[{number}] {why}")
        yield item


def build_each(name: str, items: Sequence[T], build: Callable[[int, T], R]) -> list[R]:
    """What `build` makes of each item and its position.

    Raises:
        EffectsError: what `build` raises of ours. Of several items it names the one at fault, by position and key.
    """
    results: list[R] = []
    for number, item in enumerate(items):
        try:
            results.append(build(number, item))
        except EffectsError as error:
            if len(items) > 1:
                key = getattr(item, "key", None)
                named = f" (key {shown(key)})" if isinstance(key, str) else ""
                error.args = (f"{name}[{number}]{named}: {error}",)
            raise
    return results


def shown(value: object) -> str:
    """Show a text, shortened to 80 characters; for any other value show its class."""
    return repr(value[:SHOWN_CHARS]) if isinstance(value, str) else described(value)


def instance_of(kind: type) -> Rule:
    return lambda value: (
        None if isinstance(value, kind) else f"is {described(value)}; give {with_article(kind.__name__)}"
    )


def called(value: Any) -> str | None:
    return None if callable(value) else f"is {described(value)}; give a function"


def text(value: Any) -> str | None:
    return None if isinstance(value, str) else f"is {described(value)}; give a text"


def flag(value: Any) -> str | None:
    return None if isinstance(value, bool) else f"is {described(value)}; give True or False"


def printable(chars_max: int = KEY_CHARS_MAX, *, chars_min: int = 1) -> Rule:
    """A text that is stored and shown on one line, such as a name, a key or a reason."""
    length = f"{chars_min} to {chars_max}" if chars_min else f"at most {chars_max}"

    def rule(value: Any) -> str | None:
        if not isinstance(value, str):
            return f"is {described(value)}; give a text of {length} printable characters"
        if not (chars_min <= len(value) <= chars_max and is_printable(value)):
            return f"must have {length} printable characters"
        return None

    return rule


def queue_name(value: Any) -> str | None:
    """A queue's name: workers write theirs into one column, joined by commas."""
    why = printable()(value)
    return "has a comma; give a name without" if why is None and "," in value else why


def aware(value: Any) -> str | None:
    """A time with its zone."""
    if not isinstance(value, datetime):
        return f"is {described(value)}; give an aware datetime, such as datetime.now(UTC)"
    if value.utcoffset() is None:
        return "has no time zone; give an aware datetime, such as datetime.now(UTC)"
    if not 1 < value.year < 9999 and not _BEGIN <= value.timestamp() <= _END:
        return "is out of range; give a time in the years 1 to 9999"
    return None


def whole(low: int, high: int) -> Rule:
    bounds = " to ".join(f"{bound:,}" if abs(bound) >= 10_000 else str(bound) for bound in (low, high))

    def rule(value: Any) -> str | None:
        if isinstance(value, bool) or not isinstance(value, int):
            return f"is {described(value)}; give a whole number, {bounds}"
        return None if low <= value <= high else f"is {value}; give {bounds}"

    return rule


def number(low: float, high: float) -> Rule:
    def rule(value: Any) -> str | None:
        if isinstance(value, bool) or not isinstance(value, int | float):
            return f"is {described(value)}; give a number, {low:,g} to {high:,g}"
        return None if low <= value <= high else f"is {value}; give {low:,g} to {high:,g}"

    return rule


def positive(value: Any) -> str | None:
    """A finite number above 0."""
    if is_number(value) and value > 0:
        return None
    is_numeric = isinstance(value, int | float) and not isinstance(value, bool)
    return f"is {value if is_numeric else described(value)}; it must be above 0"


def duration(value: Any) -> str | None:
    """A timedelta or seconds, from 0 to a hundred years."""
    seconds = value.total_seconds() if isinstance(value, timedelta) else value
    if seconds != 0 and positive(seconds) is not None:
        is_numeric = isinstance(seconds, int | float) and not isinstance(seconds, bool)
        return f"is {seconds if is_numeric else described(value)}; give a timedelta or seconds, from 0 (now)"
    return None if seconds <= FOREVER_SECONDS else f"is {value}; it must be at most a hundred years"


def mapping(value: Any) -> str | None:
    return None if isinstance(value, Mapping) else f"is {described(value)}; give a dict"


def listed(value: Any) -> str | None:
    """Several things: any iterable but a text, bytes or a mapping."""
    is_list = isinstance(value, Iterable) and not isinstance(value, str | bytes | bytearray | Mapping)
    return None if is_list else f"is {described(value)}; give a list"


def writable(value: Any) -> str | None:
    """A file that is open for writing."""
    return None if callable(getattr(value, "write", None)) else f"is {described(value)}; give a file opened by 'wb'"


def one_of(words: Sequence[str]) -> Rule:
    def rule(value: Any) -> str | None:
        if isinstance(value, str) and value in words:
            return None
        return f"is {shown(value)}; give one of {', '.join(words)}"

    return rule


def optional(rule: Rule) -> Rule:
    """None, or what the rule allows."""
    return lambda value: None if value is None else rule(value)


NAME = printable()  # of a report or an endpoint, an id, a key
# Who acts, and why, for the audit log.
ACTING: Mapping[str, Rule] = {"actor": printable(), "reason": optional(printable(REASON_CHARS_MAX, chars_min=0))}
