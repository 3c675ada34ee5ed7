"""Retry policies: data, and `delay_seconds`, a pure function of it."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

from effects.errors import ConfigurationError

OnUnknown: TypeAlias = Literal["repeat", "repeat_once", "hold"]
ON_UNKNOWN: tuple[OnUnknown, ...] = ("repeat", "repeat_once", "hold")

DAY_SECONDS = 86_400.0
_NUMBER_MAX = 1e15  # no wait is longer; NaN compares below nothing


@dataclass(frozen=True, slots=True)
class Fixed:
    """The same wait before every retry."""

    seconds: float

    def __call__(self, attempt: int) -> float:
        return self.seconds


@dataclass(frozen=True, slots=True)
class Linear:
    """attempt × seconds."""

    seconds: float

    def __call__(self, attempt: int) -> float:
        return attempt * self.seconds


@dataclass(frozen=True, slots=True)
class Polynomial:
    """attempt ** power × seconds; power 2 and 10 s give 10, 40, 90, 160 s."""

    seconds: float = 10.0
    power: float = 2.0

    def __call__(self, attempt: int) -> float:
        return float(attempt**self.power) * self.seconds


@dataclass(frozen=True, slots=True)
class Exponential:
    """seconds × base ** (attempt - 1)."""

    seconds: float = 1.0
    base: float = 2.0

    def __call__(self, attempt: int) -> float:
        # The exponent is bounded: 2.0 ** 2000 would overflow long after every cap has been reached.
        return self.seconds * self.base ** min(attempt - 1, 64)


@dataclass(frozen=True, slots=True)
class FixedSchedule:
    """The waits one by one. After the last of them there is no further attempt."""

    seconds: Sequence[float]

    def __call__(self, attempt: int) -> float:
        return self.seconds[min(attempt, len(self.seconds)) - 1]


Backoff: TypeAlias = Fixed | Linear | Polynomial | Exponential | FixedSchedule


_BY_BACKOFF = -1_000_000  # no number that anyone gives: the default depends on the backoff


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryPolicy:
    """How often, how soon and for how long a job type is tried.

    Args:
        backoff: wait before the next try as a function of the attempt just made (1, 2, …).
        max_attempts: attempts in all, 1 to 1000; a job may override it. With `FixedSchedule` it defaults to
            one more than the waits in the list, else 10.
        max_age_seconds: no attempt starts later than this after the job first fell due. Default 3 days.
        max_delay_seconds: no single wait is longer (a peer's Retry-After included) before jitter. Default 1 day.
        jitter: share of the wait added at random, upward only, so that a promised wait is never
            undercut. 0.2 adds 0 to 20 %. Default 0.2.

    Raises:
        ConfigurationError: a value is out of its range.
    """

    backoff: Backoff = Polynomial()
    max_attempts: int = _BY_BACKOFF
    max_age_seconds: float = 3 * DAY_SECONDS
    max_delay_seconds: float = DAY_SECONDS
    jitter: float = 0.2

    def __post_init__(self) -> None:
        if not callable(self.backoff):
            raise ConfigurationError("RetryPolicy: backoff is not a function of the attempt; give Exponential(…)")
        if isinstance(self.backoff, FixedSchedule) and not self.backoff.seconds:
            raise ConfigurationError("RetryPolicy: a FixedSchedule backoff needs at least one wait")
        if type(self.max_attempts) is not int:
            raise ConfigurationError("RetryPolicy: max_attempts is no whole number; give 1 to 1000")
        for name in ("max_age_seconds", "max_delay_seconds", "jitter"):
            if not is_number(getattr(self, name)):
                raise ConfigurationError(f"RetryPolicy: {name} is no finite number")
        if self.max_attempts == _BY_BACKOFF:
            attempts = len(self.backoff.seconds) + 1 if isinstance(self.backoff, FixedSchedule) else 10
            object.__setattr__(self, "max_attempts", attempts)
        if not 1 <= self.max_attempts <= 1000:
            raise ConfigurationError(f"RetryPolicy: max_attempts is {self.max_attempts}; give 1 to 1000")
        if self.max_age_seconds <= 0 or self.max_delay_seconds <= 0:
            raise ConfigurationError("RetryPolicy: max_age_seconds and max_delay_seconds must be above 0")
        if not 0 <= self.jitter <= 1:
            raise ConfigurationError(f"RetryPolicy: jitter is {self.jitter}; give 0 to 1")

    def delay_seconds(
        self, attempt: int, *, at_least: float | None = None, draw: Callable[[], float] = random.random
    ) -> float:
        """Seconds to wait after attempt number `attempt` (1 is the first), jitter included.

        `at_least` is a peer's wish (Retry-After); it is a floor, capped at `max_delay_seconds`.
        """
        wait = min(max(self._backoff_seconds(max(attempt, 1)), at_least or 0.0), self.max_delay_seconds)
        return wait * (1 + self.jitter * draw())

    def _backoff_seconds(self, attempt: int) -> float:
        """The backoff's delay; one that overflows, raises or is not a number means the longest wait."""
        try:
            seconds = self.backoff(attempt)
        except Exception:
            return self.max_delay_seconds
        return max(0.0, float(seconds)) if is_number(seconds) else self.max_delay_seconds


def is_number(value: object) -> bool:
    """Whether it is a finite int or float, and no bool."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    return -_NUMBER_MAX < value < _NUMBER_MAX
