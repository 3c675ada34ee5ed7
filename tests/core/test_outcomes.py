"""One fate, one class: an outcome has the same effect whether a handler returns it or raises it."""

from __future__ import annotations

import contextlib
import copy
import pickle
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest

import effects
from effects import Attempt, Cancelled, Done, JobType, Outcome, Pause, Refused, Retry, Snooze, Unknown
from effects.model.outcome import OUTCOMES
from effects.model.settlement import Execution, Settlement
from tests.support.sample_jobs import job
from tests.support.worker_parts import attempt_of


@dataclass(eq=False)
class CardDeclined(Refused):
    """A refusal that an app has a class of its own for."""

    code: str = "card_declined"


EXAMPLES: list[Outcome] = [
    Done(detail={"id": 7}),
    Retry("busy", code="421", after_seconds=9.0, detail={"reply": "421"}),
    Snooze(60.0, "later"),
    Pause(60.0, "429", code="throttled"),
    Refused("no", code="550", detail={"reply": "550"}),
    Cancelled("not wanted", code="stale"),
    Unknown("no reply", code="cut"),
    CardDeclined("the card was declined"),
    effects.StorageUnavailable("away"),
    effects.StorageRefused("full"),
    effects.ObjectMissing("gone"),
]


class Answering(JobType[dict[str, Any]]):
    """Returns or raises one outcome."""

    name = "scripted"

    def __init__(self, outcome: Outcome, *, raised: bool, released: bool) -> None:
        self.on_unknown = "repeat" if released else "hold"
        self._outcome, self._raised = outcome, raised

    def perform(self, payload: dict[str, Any], attempt: Attempt) -> Outcome:
        if self._raised:
            with transaction():
                raise self._outcome
        return self._outcome


@contextlib.contextmanager
def transaction() -> Iterator[None]:
    """A context manager of contextlib sets an exception's traceback, which a frozen class would refuse."""
    yield


def settled(outcome: Outcome, *, raised: bool, released: bool) -> Settlement:
    job_type = Answering(outcome, raised=raised, released=released)
    attempt = attempt_of(Execution(job(), {}), job_type)
    attempt.start()
    return attempt.run()


def essence(settlement: Settlement) -> tuple[Any, ...]:
    return (
        settlement.status, settlement.outcome, settlement.verdict, settlement.error_code, settlement.message,
        settlement.detail, settlement.pause_seconds,
    )  # fmt: skip


@pytest.mark.parametrize("outcome", EXAMPLES, ids=lambda outcome: type(outcome).__name__)
@pytest.mark.parametrize("released", [False, True])
def test_raising_an_outcome_is_returning_it(outcome: Outcome, released: bool) -> None:
    returned = settled(copy.copy(outcome), raised=False, released=released)
    raised = settled(copy.copy(outcome), raised=True, released=released)
    assert essence(raised) == essence(returned)
    assert raised.error_type == type(outcome).__name__
    assert "perform" in str(raised.stack)
    assert returned.stack is None


def test_what_is_exported_under_a_fates_name_is_that_outcome() -> None:
    exported = {name: getattr(effects, name) for name in effects.__all__}
    fates = {name for name, value in exported.items() if isinstance(value, type) and issubclass(value, OUTCOMES)}
    assert {outcome.__name__ for outcome in OUTCOMES} <= fates
    assert fates - {outcome.__name__ for outcome in OUTCOMES} == {
        "StorageUnavailable",
        "StorageRefused",
        "ObjectMissing",
    }
    assert not {"Permanent", "Temporary", "Ambiguous"} & set(effects.__all__)


@pytest.mark.parametrize("outcome", EXAMPLES, ids=lambda outcome: type(outcome).__name__)
def test_an_outcome_is_a_value_and_an_exception(outcome: Outcome) -> None:
    assert isinstance(outcome, effects.DeliveryError)
    assert copy.copy(outcome) == outcome
    assert pickle.loads(pickle.dumps(outcome)) == outcome
    assert len({outcome, copy.copy(outcome)}) == 1
    assert type(outcome).__name__ in repr(outcome)
    assert str(outcome) in (getattr(outcome, "message", None), getattr(outcome, "reason", None), "Done")


def test_outcomes_of_other_classes_or_fields_differ() -> None:
    assert Retry("busy") != Unknown("busy")
    assert Refused("no") != CardDeclined("no", code="refused")
    assert Retry("busy") != Retry("busy", after_seconds=1.0)
