"""Waits: never shorter than promised, never longer than the cap and its jitter, never falling."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from effects import Exponential, Fixed, FixedSchedule, Linear, Polynomial, RetryPolicy
from effects.retry import Backoff

seconds = st.floats(0, 10_000)
backoffs: st.SearchStrategy[Backoff] = st.one_of(
    st.builds(Fixed, seconds),
    st.builds(Linear, seconds),
    st.builds(Polynomial, seconds, st.floats(1, 4)),
    st.builds(Exponential, seconds, st.floats(1, 4)),
    st.builds(FixedSchedule, st.lists(seconds, min_size=1, max_size=8)),
)
policies = st.builds(
    RetryPolicy,
    backoff=backoffs,
    jitter=st.floats(0, 1),
    max_delay_seconds=st.floats(0.001, 1e6),
    max_attempts=st.just(9),
)
attempts = st.integers(1, 1000)
draws = st.floats(0, 1, exclude_max=True)


@given(policies, attempts, draws, st.one_of(st.none(), st.floats(0, 1e7)))
def test_jitter_never_undercuts_and_the_cap_holds(
    policy: RetryPolicy, attempt: int, draw: float, wish: float | None
) -> None:
    promised = policy.delay_seconds(attempt, at_least=wish, draw=lambda: 0.0)
    wait = policy.delay_seconds(attempt, at_least=wish, draw=lambda: draw)
    assert promised <= wait <= promised * (1 + policy.jitter)
    assert promised <= policy.max_delay_seconds
    assert promised >= min(wish or 0.0, policy.max_delay_seconds)


@given(policies, attempts, draws, st.floats(0, 1e7))
def test_a_peers_retry_after_never_shortens_a_wait(policy: RetryPolicy, attempt: int, draw: float, wish: float) -> None:
    alone = policy.delay_seconds(attempt, draw=lambda: draw)
    assert policy.delay_seconds(attempt, at_least=wish, draw=lambda: draw) >= alone


@given(policies.filter(lambda policy: not isinstance(policy.backoff, FixedSchedule)), attempts)
def test_later_attempts_never_wait_less(policy: RetryPolicy, attempt: int) -> None:
    waits = [policy.delay_seconds(number, draw=lambda: 0.0) for number in (attempt, attempt + 1)]
    assert waits == sorted(waits)
