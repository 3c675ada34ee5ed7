"""The limits of one key as values: checked, as columns, and in words.

A further limit is a field here, its columns in `limit_tables` with their migration, what it allows in `capacity`, and
an option of `effects limits set`.
"""

from __future__ import annotations

from typing import Any, TypedDict

import msgspec
from sqlalchemy import Row

from effects.errors import ConfigurationError
from effects.limits import Breaker, Rate
from effects.text.scrub import KEY_CHARS_MAX

_WORDS = {"max_in_flight": "{} in flight", "rate": "{}", "breaker": "breaker {}", "parent": "under {}"}


class KeyLimits(msgspec.Struct, frozen=True):
    """What a key may: so many at once, a rate, its parent, a breaker. None: no such limit."""

    max_in_flight: int | None = None
    rate: Rate | None = None
    parent: str | None = None
    breaker: Breaker | None = None

    def check(self, key: str) -> None:
        """Refuse limits that this key cannot have.

        Raises:
            ConfigurationError: the message says which.
        """
        check_key(key)
        if self.parent is not None:
            check_key(self.parent)
        if self.max_in_flight is not None and self.max_in_flight < 1:
            raise ConfigurationError("most in flight is at least 1; to stop a key, pause it")
        if self.parent == key:
            raise ConfigurationError(f"the key {key!r} cannot be its own parent")
        if self.rate is not None:
            self.rate.check()
        if self.breaker is not None:
            self.breaker.check()

    def columns(self) -> dict[str, Any]:
        """The values of its columns in `effects_limits`."""
        return {
            "parent_key": self.parent,
            "max_in_flight": self.max_in_flight,
            "rate_tokens": self.rate.tokens if self.rate else None,
            "rate_period_seconds": self.rate.period_seconds if self.rate else None,
            "rate_burst": self.rate.size if self.rate else None,
            "breaker_after": self.breaker.failures if self.breaker else None,
            "breaker_seconds": self.breaker.seconds if self.breaker else None,
        }

    def detail(self) -> dict[str, Any]:
        """Those that there are, for the audit log."""
        rate, breaker = self.rate, self.breaker
        limits = {
            "max_in_flight": self.max_in_flight,
            "rate": f"{rate.tokens} per {rate.period_seconds:g} s (burst {rate.size})" if rate else None,
            "breaker": f"{breaker.failures} failures, {breaker.seconds:g} s" if breaker else None,
            "parent": self.parent,
        }
        return {name: value for name, value in limits.items() if value is not None}

    def text(self) -> str:
        """Those that there are, for people: `2 in flight, under mail`."""
        return ", ".join(_WORDS[name].format(value) for name, value in self.detail().items())


class LimitOptions(TypedDict, total=False):
    """Limits of a key by name. None: no such limit."""

    max_in_flight: int | None
    rate: Rate | None
    parent: str | None
    breaker: Breaker | None


NO_LIMITS = KeyLimits()
LIMIT_COLUMNS = tuple(NO_LIMITS.columns())


def check_key(key: str) -> None:
    """Refuse a text that is no limit key.

    Raises:
        ConfigurationError: it is empty or too long.
    """
    if not key or len(key) > KEY_CHARS_MAX:
        raise ConfigurationError(f"a limit key has 1 to {KEY_CHARS_MAX} characters")


def limits_of(row: Row[Any]) -> KeyLimits:
    """The limits in a row of `effects_limits`."""
    breaker = Breaker(row.breaker_after, row.breaker_seconds) if row.breaker_after is not None else None
    return KeyLimits(row.max_in_flight, rate_of(row), row.parent_key, breaker)


def rate_of(row: Row[Any]) -> Rate | None:
    """The rate in a row of `effects_limits`."""
    return Rate(row.rate_tokens, row.rate_period_seconds, row.rate_burst) if row.rate_tokens is not None else None
