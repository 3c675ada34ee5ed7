"""How much a lane claims ahead, by how long its attempts take."""

from __future__ import annotations

from typing import Any

import pytest

from effects.store.claim import CLAIM_MAX, Lane
from effects.worker.lane import LaneThreads

THREADS = 10


def lane_of(seconds: float | None, *, at_hand: int = 0, prefetch: bool = True) -> LaneThreads:
    """A lane whose attempts take so long, with so many jobs that no thread has begun. Its threads do not run."""
    nothing: Any = None
    lane = LaneThreads(
        Lane(queue="q", lease_seconds={}, threads=THREADS), THREADS, prefetch=prefetch,
        may_start=lambda: True, finish=nothing, give_back=nothing, wake=lambda: None,
    )  # fmt: skip
    if seconds is not None:
        lane._learn(seconds)
    for _ in range(at_hand):
        lane.accept(nothing)
    return lane


@pytest.mark.parametrize(
    ("seconds", "at_hand", "room"),
    [
        (None, 0, THREADS),  # nothing is known yet
        (2.0, 0, THREADS + 5),  # a second's work
        (0.01, 0, THREADS + 512),
        (0.05, 0, THREADS + 200),
        (0.05, 21, 0),  # more than a tenth of a second's work
        (0.05, 20, THREADS + 180),
        (0.000_01, 257, 0),  # however quick they are: not all that may be claimed at once is at hand
        (0.000_01, 256, THREADS + 256),
    ],
)
def test_a_lane_claims_a_second_of_work_when_a_tenth_is_left(seconds: float | None, at_hand: int, room: int) -> None:
    assert lane_of(seconds, at_hand=at_hand).room() == room


def test_no_more_is_held_than_one_claim_may_take() -> None:
    assert lane_of(0.000_01).room() - THREADS == CLAIM_MAX


@pytest.mark.parametrize(("at_hand", "room"), [(0, THREADS + 40), (20, THREADS + 20), (21, 0)])
def test_where_a_key_waits_for_tokens_little_is_claimed_and_often(at_hand: int, room: int) -> None:
    lane = lane_of(0.05, at_hand=at_hand)
    lane.paced = True
    assert lane.room() == room


def test_a_lane_without_prefetch_claims_for_free_threads_alone() -> None:
    assert lane_of(0.05, prefetch=False).room() == THREADS
