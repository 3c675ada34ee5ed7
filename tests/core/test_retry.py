"""Retry policies are data: each gives its published row of waits."""

from __future__ import annotations

from typing import Any

import pytest

from effects import ConfigurationError, Exponential, Fixed, FixedSchedule, Linear, Polynomial, RetryPolicy
from effects.retry import DAY_SECONDS, Backoff


@pytest.mark.parametrize(
    ("backoff", "waits"),
    [
        (Fixed(30), [30, 30, 30, 30]),
        (Linear(15), [15, 30, 45, 60]),
        (Polynomial(), [10, 40, 90, 160]),
        (Polynomial(seconds=2, power=3), [2, 16, 54, 128]),
        (Exponential(), [1, 2, 4, 8]),
        (Exponential(seconds=5, base=3), [5, 15, 45, 135]),
        (FixedSchedule([5, 300, 1800]), [5, 300, 1800, 1800]),
    ],
    ids=lambda value: type(value).__name__,
)
def test_a_backoff_gives_its_row_of_waits(backoff: Backoff, waits: list[float]) -> None:
    policy = RetryPolicy(backoff=backoff, jitter=0.0, max_attempts=9)
    assert [policy.delay_seconds(attempt) for attempt in (1, 2, 3, 4)] == waits
    assert policy.delay_seconds(0) == waits[0]


def test_an_exponential_wait_never_overflows() -> None:
    assert RetryPolicy(backoff=Exponential(), jitter=0.0).delay_seconds(1000) == DAY_SECONDS


@pytest.mark.parametrize(
    ("backoff", "options", "attempts"),
    [(Polynomial(), {}, 10), (FixedSchedule([1, 2, 3]), {}, 4), (FixedSchedule([1]), {"max_attempts": 7}, 7)],
)
def test_the_number_of_attempts_follows_from_the_schedule(backoff: Backoff, options: Any, attempts: int) -> None:
    assert RetryPolicy(backoff=backoff, **options).max_attempts == attempts


@pytest.mark.parametrize(("draw", "wait"), [(0.0, 100.0), (0.5, 110.0), (1.0, 120.0)], ids=["least", "middle", "most"])
def test_jitter_only_adds(draw: float, wait: float) -> None:
    assert RetryPolicy(backoff=Fixed(100)).delay_seconds(1, draw=lambda: draw) == pytest.approx(wait)


@pytest.mark.parametrize(("wish", "wait"), [(None, 10), (3, 10), (25, 25), (10**9, DAY_SECONDS)])
def test_a_peers_retry_after_is_a_floor_below_the_cap(wish: float | None, wait: float) -> None:
    policy = RetryPolicy(backoff=Fixed(10), jitter=0.0)
    assert policy.delay_seconds(1, at_least=wish) == wait


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"max_attempts": -1}, "max_attempts is -1"),
        ({"max_attempts": 1001}, "give 1 to 1000"),
        ({"max_age_seconds": 0}, "above 0"),
        ({"max_delay_seconds": -1}, "above 0"),
        ({"jitter": 1.5}, "jitter is 1.5"),
        ({"jitter": -0.1}, "give 0 to 1"),
        ({"backoff": FixedSchedule([])}, "needs at least one wait"),
    ],
)
def test_a_wrong_policy_is_refused_when_it_is_made(wrong: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigurationError, match=says):
        RetryPolicy(**wrong)
