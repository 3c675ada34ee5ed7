"""Whatever a handler returns or raises: its attempt is recorded, its verdict is kept, and `run` never raises."""

from __future__ import annotations

import math
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Annotated, Any

import msgspec
import pytest
from sqlalchemy import Connection

from effects import (
    Attempt,
    ConfigurationError,
    Done,
    Exponential,
    Job,
    JobType,
    Outcome,
    Pause,
    Polynomial,
    Refused,
    Retry,
    RetryPolicy,
    Sensitive,
    Snooze,
    Unknown,
    enqueue,
)
from effects.kit.text import scrub
from effects.kit.text.scrub import DETAIL_BYTES_MAX, clean_detail
from effects.model.decision import decide
from effects.model.settlement import Execution, Settlement, WorkerLost
from effects.worker import Worker
from effects.worker.attempts.answer import WAIT_SECONDS_MAX, accept
from tests.conftest import AppFactory
from tests.support.answers import EXCEPTIONS, VALUES, NoText, outcome_makers
from tests.support.sample_jobs import job
from tests.support.worker_parts import attempt_of

VERDICTS = {
    "Done": "done", "Retry": "not_done", "Refused": "not_done", "Unknown": "unknown", "Pause": "not_done",
    "Snooze": None, "Cancelled": None,
}  # fmt: skip


class Answering(JobType[Any]):
    """Performs what the test gives it."""

    name = "scripted"

    def __init__(self, perform: Callable[[], Any], *, released: bool = True) -> None:
        self.on_unknown = "repeat" if released else "hold"
        self._perform = perform

    def perform(self, payload: Any, attempt: Attempt) -> Any:
        return self._perform()


class AnsweringAsync(Answering):
    """The same by `async def`."""

    async def perform(self, payload: Any, attempt: Attempt) -> Any:
        return self._perform()


def settled(perform: Callable[[], Any], *, released: bool = True, payload: Any = None) -> Settlement:
    """The settlement of a blocking handler; an async one's says the same."""
    blocking, on_loop = (
        attempt_of(Execution(job(), payload), kind(perform, released=released)) for kind in (Answering, AnsweringAsync)
    )
    blocking.start()
    on_loop.start()
    settlement, same = blocking.run(), finished(on_loop.run_async())
    for name in ("status", "outcome", "verdict", "error_code", "message", "error_type"):
        expected = getattr(settlement, name)  # no coroutine can raise StopIteration
        assert getattr(same, name) == ("RuntimeError" if expected == "StopIteration" else expected)
    assert (same.stack is None) == (settlement.stack is None)
    return settlement


def finished(coroutine: Coroutine[Any, Any, Settlement]) -> Settlement:
    """What a coroutine that awaits nothing returns."""
    with pytest.raises(StopIteration) as end:
        coroutine.send(None)
    settlement: Settlement = end.value.value
    return settlement


def raising(error: BaseException) -> Callable[[], Any]:
    def perform() -> Any:
        raise error

    return perform


def check_storable(settlement: Settlement) -> None:
    """Any database can hold what would be written."""
    for number in (settlement.delay_seconds, settlement.pause_seconds, settlement.age_seconds_forgiven):
        assert type(number) in (int, float)
        assert 0 <= number <= 2 * WAIT_SECONDS_MAX  # a pause, and the job's own wait behind it
    for text in (settlement.message, settlement.error_code, settlement.error_type, settlement.stack):
        assert text is None or (type(text) is str and "\0" not in text and len(text) < 20_000)
        assert text is None or text.encode() is not None
    assert settlement.detail is None or len(msgspec.json.encode(settlement.detail)) <= DETAIL_BYTES_MAX
    assert "\\u0000" not in str(msgspec.json.encode(settlement.detail))
    assert settlement.apply is None or callable(settlement.apply)


@pytest.mark.slow
def test_every_field_of_every_outcome_with_every_value() -> None:
    """Returned and raised: a wrong value is named, the fate stays, and what would be written can be."""
    wrong = 0
    for name, make in outcome_makers():
        fate, field = name.split(":")[0].split(".")
        for perform in (make, lambda make=make: raising(make())()):
            settlement = settled(perform)
            check_storable(settlement)
            expected = VERDICTS[fate]
            if settlement.error_code == "outcome_invalid":
                wrong += 1
                assert field in str(settlement.message), name
                expected = "unknown" if fate == "Done" else "not_done" if fate == "Snooze" else expected
            assert settlement.verdict == expected, name
            assert settlement.outcome != "timed_out"
    assert wrong > 500


@pytest.mark.parametrize("released", [False, True])
@pytest.mark.parametrize("name", VALUES)
def test_what_is_no_outcome_is_recorded_as_an_error(name: str, released: bool) -> None:
    settlement = settled(VALUES[name], released=released)
    check_storable(settlement)
    if name == "none":
        assert settlement.status == "succeeded"
    else:
        assert (settlement.error_code, settlement.verdict) == ("no_outcome", "unknown" if released else "not_done")
        assert "it must return an outcome" in str(settlement.message)


@pytest.mark.parametrize("released", [False, True])
@pytest.mark.parametrize("name", EXCEPTIONS)
def test_every_exception_is_an_outcome_with_its_traceback(name: str, released: bool) -> None:
    settlement = settled(raising(EXCEPTIONS[name]()), released=released)
    check_storable(settlement)
    assert (settlement.status, settlement.verdict) == ("failed", "unknown" if released else "not_done")
    assert "test_answers.py" in str(settlement.stack)
    assert "rosebud" not in str((settlement.message, settlement.detail, settlement.stack, settlement.error_code))


@pytest.mark.parametrize("answer", [*VALUES, *EXCEPTIONS])
def test_whatever_classify_returns_or_raises(answer: str) -> None:
    class Classified(Answering):
        def classify(self, error: Exception, *, released: bool) -> Any:
            if answer in EXCEPTIONS:
                raise EXCEPTIONS[answer]()
            return VALUES[answer]()

    attempt = attempt_of(Execution(job()), Classified(raising(ValueError())))
    attempt.start()
    settlement = attempt.run()
    check_storable(settlement)
    assert (settlement.status, settlement.verdict) == ("failed", "unknown")
    assert "classify" in str(settlement.error_code)


def test_a_wrong_answer_is_recorded_with_its_place_in_the_code(caplog: pytest.LogCaptureFixture) -> None:
    settlement = settled(lambda: Retry("busy", after_seconds="5"))  # type: ignore[arg-type]
    assert (settlement.status, settlement.outcome, settlement.verdict) == ("failed", "failed", "not_done")
    assert settlement.error_code == "outcome_invalid"
    assert settlement.message == (
        "busy (scripted: perform answered a wrong Retry: after_seconds is a str; give a number of seconds)"
    )
    assert settlement.error_type == "OutcomeInvalid"
    assert "test_answers.py" in str(settlement.stack)
    assert [record.message for record in caplog.records] == ["job.wrong_answer"] * 2  # of both handlers


def test_a_wrong_wait_uses_up_an_attempt() -> None:
    settlement = settled(lambda: Snooze("1"))  # type: ignore[arg-type]
    assert (settlement.status, settlement.refund_attempt, settlement.error_code) == ("failed", False, "outcome_invalid")


def test_an_invalid_detail_does_not_undo_a_done() -> None:
    settlement = settled(lambda: Done(detail="id 7"))  # type: ignore[arg-type]
    assert (settlement.status, settlement.verdict) == ("succeeded", "done")
    assert "detail is a str; give a mapping" in settlement.detail["outcome_invalid"]  # type: ignore[index]
    assert settled(lambda: Done(detail={"body": "x" * 50_000_000})).detail == {"body": "x" * 4096}


def test_an_async_answer_is_named_and_closed() -> None:
    async def perform() -> Done:
        return Done()

    assert "returned a coroutine" in str(settled(perform).message)

    async def follow_up(connection: Any) -> None: ...

    assert "async function" in str(settled(lambda: Done(apply=follow_up)).message)  # type: ignore[arg-type]


def test_an_altered_outcome_is_read_by_its_class() -> None:
    class Forged(Refused):
        def __getattribute__(self, name: str) -> Any:
            if name == "code" and vars(self).get("_call_site"):
                raise SystemExit
            return super().__getattribute__(name)

    accepted = accept(Forged("no"), who="t: perform", released=True)
    assert isinstance(accepted.outcome, Refused)
    assert type(accepted.outcome) is Refused
    assert "code cannot be read: SystemExit" in accepted.outcome.message


@dataclass
class Secretive:
    token: Annotated[Any, Sensitive]


def test_a_payload_whose_secrets_cannot_be_read_hides_the_reason() -> None:
    class Sealed(Answering):
        payload = Secretive

    sealed = Sealed(lambda: Unknown("token rosebud", detail={"echo": "rosebud"}))
    attempt = attempt_of(Execution(job(), Secretive(NoText())), sealed)
    attempt.start()
    settlement = attempt.run()
    assert settlement.verdict == "unknown"
    assert "rosebud" not in str((settlement.message, settlement.detail))


def test_a_detail_keeps_what_json_can_hold() -> None:
    detail = clean_detail({"n": 1, "f": 0.5, "t": "é", "none": None, "list": [True, (1, 2)], "nan": math.nan})
    assert detail == {"n": 1, "f": 0.5, "t": "é", "none": None, "list": [True, [1, 2]], "nan": "nan"}
    assert "20" in str(clean_detail({str(n): "x" * 4000 for n in range(50)})["dropped"])


def nested(levels: int) -> dict[str, Any]:
    return {"n": nested(levels - 1)} if levels else {"end": 1}


SELF: dict[str, Any] = {}
SELF["self"] = SELF
DETAILS: list[dict[Any, Any]] = [
    {}, {"t": "text", "n": 1, "f": 0.5, "b": True, "none": None, "ms": {"total": 1.5}}, {"t": "a\0b"}, {"t\0": "a"},
    {"t": "\ud800"}, {"t": "é" * 5000}, {"t": "x" * 5000}, {"k" * 300: 1}, {1: "a"}, {None: 1}, {"n": 2**63},
    {"n": -(2**63)}, {"n": -(2**63) - 1}, {"f": math.nan}, {"f": -math.inf}, {"list": ["a\0"]}, {"set": {1}},
    {"at": datetime(2026, 1, 2, tzinfo=UTC)}, {"o": object()}, nested(4), nested(5), nested(30), SELF,
    {str(n): "x" * 4000 for n in range(15)}, {str(n): "x" * 4000 for n in range(17)},
    {str(n): 1 for n in range(12_000)},
]  # fmt: skip


def test_a_clean_detail_is_copied_as_any_other(monkeypatch: pytest.MonkeyPatch) -> None:
    quick = [clean_detail(detail) for detail in DETAILS]
    monkeypatch.setattr(scrub, "_copy_of_clean", lambda *_: None)
    assert quick == [clean_detail(detail) for detail in DETAILS]


def test_a_detail_is_as_it_was_when_it_was_returned() -> None:
    detail = {"a": 1, "ms": {"b": 2}}
    kept = clean_detail(detail)
    detail["a"] = detail["ms"]["b"] = 3  # type: ignore[index]
    assert kept == {"a": 1, "ms": {"b": 2}}


@pytest.mark.parametrize("name", [*VALUES, *EXCEPTIONS])
def test_whatever_can_ask_returns_or_raises_a_lost_attempt_is_decided(name: str) -> None:
    class Askable(Answering):
        def can_ask(self, job: Any) -> Any:
            if name in EXCEPTIONS:
                raise EXCEPTIONS[name]()
            return VALUES[name]()

    settlement = decide(job(), Askable(Done, released=False), WorkerLost(), released=True)
    assert settlement.verdict == "unknown"
    assert settlement.status == ("failed" if name == "true" else "dead")  # asked once more, or held for a person


BACKOFFS: dict[str, Any] = {
    "text": lambda attempt: "5", "None": lambda attempt: None, "NaN": lambda attempt: math.nan,
    "overflows": Polynomial(power=1e6), "negative": lambda attempt: -5, "infinite": lambda attempt: math.inf,
    "large": Exponential(base=1e300), "fails": lambda attempt: 1 / 0,
}  # fmt: skip


@pytest.mark.parametrize("name", BACKOFFS)
def test_no_backoff_makes_a_decision_fail(name: str) -> None:
    policy = RetryPolicy(backoff=BACKOFFS[name], max_delay_seconds=60.0, jitter=0.0)
    settlement = settled(lambda: Retry("busy", policy=policy, tries=9))
    assert settlement.delay_seconds == (0.0 if name == "negative" else 60.0)


@pytest.mark.parametrize("field", ["max_attempts", "max_age_seconds", "max_delay_seconds", "jitter", "backoff"])
@pytest.mark.parametrize("value", ["5", math.nan, math.inf, None, -1, [1]], ids=str)
def test_a_policy_of_wrong_values_is_refused(field: str, value: Any) -> None:
    with pytest.raises(ConfigurationError, match=field):
        RetryPolicy(**{field: value})


class Waiting(JobType[Any]):
    """Answers, from `perform` or by raising it in `load`, that it is not its turn."""

    name = "waiting"
    payload = dict

    def __init__(self, answer: Snooze | Pause, where: str) -> None:
        self.answer, self.where, self.calls = answer, where, 0

    def load(self, connection: Connection, jobs: Sequence[tuple[Job, Any]]) -> Mapping[int, Any]:
        if self.where == "load":
            self.calls += 1
            raise self.answer
        return {}

    def perform(self, payload: Any, attempt: Attempt) -> Outcome:
        self.calls += 1
        return self.answer


@pytest.mark.parametrize("limit_key", ["k", None])
@pytest.mark.parametrize("where", ["perform", "load"])
@pytest.mark.parametrize("answer", [Snooze(0), Snooze(0, ages=False), Pause(0, "x")], ids=repr)
def test_an_answer_without_a_wait_does_not_spin(
    app_factory: AppFactory, answer: Snooze | Pause, where: str, limit_key: str | None
) -> None:
    job_type = Waiting(answer, where)
    app = app_factory(job_types=[job_type])
    enqueue("waiting", {}, limit_key=limit_key, effects=app)
    result = Worker(app).drain(10)
    assert (job_type.calls, result.finished) == (1, True)
    app.store.shift_clock(1.1)
    Worker(app).drain(10)
    assert job_type.calls == 2
