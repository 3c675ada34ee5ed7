"""When outcomes come faster than they are written."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import pytest

from effects import Effects
from effects.worker.recording.failover_evidence import FailoverEvidence
from effects.worker.recording.observers import Observers
from effects.worker.recording.settler import UNWRITTEN_MAX, Settler
from tests.support.staged import ClockRuntime
from tests.support.worker_parts import context_of

Batches = Sequence[tuple[float, int]]


def settler_of(app: Effects) -> Settler:
    context = context_of(app, ClockRuntime())
    assert context.settings.lease_seconds == 120.0
    return Settler(context, FailoverEvidence(context), Observers(context.runtime), max_linger=lambda: 0.0)


@pytest.mark.parametrize(
    ("batches", "unwritten", "room"),
    [
        ([], 0, 750),  # nothing is known of the pace yet
        ([(0.2, 2_000)] * 9, 0, UNWRITTEN_MAX),
        ([(0.2, 2_000)] * 9, UNWRITTEN_MAX - 50, 50),
        ([(0.2, 2_000)] * 9, UNWRITTEN_MAX - 49, 0),  # not worth a claim
        ([(0.2, 2_000)] * 9, UNWRITTEN_MAX + 1_000, 0),
        ([(19.0, 2_000)] * 20, 1_000, 578),  # 9.5 ms each: 1,578 are 15 s, an eighth of a lease
        ([(19.0, 2_000)] * 20, 1_529, 0),
        ([(2.0, 1)] * 20, 0, 100),  # each is locked for long, and the others go on
        ([(60.0, 1)] * 20, 50, 50),
        ([(0.2, 2_000)] * 9 + [(2.0, 1), (0.02, 100)], 0, UNWRITTEN_MAX),  # one that was locked among many
    ],
)
def test_how_many_more_outcomes_may_wait(app: Effects, batches: Batches, unwritten: int, room: int) -> None:
    settler, nothing = settler_of(app), cast("Any", None)
    for seconds, outcomes in batches:
        settler._learn(seconds, outcomes)
    settler._pending.extend([nothing] * unwritten)
    assert settler.room == room


def test_outcomes_that_are_put_aside_take_up_room(app: Effects) -> None:
    settler, nothing = settler_of(app), cast("Any", None)
    settler._writer._blocked = [nothing] * (UNWRITTEN_MAX - 200)
    settler._put_aside()
    assert settler.room == 200
    settler._learn(1000.0, 1)
    assert settler.room == 100, "the others go on"
    settler._writer._blocked = [nothing] * 200
    settler._put_aside()
    assert settler.room == 0
