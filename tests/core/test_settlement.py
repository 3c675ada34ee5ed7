"""The decision at the end of an attempt: one table of what follows from what."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from effects import Cancelled, Done, Fixed, Pause, Refused, Retry, RetryPolicy, Snooze, Unknown
from effects.model.decision import decide
from effects.model.job import POISON_LOSSES
from effects.model.ledger import advance, fold
from effects.model.settlement import AttemptEnd, Expired, Returned, Settlement, TimedOut, Unrouted, WorkerLost
from effects.retry import ON_UNKNOWN
from tests.support.sample_jobs import job
from tests.support.scripted import Scripted

OLD = 100_000.0  # beyond the greatest age of the policy below
POLICY = RetryPolicy(backoff=Fixed(10), max_attempts=3, max_age_seconds=3600.0, jitter=0.0)


def decided(ending: AttemptEnd, *, policy: Any = "repeat", released: bool = True, **facts: Any) -> Settlement:
    job_type = Scripted(on_unknown=policy, retry=POLICY)
    return decide(job(**facts), job_type, ending, released=released, draw=lambda: 0.0)  # type: ignore[arg-type]


RETRY = Retry("busy", code="503")
UNKNOWN = Unknown("no reply", code="cut")
LIMIT = TimedOut(60.0)
PLACED = Unrouted("slow", 5, None, None)
AGAIN, DEAD = "failed", "dead"

# ending, what is special about the job · status, outcome in the log, verdict, error code
TABLE: list[tuple[AttemptEnd, dict[str, Any], tuple[str, str, str | None, str | None]]] = [
    (Done(), {}, ("succeeded", "succeeded", "done", None)),
    (Done(), {"attempts": 3, "age_seconds": OLD}, ("succeeded", "succeeded", "done", None)),
    (RETRY, {}, (AGAIN, "failed", "not_done", "503")),
    (RETRY, {"attempts": 2}, (AGAIN, "failed", "not_done", "503")),
    (RETRY, {"attempts": 3}, (DEAD, "failed", "not_done", "503")),
    (RETRY, {"attempts": 4}, (DEAD, "failed", "not_done", "503")),
    (RETRY, {"attempts": 3, "max_attempts": 9}, (AGAIN, "failed", "not_done", "503")),
    (RETRY, {"attempts": 1, "max_attempts": 1}, (DEAD, "failed", "not_done", "503")),
    (RETRY, {"age_seconds": 3590.0}, (AGAIN, "failed", "not_done", "503")),
    (RETRY, {"age_seconds": 3591.0}, (DEAD, "failed", "not_done", "503")),
    (Retry("x", after_seconds=4000), {}, (DEAD, "failed", "not_done", "failed")),
    (Snooze(60), {}, ("queued", "snoozed", None, None)),
    (Snooze(60), {"attempts": 3, "age_seconds": 3540.0}, ("queued", "snoozed", None, None)),
    (Snooze(60), {"age_seconds": 3541.0}, (DEAD, "snoozed", None, "snoozed_too_long")),
    (Snooze(60, ages=False), {"age_seconds": OLD}, ("queued", "snoozed", None, None)),
    (Pause(60, "429"), {}, ("queued", "paused", "not_done", "throttled")),
    (Pause(60, "429"), {"attempts": 3, "age_seconds": OLD}, ("queued", "paused", "not_done", "throttled")),
    (Pause(60, "no route", code="no_route"), {"limit_key": "k"}, ("queued", "paused", "not_done", "no_route")),
    (Refused("no", code="550"), {}, (DEAD, "refused", "not_done", "550")),
    (Cancelled(), {}, ("cancelled", "cancelled", None, "cancelled")),
    (UNKNOWN, {}, (AGAIN, "unknown", "unknown", "cut")),
    (UNKNOWN, {"unknown_count": 2}, (AGAIN, "unknown", "unknown", "cut")),
    (UNKNOWN, {"attempts": 3}, (DEAD, "unknown", "unknown", "cut")),
    (UNKNOWN, {"policy": "repeat_once"}, (AGAIN, "unknown", "unknown", "cut")),
    (UNKNOWN, {"policy": "repeat_once", "unknown_count": 1}, (DEAD, "unknown", "unknown", "cut")),
    (UNKNOWN, {"policy": "hold"}, (DEAD, "unknown", "unknown", "cut")),
    (UNKNOWN, {"on_unknown": "hold"}, (DEAD, "unknown", "unknown", "cut")),
    (UNKNOWN, {"policy": "hold", "on_unknown": "repeat"}, (AGAIN, "unknown", "unknown", "cut")),
    (UNKNOWN, {"on_unknown": "repeat_once", "unknown_count": 1}, (DEAD, "unknown", "unknown", "cut")),
    (Unknown("cut", on_unknown="repeat"), {"on_unknown": "hold"}, (AGAIN, "unknown", "unknown", "unknown")),
    (WorkerLost(), {"on_unknown": "hold"}, (DEAD, "lost", "unknown", "lost")),
    (LIMIT, {"on_unknown": "hold"}, (DEAD, "timed_out", "unknown", "timed_out")),
    (Cancelled("not wanted", code="suppressed"), {}, ("cancelled", "cancelled", None, "suppressed")),
    (WorkerLost(), {}, (AGAIN, "lost", "unknown", "lost")),
    (WorkerLost(), {"attempts": 3}, (DEAD, "lost", "unknown", "lost")),
    (WorkerLost(), {"max_attempts": 1}, (DEAD, "lost", "unknown", "lost")),
    (WorkerLost(), {"age_seconds": OLD}, (DEAD, "lost", "unknown", "lost")),
    (
        WorkerLost(),
        {"attempts": 3, "age_seconds": OLD, "released": False, "policy": "hold"},
        (AGAIN, "lost", None, "lost"),
    ),
    (WorkerLost(), {"released": False, "policy": "hold"}, (AGAIN, "lost", None, "lost")),
    (WorkerLost(), {"released": False, "policy": "repeat_once", "unknown_count": 1}, (AGAIN, "lost", None, "lost")),
    (WorkerLost(), {"policy": "repeat_once"}, (AGAIN, "lost", "unknown", "lost")),
    (WorkerLost(), {"policy": "repeat_once", "unknown_count": 1}, (DEAD, "lost", "unknown", "lost")),
    (WorkerLost(), {"policy": "hold"}, (DEAD, "lost", "unknown", "lost")),
    (WorkerLost(), {"lost_count": POISON_LOSSES - 2}, (AGAIN, "lost", "unknown", "lost")),
    (WorkerLost(), {"lost_count": POISON_LOSSES - 1}, (DEAD, "lost", "unknown", "poison")),
    (WorkerLost(), {"lost_count": POISON_LOSSES - 1, "released": False}, (DEAD, "lost", None, "poison")),
    (LIMIT, {}, (AGAIN, "timed_out", "unknown", "timed_out")),
    (LIMIT, {"attempts": 3}, (DEAD, "timed_out", "unknown", "timed_out")),
    (LIMIT, {"released": False, "policy": "hold"}, (AGAIN, "timed_out", "not_done", "timed_out")),
    (LIMIT, {"released": False, "policy": "hold", "attempts": 3}, (DEAD, "timed_out", "not_done", "timed_out")),
    (LIMIT, {"policy": "hold"}, (DEAD, "timed_out", "unknown", "timed_out")),
    (LIMIT, {"policy": "repeat_once", "unknown_count": 1}, (DEAD, "timed_out", "unknown", "timed_out")),
    (Returned(), {"attempts": 3, "age_seconds": OLD}, ("queued", "", None, None)),
    (Expired(), {}, ("cancelled", "", None, "expired")),
    (PLACED, {}, ("queued", "", None, None)),
]


@pytest.mark.parametrize(("ending", "special", "expected"), TABLE, ids=lambda value: str(value)[:60])
def test_each_ending_is_decided(ending: AttemptEnd, special: dict[str, Any], expected: tuple[Any, ...]) -> None:
    settlement = decided(ending, **special)
    assert (settlement.status, settlement.outcome, settlement.verdict, settlement.error_code) == expected


ENDINGS: list[AttemptEnd] = [
    Done(), RETRY, Snooze(5), Pause(5, "x"), Refused("no"), Cancelled(), UNKNOWN, WorkerLost(), LIMIT, Returned(),
    Expired(),
    PLACED,
]  # fmt: skip


@pytest.mark.parametrize("ending", ENDINGS, ids=lambda value: type(value).__name__)
@pytest.mark.parametrize("policy", ON_UNKNOWN)
def test_what_holds_for_every_decision(ending: AttemptEnd, policy: str) -> None:
    for released, unknowns, attempts, losses, age in itertools.product(
        (False, True), (0, 1), (1, 3), (0, POISON_LOSSES - 1), (0.0, OLD)
    ):
        settlement = decided(
            ending, policy=policy, released=released, unknown_count=unknowns, attempts=attempts,
            lost_count=losses, age_seconds=age,
        )  # fmt: skip
        assert settlement.ends == (settlement.status in ("succeeded", "dead", "cancelled"))
        assert (settlement.verdict == "done") == (settlement.status == "succeeded")
        assert settlement.lost == isinstance(ending, WorkerLost)
        assert settlement.refund_attempt == isinstance(ending, Snooze | Pause | Returned | Expired | Unrouted)
        assert settlement.status != "dead" or (settlement.error_code and settlement.message)
        assert settlement.delay_seconds >= 0
        if settlement.verdict == "unknown":
            assert released or isinstance(ending, Unknown)
        if isinstance(ending, WorkerLost | TimedOut) and released:
            assert settlement.verdict == "unknown"


def test_a_wait_is_the_policys_or_the_peers() -> None:
    assert decided(RETRY).delay_seconds == 10
    assert decided(Retry("x", after_seconds=77)).delay_seconds == 77
    assert decided(Snooze(60)).delay_seconds == 60
    assert decided(Snooze(60)).age_seconds_forgiven == 0
    assert decided(Snooze(60, ages=False)).age_seconds_forgiven == 60
    assert decided(WorkerLost()).delay_seconds == 0


@pytest.mark.parametrize("ending", [Pause(60, "429"), Retry("429", pause_seconds=60)], ids=["pause", "retry"])
def test_a_pause_delays_the_key_or_the_lone_job_without_ageing(ending: AttemptEnd) -> None:
    keyed, alone = decided(ending, limit_key="k"), decided(ending)
    assert keyed.pause_seconds == alone.pause_seconds == 60
    assert (keyed.age_seconds_forgiven, alone.age_seconds_forgiven) == (0, 60)
    assert keyed.delay_seconds < 60 <= alone.delay_seconds


def test_a_pause_may_put_the_job_behind_others_without_ageing_it() -> None:
    keyed, alone = decided(Pause(60, "x", after_seconds=5), limit_key="k"), decided(Pause(60, "x", after_seconds=5))
    assert (keyed.pause_seconds, keyed.delay_seconds, keyed.age_seconds_forgiven) == (60, 65, 5)
    assert (alone.delay_seconds, alone.age_seconds_forgiven) == (65, 65)
    without_rest = decided(Pause(0, "x", after_seconds=5), limit_key="k", attempts=3)
    assert (without_rest.pause_seconds, without_rest.delay_seconds, without_rest.status) == (0, 5, "queued")
    assert without_rest.refund_attempt


@pytest.mark.parametrize("limit_key", ["k", None])
@pytest.mark.parametrize("seconds", [0, 0.3, 1, 60])
@pytest.mark.parametrize("ran_seconds", [0.0, 0.4, 30.0])
def test_an_attempt_after_a_snooze_or_a_pause_begins_a_second_later(
    limit_key: str | None, seconds: float, ran_seconds: float
) -> None:
    endings = [
        Snooze(seconds),
        Snooze(seconds, ages=False),
        Pause(seconds, "x"),
        Pause(seconds, "x", after_seconds=0.2),
    ]
    for ending in endings:
        job_type = Scripted(on_unknown="repeat", retry=POLICY)
        settlement = decide(job(limit_key=limit_key), job_type, ending, released=True, ran_seconds=ran_seconds)
        wait = max(settlement.delay_seconds, settlement.pause_seconds)
        assert ran_seconds + wait >= 1.0, ending
        assert wait <= max(seconds + 0.2, 1.0 - ran_seconds), ending
        forgiven = 0.0 if ending == Snooze(seconds) else settlement.delay_seconds
        assert settlement.age_seconds_forgiven <= forgiven
        assert settlement.status == "queued"


def test_a_keyless_jobs_pause_does_not_count_towards_max_age() -> None:
    assert decided(Retry("429", pause_seconds=4000)).status == "failed"
    assert decided(Retry("429", after_seconds=4000)).status == "dead"


def test_evidence_is_carried() -> None:
    settlement = decided(Refused("no", code="550", detail={"reply": "550 5.1.1"}))
    assert (settlement.message, settlement.detail) == ("no", {"reply": "550 5.1.1"})
    assert "gave up after 3 attempts" in str(decided(RETRY, attempts=3).message)
    assert "older than 3600 s" in str(decided(RETRY, age_seconds=OLD).message)
    assert "held for an operator" in str(decided(UNKNOWN, policy="hold").message)


@pytest.mark.parametrize(
    ("verdicts", "ended", "state"),
    [
        ([], False, "intended"),
        ([], True, "abandoned"),
        (["not_done"], False, "intended"),
        (["not_done"], True, "refused"),
        (["not_done", None], True, "abandoned"),
        (["unknown"], False, "unknown"),
        (["unknown", "not_done"], True, "unknown"),
        (["unknown", None], True, "unknown"),
        (["unknown", "done"], True, "done"),
        (["done", "unknown"], True, "done"),
        (["done", "not_done"], False, "done"),
        (["not_done", "done"], True, "done"),
    ],
)
def test_the_ledgers_state_is_a_fold(verdicts: list[Any], ended: bool, state: str) -> None:
    assert fold(verdicts, ended=ended) == state


@pytest.mark.parametrize("verdict", ["done", "not_done", "unknown", None])
@pytest.mark.parametrize("ended", [False, True])
def test_done_is_final(verdict: Any, ended: bool) -> None:
    assert advance("done", verdict, ended) == "done"


@pytest.mark.parametrize("policy", ["repeat", "repeat_once"])
@pytest.mark.parametrize(
    ("ending", "released", "seconds"),
    [
        (Unknown("cut"), True, 900.0),
        (Unknown("cut", after_seconds=60.0), True, 60.0),
        (LIMIT, True, 900.0),
        (WorkerLost(), True, 900.0),
        (WorkerLost(), False, 0.0),
        (RETRY, True, 10.0),
    ],
)
def test_an_unknown_effect_is_not_repeated_too_soon(
    policy: Any, ending: AttemptEnd, released: bool, seconds: float
) -> None:
    job_type = Scripted(on_unknown=policy, retry=POLICY, unknown_after_seconds=900.0)
    settlement = decide(job(), job_type, ending, released=released, draw=lambda: 0.0)  # type: ignore[arg-type]
    assert (settlement.status, settlement.delay_seconds) == ("failed", seconds)
