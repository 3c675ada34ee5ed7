"""What a limit key may: a rate, a circuit breaker, a pause. Pure: numbers in, numbers out; the store keeps them.

The rate is a token bucket (as in RFC 2697): it fills evenly, holds `burst` tokens, and each start takes one. Over any
time t no more than `burst` + t · tokens / period start.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import NamedTuple

import msgspec

from effects.errors import ConfigurationError
from effects.kit.moments import FOREVER_SECONDS

BURST_SECONDS = 0.2  # default size of a bucket, in seconds of its rate
RUN_GAP_SECONDS = 3600.0  # pauses nearer to each other than this are one run of pauses
PERIOD_SECONDS_MIN = 0.001  # of a rate
SECONDS_MAX = 1e10  # of a period or a breaker: some 300 years
_ALMOST = 1e-6  # a token that is short of whole by rounding alone

_UNITS = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_PER = re.compile(r"(\d{1,9})/(\d+(?:\.\d+)?)?([smhd])")


def ends_by_itself(left_seconds: float) -> bool:
    """Whether a pause of so many more seconds has its own end: not where only a person ends it."""
    return left_seconds < FOREVER_SECONDS / 2


class Rate(msgspec.Struct, frozen=True):
    """Starts per seconds. At most `burst` at once; 0 means a fifth of a second's tokens, at least two.

    Raises:
        ConfigurationError: from `check`, which names what is wrong.
    """

    tokens: int
    period_seconds: float
    burst: int = 0

    @property
    def per_second(self) -> float:
        return self.tokens / self.period_seconds

    @property
    def size(self) -> int:
        """How many tokens the bucket holds."""
        return self.burst or max(min(2, self.tokens), int(self.per_second * BURST_SECONDS))

    def check(self) -> Rate:
        if not (self.tokens >= 1 and PERIOD_SECONDS_MIN <= self.period_seconds <= SECONDS_MAX):
            raise ConfigurationError("a rate is at least 1 start in 0.001 to 10,000,000,000 seconds, such as 50/1s")
        if self.burst < 0 or self.burst > max(1, self.tokens):
            raise ConfigurationError(f"the burst of this rate is 1 to {self.tokens}: one period's starts")
        return self


class Breaker(msgspec.Struct, frozen=True):
    """Opens after so many failures in a row; after so many seconds one attempt may probe."""

    failures: int
    seconds: float

    def check(self) -> Breaker:
        """Refuse a breaker that could not work.

        Raises:
            ConfigurationError: it is not a valid value; the message shows the form.
        """
        if not (self.failures >= 1 and 0 < self.seconds <= SECONDS_MAX):
            raise ConfigurationError("a breaker opens after at least 1 failure, for more than 0 seconds, such as 5/60s")
        return self


def parse_rate(text: str, burst: int = 0) -> Rate:
    """A rate as people write it: `50/1s`, `50/s`, `1000/1h`.

    Raises:
        ConfigurationError: it is malformed; the message shows the form.
    """
    count, seconds = _parse(text, "a rate is written 50/1s, 1000/1h or 5/m")
    return Rate(count, seconds, burst).check()


def parse_breaker(text: str) -> Breaker:
    """A breaker as people write it: `5/60s` opens after 5 failures in a row, for 60 seconds.

    Raises:
        ConfigurationError: it is malformed; the message shows the form.
    """
    count, seconds = _parse(text, "a breaker is written 5/60s: failures in a row, then how long it stays open")
    return Breaker(count, seconds).check()


def _parse(text: str, rule: str) -> tuple[int, float]:
    match = _PER.fullmatch(text.strip())
    if match is None:
        raise ConfigurationError(f"{text!r}: {rule}")
    count, number, unit = match.groups()
    return int(count), float(number or 1) * _UNITS[unit]


# -- the bucket --------------------------------------------------------------------------------------------


def refilled(tokens: float | None, elapsed_seconds: float, rate: Rate) -> float:
    """What is in the bucket `elapsed_seconds` after it held `tokens`. A new bucket (None) is full."""
    if tokens is None:
        return float(rate.size)
    return min(float(rate.size), tokens + max(0.0, elapsed_seconds) * rate.per_second)


def whole(tokens: float) -> int:
    """How many starts these tokens allow."""
    return max(0, int(tokens + _ALMOST))


# -- the breaker -------------------------------------------------------------------------------------------


class Circuit(NamedTuple):
    """A breaker's state. Open with its pause over is what others call half-open: one attempt at a time may probe."""

    open: bool = False
    failures: int = 0
    changed_seconds_ago: float = 0.0


class Result(NamedTuple):
    """One attempt's result for its key: a response or a failure."""

    answered: bool
    started_seconds_ago: float


def fold_results(circuit: Circuit, results: Iterable[Result], breaker: Breaker) -> Circuit:
    """The state after these results, oldest first. `changed_seconds_ago` 0 means that it has just opened.

    Attempts that started before the breaker opened are ignored.
    """
    for result in results:
        if circuit.open and result.started_seconds_ago > circuit.changed_seconds_ago:
            continue
        if result.answered:
            circuit = Circuit()
        elif circuit.open or circuit.failures + 1 >= breaker.failures:
            circuit = Circuit(True, circuit.failures + 1, 0.0)
        else:
            circuit = Circuit(False, circuit.failures + 1, circuit.changed_seconds_ago)
    return circuit


# -- the pause ---------------------------------------------------------------------------------------------


class PauseState(NamedTuple):
    """A key's pause. What a run of pauses adds up to is what the jobs behind the key are younger by."""

    left_seconds: float | None = None  # negative when it is over, None when there never was one
    run_seconds: float = 0.0
    begins_run: bool = False


def extend_pause(now: PauseState, seconds: float) -> PauseState:
    """Pause for `seconds`, or for as long as the present pause lasts, whichever is longer."""
    if now.left_seconds is None or now.left_seconds < -RUN_GAP_SECONDS:
        return PauseState(seconds, seconds, begins_run=True)
    left = max(0.0, now.left_seconds)
    longer = max(seconds, left)
    return PauseState(longer, now.run_seconds + longer - left)


def outlasts(seconds: float, now: PauseState) -> bool:
    """Whether a pause of so many seconds ends later than the present one, whose reason holds otherwise."""
    return seconds > max(0.0, now.left_seconds or 0.0)


def end_pause(now: PauseState) -> PauseState:
    """End a pause now; its remaining time does not count."""
    if now.left_seconds is None or now.left_seconds <= 0:
        return now
    return PauseState(0.0, max(0.0, now.run_seconds - now.left_seconds))
