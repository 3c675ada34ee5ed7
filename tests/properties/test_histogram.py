"""A histogram's percentiles are near the exact ones, however durations are spread, and adding up loses nothing."""

from __future__ import annotations

import math
from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from effects.kit import histogram

DURATIONS = st.lists(st.floats(0.0, histogram.BOUNDS[-1]), min_size=1, max_size=200)
SHARES = st.sampled_from([0.01, 0.25, 0.5, 0.9, 0.95, 0.99, 1.0])


def counted(durations: Sequence[float]) -> list[int]:
    counts = histogram.empty()
    for seconds in durations:
        counts[histogram.bucket_of(seconds)] += 1
    return counts


def exact(durations: Sequence[float], share: float) -> float:
    return sorted(durations)[max(0, math.ceil(share * len(durations)) - 1)]


@given(DURATIONS, SHARES)
def test_a_percentile_is_within_a_quarter_of_the_exact_one(durations: list[float], share: float) -> None:
    estimate, exact_value = histogram.percentile(counted(durations), share), exact(durations, share)
    assert estimate is not None
    assert abs(estimate - exact_value) <= max(0.25 * exact_value, histogram.BOUNDS[0] / 2)


@given(st.lists(DURATIONS, min_size=1, max_size=5), SHARES)
def test_a_sum_of_histograms_is_that_of_all_durations(lists: list[list[float]], share: float) -> None:
    total = histogram.empty()
    for durations in lists:
        histogram.add(total, counted(durations))
    assert total == counted([seconds for durations in lists for seconds in durations])


def test_extremes_have_a_bucket() -> None:
    assert histogram.bucket_of(-5.0) == histogram.bucket_of(0.0) == 0
    assert histogram.bucket_of(1e9) == histogram.BUCKETS - 1
    assert histogram.percentile(histogram.empty(), 0.5) is None
    assert 80 * 60 < histogram.BOUNDS[-1] < 82 * 60
