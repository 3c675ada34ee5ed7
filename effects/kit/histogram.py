"""Counts of durations, from which percentiles can be told that are right within 25 %.

36 buckets: up to 5 ms, then each half as wide again, to 81 minutes; the last has all that took longer. Two are
added bucket by bucket.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from functools import partial
from itertools import islice, zip_longest

BOUNDS = tuple(0.005 * 1.5**number for number in range(35))  # seconds, each included in its bucket
BUCKETS = len(BOUNDS) + 1
ADDED_AT_ONCE = 48
# The bucket that a duration is counted in; those below 0, after a clock was set back, in the first.
bucket_of = partial(bisect_left, BOUNDS)


def empty() -> list[int]:
    return [0] * BUCKETS


def add(total: list[int], counts: Sequence[int]) -> None:
    """Add `counts`, which may have lost its last zeros, to `total`."""
    for number, count in enumerate(counts):
        total[number] += count


def total(histograms: Iterable[Sequence[int]]) -> list[int]:
    """The sum of any number of them, each of which may have lost its last zeros.

    By a few dozen, bucket by bucket: of thousands at once, each bucket of each would be read from far memory.
    """
    summed: list[int] = []
    remaining = iter(histograms)
    while dozens := list(islice(remaining, ADDED_AT_ONCE)):
        summed = [sum(counts) for counts in zip_longest(summed, *dozens, fillvalue=0)]
    return summed


def trimmed(counts: list[int]) -> list[int]:
    """The same without its last zeros."""
    return counts[: max((number for number, count in enumerate(counts, start=1) if count), default=0)]


def percentile(counts: Sequence[int], share: float) -> float | None:
    """Seconds that this share of the durations took at most; None if there are none.

    Within 25 % of the exact value between 5 ms and 81 minutes. Below, it is 2.5 ms; above, 81 minutes.
    """
    rank, seen = max(1.0, share * sum(counts)), 0
    for number, count in enumerate(counts):
        seen += count
        if count and seen >= rank:
            return _middle(number)
    return None


def _middle(bucket: int) -> float:
    if bucket == 0:
        return BOUNDS[0] / 2
    if bucket == len(BOUNDS):
        return BOUNDS[-1]
    return float((BOUNDS[bucket - 1] * BOUNDS[bucket]) ** 0.5)
