"""Rates, breakers and pauses as pure functions: one table each, and what holds for any sequence."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from effects import ConfigurationError
from effects.model.limits import (
    RUN_GAP_SECONDS,
    Breaker,
    Circuit,
    PauseState,
    Rate,
    Result,
    end_pause,
    extend_pause,
    fold_results,
    parse_breaker,
    parse_rate,
    refilled,
    whole,
)

# -- as people write them ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "rate", "size"),
    [
        ("50/1s", Rate(50, 1.0), 10),
        ("50/s", Rate(50, 1.0), 10),
        ("1000/1h", Rate(1000, 3600.0), 2),
        ("5/m", Rate(5, 60.0), 2),
        ("1/10s", Rate(1, 10.0), 1),
        ("30/0.5m", Rate(30, 30.0), 2),
        ("100000/1d", Rate(100_000, 86_400.0), 2),
        ("1000/1s", Rate(1000, 1.0), 200),
    ],
)
def test_a_rate_as_text(text: str, rate: Rate, size: int) -> None:
    assert parse_rate(text) == rate
    assert rate.size == size


@pytest.mark.parametrize(
    "text", ["", "50", "50/", "/s", "50/1w", "-1/1s", "1.5/1s", "50/1s/2", "fifty/1s", "0/1s", "5/0s"]
)
def test_invalid_rates_and_breakers_are_refused(text: str) -> None:
    with pytest.raises(ConfigurationError, match=r"rate|starts?"):
        parse_rate(text)
    with pytest.raises(ConfigurationError, match="breaker"):
        parse_breaker(text)


def test_a_breaker_as_text() -> None:
    assert parse_breaker("5/60s") == Breaker(5, 60.0)
    assert parse_breaker("3/2m") == Breaker(3, 120.0)


@pytest.mark.parametrize("burst", [-1, 51])
def test_a_burst_is_at_most_one_periods_starts(burst: int) -> None:
    assert parse_rate("50/1s", 50).size == 50
    with pytest.raises(ConfigurationError, match="burst"):
        parse_rate("50/1s", burst)


# -- the bucket --------------------------------------------------------------------------------------------

FIFTY = Rate(50, 1.0)  # holds 10


@pytest.mark.parametrize(
    ("tokens", "elapsed", "expected"),
    [
        (None, 0.0, 10.0),  # new: full
        (0.0, 0.0, 0.0),
        (0.0, 0.02, 1.0),
        (0.0, 0.1, 5.0),
        (3.5, 0.01, 4.0),
        (0.0, 0.2, 10.0),
        (0.0, 3600.0, 10.0),  # never more than it holds
        (10.0, 1.0, 10.0),
        (5.0, -3.0, 5.0),  # a clock that was set back takes nothing away
        (-2.0, 0.02, -1.0),
    ],
)
def test_the_bucket_refills_with_time(tokens: float | None, elapsed: float, expected: float) -> None:
    assert refilled(tokens, elapsed, FIFTY) == pytest.approx(expected)


@pytest.mark.parametrize(("tokens", "starts"), [(0.0, 0), (0.99, 0), (1.0, 1), (0.9999999, 1), (2.5, 2), (-1.0, 0)])
def test_only_whole_tokens_start_a_job(tokens: float, starts: int) -> None:
    assert whole(tokens) == starts


@given(
    st.integers(1, 500),
    st.floats(0.1, 100),
    st.lists(st.tuples(st.floats(0, 5), st.integers(0, 50)), min_size=1, max_size=60),
)
def test_no_span_holds_more_than_its_rate_and_one_bucket(
    tokens: int, period: float, looks: list[tuple[float, int]]
) -> None:
    rate = Rate(tokens, period)
    bucket: float | None = None
    now, starts = 0.0, []
    for gap, starting in looks:
        now += gap
        bucket = refilled(bucket, gap, rate)
        taken = min(starting, whole(bucket))
        bucket -= taken
        starts.append((now, taken))
    for first, (begin, _) in enumerate(starts):
        count = 0
        for end, taken in starts[first:]:
            count += taken
            assert count <= rate.size + (end - begin) * rate.per_second + 0.001


# -- the breaker -------------------------------------------------------------------------------------------

CLOSED = Circuit()
THREE = Breaker(3, 60.0)
OPEN = Circuit(open=True, failures=3, changed_seconds_ago=70.0)
YES, NO = Result(True, 1.0), Result(False, 1.0)
EARLY_YES, EARLY_NO = Result(True, 80.0), Result(False, 80.0)  # began before it opened


@pytest.mark.parametrize(
    ("before", "results", "after"),
    [
        (CLOSED, [], CLOSED),
        (CLOSED, [YES, YES], CLOSED),
        (CLOSED, [NO], Circuit(False, 1)),
        (CLOSED, [NO, NO], Circuit(False, 2)),
        (CLOSED, [NO, NO, YES], CLOSED),  # in a row
        (CLOSED, [NO, NO, YES, NO, NO], Circuit(False, 2)),
        (CLOSED, [NO, NO, NO], Circuit(True, 3)),
        (Circuit(False, 2), [NO], Circuit(True, 3)),
        (Circuit(False, 2), [YES], CLOSED),
        (CLOSED, [NO, NO, NO, YES], Circuit(True, 3)),  # that one began before it opened
        (CLOSED, [NO, NO, NO, NO], Circuit(True, 3)),
        (OPEN, [YES], CLOSED),  # the probe
        (OPEN, [NO], Circuit(True, 4)),  # opens again, for the whole time
        (OPEN, [EARLY_YES], OPEN),
        (OPEN, [EARLY_NO], OPEN),
        (OPEN, [EARLY_NO, YES], CLOSED),
        (OPEN, [YES, NO], Circuit(False, 1)),
    ],
)
def test_the_breaker(before: Circuit, results: list[Result], after: Circuit) -> None:
    assert fold_results(before, results, THREE) == after


def test_one_failure_may_be_enough() -> None:
    assert fold_results(CLOSED, [NO], Breaker(1, 5.0)) == Circuit(True, 1)


# -- the rest ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("now", "seconds", "after"),
    [
        (PauseState(), 30.0, PauseState(30.0, 30.0, begins_run=True)),
        (PauseState(10.0, 30.0), 30.0, PauseState(30.0, 50.0)),  # longer: 20 seconds more
        (PauseState(50.0, 60.0), 30.0, PauseState(50.0, 60.0)),  # a pause is never shortened by another
        (PauseState(-5.0, 60.0), 30.0, PauseState(30.0, 90.0)),  # soon after: one run
        (PauseState(-RUN_GAP_SECONDS - 1, 60.0), 30.0, PauseState(30.0, 30.0, begins_run=True)),
    ],
)
def test_a_pause_extends_another(now: PauseState, seconds: float, after: PauseState) -> None:
    assert extend_pause(now, seconds) == after


@pytest.mark.parametrize(
    ("now", "after"),
    [
        (PauseState(), PauseState()),
        (PauseState(-5.0, 60.0), PauseState(-5.0, 60.0)),
        (PauseState(20.0, 60.0), PauseState(0.0, 40.0)),  # what was left is no pause
    ],
)
def test_a_pause_that_is_ended(now: PauseState, after: PauseState) -> None:
    assert end_pause(now) == after
