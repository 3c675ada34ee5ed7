"""Every kind of value that a handler or a hook may return or raise, to range over the class of the defect."""

from __future__ import annotations

import datetime
import decimal
import math
from collections.abc import Callable, Iterator
from dataclasses import fields
from typing import Any

from effects.errors import EffectsError
from effects.model.outcome import OUTCOMES


class NoText:
    """Has neither a text nor a representation."""

    def __str__(self) -> str:
        raise ZeroDivisionError

    __repr__ = __str__


class NoTextError(Exception):
    """An exception whose text cannot be had."""

    def __str__(self) -> str:
        raise ZeroDivisionError

    __repr__ = __str__


class OurNoTextError(EffectsError):
    """One of ours, by its class, whose text ends the process."""

    def __str__(self) -> str:
        raise SystemExit("from __str__")


class NoCodeError(Exception):
    """An exception whose code cannot be had."""

    @property
    def code(self) -> str:
        raise GeneratorExit


class Hostile(dict[str, Any]):
    """A mapping that cannot be walked."""

    def items(self) -> Any:
        raise KeyboardInterrupt


def nested(depth: int) -> Any:
    value: Any = "core"
    for _ in range(depth):
        value = {"inner": [value]}
    return value


def endless() -> dict[str, Any]:
    value: dict[str, Any] = {}
    value["self"] = [value, value]
    return value


# By name, and made afresh for each use: an exception keeps its traceback, a mapping may be changed.
VALUES: dict[str, Callable[[], Any]] = {
    "none": lambda: None,
    "numeric text": lambda: "1",
    "text": lambda: "soon",
    "empty text": lambda: "",
    "text with NUL": lambda: "ok\x00",
    "half a surrogate pair": lambda: "\ud800",
    "a long text": lambda: "x" * 1_000_000,
    "bytes": lambda: b"raw",
    "true": lambda: True,
    "zero": lambda: 0,
    "negative": lambda: -5,
    "not a number": lambda: math.nan,
    "infinity": lambda: math.inf,
    "minus infinity": lambda: -math.inf,
    "a huge float": lambda: 1e308,
    "a huge integer": lambda: 10**400,
    "a decimal": lambda: decimal.Decimal("NaN"),
    "a duration": lambda: datetime.timedelta(seconds=5),
    "a naive moment": lambda: datetime.datetime(2026, 1, 1),  # noqa: DTZ001
    "a list": lambda: [1],
    "a mapping": dict,
    "NUL in a mapping": lambda: {"reply\x00": {"text": "ok\x00\ud800"}},
    "numbers without a JSON form": lambda: {"n": math.nan, "i": -math.inf, "big": 10**400},
    "keys that are no text": lambda: {1: 2, None: 3, NoText: 4},
    "a large mapping": lambda: {str(number): "x" * 4000 for number in range(2000)},
    "a deep mapping": lambda: nested(2000),
    "a mapping in itself": endless,
    "a mapping that fails": lambda: Hostile(a=1),
    "an object": object,
    "an object without text": NoText,
    "objects in a mapping": lambda: {"o": object(), "t": NoText(), "s": {1, 2}, "d": datetime.date(2026, 1, 1)},
    "a class": lambda: object,
    "a function": lambda: len,
    "an outcome class": lambda: OUTCOMES[0],
}

EXCEPTIONS: dict[str, Callable[[], BaseException]] = {
    "RuntimeError": lambda: RuntimeError("secret: rosebud"),
    "RecursionError": RecursionError,
    "MemoryError": MemoryError,
    "StopIteration": StopIteration,
    "KeyboardInterrupt": KeyboardInterrupt,
    "SystemExit": lambda: SystemExit(3),
    "GeneratorExit": GeneratorExit,
    "BaseException": BaseException,
    "BaseExceptionGroup": lambda: BaseExceptionGroup("two", [SystemExit(), ValueError("secret: rosebud")]),
    "an exception without text": NoTextError,
    "one of ours without text": OurNoTextError,
    "an exception without code": NoCodeError,
    "a class with a long name": type("X" * 10_000, (Exception,), {}),
}

GOOD: dict[str, dict[str, Any]] = {
    "Done": {}, "Retry": {"message": "busy"}, "Snooze": {"seconds": 60.0}, "Pause": {"seconds": 60.0, "reason": "429"},
    "Refused": {"message": "no"}, "Cancelled": {}, "Unknown": {"message": "cut"},
}  # fmt: skip


def outcome_makers() -> Iterator[tuple[str, Callable[[], Any]]]:
    """Every field of every outcome with every value."""
    for kind in OUTCOMES:
        for field in fields(kind):
            for name, make in VALUES.items():
                yield f"{kind.__name__}.{field.name}: {name}", _maker(kind, field.name, make)


def _maker(kind: type[Any], field: str, make: Callable[[], Any]) -> Callable[[], Any]:
    return lambda: kind(**{**GOOD[kind.__name__], field: make()})
