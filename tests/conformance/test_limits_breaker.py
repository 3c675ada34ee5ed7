"""A breaker opens after failures in a row, lets one attempt probe, and closes when it is answered."""

from __future__ import annotations

import time

from msgspec.structs import replace

from effects import Done, Effects, Job, Refused, Retry, Snooze, Unknown, enqueue_many
from effects.limits import Breaker
from effects.settlement import Ending, Lost
from effects.store import limit_states, limits
from effects.store.settle import Settled, settle
from tests.conformance.test_limits import claim_all, limited
from tests.support.hands import Hand, row

THREE = Breaker(3, 60.0)


def guard(app: Effects, key: str = "k", parent: str | None = None) -> None:
    with app.store.begin() as connection:
        limits.ensure(app.store, connection, key, breaker=THREE, parent=parent)


def answered(hand: Hand, *endings: tuple[Job, Ending], took: float = 0.0) -> Settled:
    """Settle attempts that were carried out, in this order, each having taken so long."""
    now = time.monotonic()
    settlements = [
        replace(hand.decide(job, ending), ended_at_monotonic=now - 0.001 * (len(endings) - n), duration_seconds=took)
        for n, (job, ending) in enumerate(endings)
    ]
    return settle(hand.app.store, settlements, hand.app.ledgers)


def state(app: Effects, key: str = "k") -> tuple[str | None, int]:
    with app.store.read() as connection:
        found = limit_states.show(app.store, connection, key)
    return found.breaker_state, found.failures_in_a_row


def wait(hand: Hand, seconds: float) -> None:
    hand.app.store.shift_clock(seconds)
    hand.heartbeat()


def opened(app: Effects) -> Hand:
    """A hand before a breaker that has just opened, ten jobs behind it."""
    guard(app)
    enqueue_many([*limited("k", 13), *limited("other", 2)], effects=app)
    hand = Hand(app)
    first, *jobs = hand.claim(4)
    answered(hand, (first, Done()), *((job, Retry("busy", after_seconds=7200)) for job in jobs))
    assert state(app) == ("open", 3)
    return hand


def test_failures_in_a_row_open_it_and_hold_only_its_own_key(app: Effects) -> None:
    hand = opened(app)
    assert {job.limit_key for job in claim_all(hand)} == {"other"}
    assert row(app, "limits")["pause_reason"] == "the breaker opened after 3 failures in a row"


def test_an_answer_in_between_keeps_it_closed(app: Effects) -> None:
    guard(app)
    enqueue_many(limited("k", 10), effects=app)
    hand = Hand(app)
    jobs = hand.claim(16)
    answered(hand, (jobs[0], Retry("x")), (jobs[1], Unknown("x")), (jobs[2], Done()), (jobs[3], Retry("x")))
    assert state(app) == ("closed", 1)
    answered(hand, (jobs[4], Retry("x")), (jobs[5], Refused("410 Gone")))  # a refusal is an answer
    assert state(app) == ("closed", 0)


def test_one_attempt_probes_and_its_answer_closes_it(app: Effects) -> None:
    hand = opened(app)
    answered(hand, *((job, Done()) for job in claim_all(hand)))
    wait(hand, 61)
    assert state(app)[0] == "half_open"
    [probe] = claim_all(hand)
    assert claim_all(Hand(app, "second")) == []
    answered(hand, (probe, Done()))
    assert state(app) == ("closed", 0)
    assert len(claim_all(hand)) > 1


def test_a_probe_that_fails_opens_it_for_the_whole_time_again(app: Effects) -> None:
    hand = opened(app)
    claim_all(hand)
    wait(hand, 61)
    [probe] = [job for job in claim_all(hand) if job.limit_key == "k"]
    answered(hand, (probe, Retry("busy")))
    assert state(app) == ("open", 4)
    wait(hand, 30)
    assert claim_all(hand) == []
    wait(hand, 31)
    assert len(claim_all(hand)) == 1


def test_what_began_before_it_opened_is_no_probe(app: Effects) -> None:
    guard(app)
    enqueue_many(limited("k", 10), effects=app)
    hand = Hand(app)
    jobs = hand.claim(4)
    answered(hand, *((job, Retry("busy")) for job in jobs[:3]))
    answered(hand, (jobs[3], Done()), took=30.0)
    assert state(app) == ("open", 3)


def test_what_was_not_carried_out_says_nothing(app: Effects) -> None:
    hand = opened(app)
    claim_all(hand)
    wait(hand, 61)
    [probe] = [job for job in claim_all(hand) if job.limit_key == "k"]
    hand.settle((probe, Lost()))  # the worker's fault, not the peer's
    assert state(app) == ("half_open", 3)
    [probe] = [job for job in claim_all(hand) if job.limit_key == "k"]
    answered(hand, (probe, Snooze(3600)))
    assert state(app) == ("half_open", 3)
    assert len(claim_all(hand)) == 1


def test_a_parents_breaker_hears_all_its_children(app: Effects) -> None:
    guard(app, "transport")
    for child in ("a", "b", "c"):
        with app.store.begin() as connection:
            limits.ensure(app.store, connection, child, parent="transport")
    enqueue_many([job for child in ("a", "b", "c") for job in limited(child, 4)], effects=app)
    hand = Hand(app)
    jobs = hand.claim()
    one_each = [next(job for job in jobs if job.limit_key == child) for child in ("a", "b", "c")]
    answered(hand, *((job, Retry("busy")) for job in one_each))
    assert state(app, "transport") == ("open", 3)
    answered(hand, *((job, Retry("busy", after_seconds=7200)) for job in jobs if job not in one_each), took=30.0)
    assert claim_all(hand) == []
    wait(hand, 61)
    assert len(claim_all(hand)) == 1


def test_without_a_breaker_failures_are_not_counted(app: Effects) -> None:
    with app.store.begin() as connection:
        limits.ensure(app.store, connection, "k", max_in_flight=50)
    enqueue_many(limited("k", 10), effects=app)
    hand = Hand(app)
    answered(hand, *((job, Retry("busy")) for job in hand.claim()))
    assert state(app) == (None, 0)
