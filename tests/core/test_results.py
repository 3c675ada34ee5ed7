"""Results: what a done attempt returned is kept with it, exactly, and read with its effect; what cannot be kept is
said, and the effect is done all the same."""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from itertools import chain, product
from typing import Annotated, Any

import pytest

from effects import Attempt, Done, Effects, JobType, Outcome, Refused, Retry, Sensitive, cancel, enqueue, status, wait
from effects.app.retention import prune
from effects.errors import ConfigurationError
from effects.keys.encryption import KeyRing
from effects.model.settlement import Settlement
from effects.operate.tables.audit import audit
from effects.operate.tables.rotate import count_keys, rotate
from effects.store.effects.by_key import EffectStatus
from effects.store.effects.requeue import resolve_unknown
from effects.store.queue.settle import settle
from effects.worker import Worker
from effects.worker.attempts.answer import RESULT_BYTES_MAX, with_result
from tests.cli.conftest import effects as command
from tests.conftest import AppFactory
from tests.security.vault import BOTH_KEYS, NEW_KEYS, OLD_KEYS
from tests.support.manual_workers import LostAttempt, ManualWorker, row, rows, run_sql


@dataclass
class Parcel:
    number: int
    weight: Decimal


class Weigh(JobType[dict[str, Any]]):
    """Returns what its payload says, as a class does."""

    result = True

    def __init__(self, name: str = "parcel.weigh", **attributes: Any) -> None:
        self.name = name
        for attribute, value in attributes.items():
            setattr(self, attribute, value)

    def perform(self, payload: dict[str, Any], attempt: Attempt) -> Outcome:
        if attempt.number <= payload.get("fails", 0):
            return Retry("busy", after_seconds=0)
        return Done(result=payload["result"])


@pytest.fixture
def app(app_factory: AppFactory) -> Effects:
    return app_factory(job_types=[Weigh(), Weigh("parcel.held", on_unknown="hold")])


def weighed(app: Effects, returned: Any) -> EffectStatus:
    """The effect of a function that returns this."""

    @app.job("parcel.pack", result=True)
    def pack() -> Any:
        return returned

    pack.using(key="k").enqueue()
    Worker(app).drain()
    return wait(key="k", timeout_seconds=0, effects=app)


EXACT = [
    None, True, 0, "", "é\0\x1f\U0001f4e6", 2**70, 1e23, 1e-300, -0.5, True, [], {}, {"b": 1, "a": [{"": None}]},
    {"missing": "a word of ours", "$sealed": {"key": "k"}}, "x" * (RESULT_BYTES_MAX - 2),
]  # fmt: skip


@pytest.mark.parametrize("returned", EXACT, ids=lambda value: repr(value)[:20])
def test_what_is_json_comes_back_as_it_was(returned: Any, app: Effects) -> None:
    effect = weighed(app, returned)
    assert (effect.state, effect.status, effect.result_missing) == ("done", "succeeded", None)
    assert (effect.result, type(effect.result)) == (returned, type(returned))


def test_what_python_calls_json_comes_back_as_json(app: Effects) -> None:
    effect = weighed(app, [Parcel(7, Decimal("1.50")), (1, 2), datetime(2026, 1, 2, tzinfo=UTC)])
    assert effect.result == [{"number": 7, "weight": "1.50"}, [1, 2], "2026-01-02T00:00:00Z"]


class HostileError(Exception):
    """Its text quotes what nobody may read."""


class Hostile:
    def __getattribute__(self, name: str) -> Any:
        raise HostileError("secret")


CANNOT_BE = [
    ("x" * (RESULT_BYTES_MAX - 1), "65,537 bytes as JSON and the limit is 65,536; store the large part elsewhere"),
    ({"a": [1, object()]}, "object has no JSON form - at `$.a[1]`"), (float("nan"), "it is no JSON"),
    ("\ud800", "half of a surrogate pair"), (Hostile(), "it is no JSON"),
]  # fmt: skip


@pytest.mark.parametrize(("returned", "why"), CANNOT_BE, ids=lambda value: repr(type(value))[:20])
def test_what_cannot_be_kept_is_done_and_says_why(returned: Any, why: str, app: Effects) -> None:
    effect = weighed(app, returned)
    assert (effect.state, effect.status, effect.result) == ("done", "succeeded", None)
    assert str(effect.result_missing).startswith("parcel.pack, tests/core/test_results.py:")
    assert why in str(effect.result_missing)
    assert "secret" not in str(effect.result_missing)
    assert audit(app.store, app.ledgers) == []


def test_a_circle_is_no_json(app: Effects) -> None:
    circle: list[Any] = []
    circle.append(circle)
    assert "it is no JSON" in str(weighed(app, circle).result_missing)


def test_an_outcome_is_no_result(app: Effects) -> None:
    effect = weighed(app, Refused("no such parcel"))
    assert (effect.state, effect.status, effect.result, effect.result_missing) == ("refused", "dead", None, None)


def test_an_async_function_returns_one_and_calls_keep_their_types(app: Effects) -> None:
    @app.job("parcel.ask", result=True, release="manual")
    async def ask(attempt: Attempt, parcel: int) -> dict[str, int]:
        await attempt.release_async()
        return {"parcel": parcel}

    ask.using(key="k").enqueue(parcel=3)
    Worker(app).drain()
    assert status(key="k", effects=app).result == {"parcel": 3}


def test_a_forgotten_await_is_no_result(app: Effects) -> None:
    async def ask() -> int:
        return 1

    assert weighed(app, ask()).state == "unknown"


@pytest.mark.parametrize("fails", [0, 2])
def test_it_is_that_of_the_attempt_that_was_done(fails: int, app: Effects) -> None:
    enqueue("parcel.weigh", {"result": [fails], "fails": fails}, key="k", effects=app)
    for _ in range(fails + 1):
        Worker(app).drain()
        app.store.shift_clock(3600)
    assert status(key="k", effects=app).result == [fails]
    assert len(rows(app, "job_attempts", "result IS NOT NULL")) == 1


# -- one transaction, one fence ----------------------------------------------------------------------------


class Lost(LostAttempt):
    """What it returned comes late."""

    def __init__(self, app: Effects, job_type: str) -> None:
        super().__init__(app, job_type, "k", {"result": 1})

    def done(self, worker: ManualWorker, job: Any, result: Any) -> Settlement:
        decided = worker.decide(job, Done(), released=True)
        return with_result(decided, result, self.app.job_types.get(job.job_type), KeyRing(""))

    def comes_late(self, result: Any) -> None:
        settled = settle(self.app.store, [self.done(self.gone, self.job, result)], self.app.ledgers)
        assert len(settled.stale) == 1


def test_a_lost_lease_writes_no_result(app: Effects) -> None:
    lost = Lost(app, "parcel.weigh")
    settle(app.store, [lost.done(lost.next, lost.again(), "second")], app.ledgers)
    lost.comes_late("first")
    assert status(key="k", effects=app).result == "second"


def test_what_comes_late_and_resolves_brings_its_result(app: Effects) -> None:
    lost = Lost(app, "parcel.held")
    assert status(key="k", effects=app).state == "unknown"
    lost.comes_late("late")
    effect = status(key="k", effects=app)
    assert (effect.state, effect.status, effect.result, effect.result_missing) == ("done", "dead", "late", None)
    assert audit(app.store, app.ledgers) == []


def test_what_comes_late_before_its_job_is_held_brings_its_result(app: Effects) -> None:
    lost = Lost(app, "parcel.weigh")
    lost.comes_late("late")
    run_sql(app, f"UPDATE effects_jobs SET run_at = {app.store.sql.now}")
    lost.next.settle((lost.next.claim_one(queue="quarantine"), Refused("no")))
    effect = status(key="k", effects=app)
    assert (effect.state, effect.result) == ("done", "late")


def test_what_a_person_resolves_has_none_and_says_so(app: Effects) -> None:
    lost = Lost(app, "parcel.held")
    resolve_unknown(app.store, app.job_types, app.ledgers, lost.job.id, "mark-done", actor="cli:ann")
    effect = status(key="k", effects=app)
    assert (effect.state, effect.result) == ("done", None)
    assert "a person resolved it" in str(effect.result_missing)


def test_an_apply_that_fails_keeps_no_result(app: Effects) -> None:
    def fails(connection: object) -> None:
        raise ValueError("no such order")

    effect = weighed(app, Done(apply=fails, result=1))
    assert (effect.state, effect.result) == ("unknown", None)
    assert rows(app, "job_attempts", "result IS NOT NULL") == []


def test_a_result_of_a_type_that_keeps_none_is_a_mistake_that_undoes_nothing(app_factory: AppFactory) -> None:
    app = app_factory(job_types=[Weigh(result=False)])
    enqueue("parcel.weigh", {"result": 1}, key="k", effects=app)
    Worker(app).drain()
    effect = status(key="k", effects=app)
    assert (effect.state, effect.result, effect.result_missing) == ("done", None, None)
    assert "declare it with result=True" in str(row(app, "job_attempts")["detail"])


@pytest.mark.parametrize("wrong", ["yes", 2, None])
def test_another_word_is_refused(wrong: Any, app: Effects) -> None:
    with pytest.raises(ConfigurationError, match="give True, False or 'sealed'"):
        app.add(Weigh("parcel.wrong", result=wrong))


# -- sealed ------------------------------------------------------------------------------------------------


def sealing(app: Effects) -> None:
    @app.job("parcel.open", result="sealed")
    def open_parcel(number: int) -> str:
        return f"canary-{number}"

    @app.job("parcel.address", result=True)
    def address(person: Annotated[str, Sensitive]) -> str:
        return f"canary-{person}"


def fill(app: Effects) -> None:
    enqueue("parcel.open", {"number": 1}, key="open", effects=app)
    enqueue("parcel.address", {"person": "ann"}, key="address", effects=app)
    enqueue("parcel.weigh", {"result": "clear"}, key="clear", effects=app)
    Worker(app).drain()


@pytest.fixture
def sealed(app_factory: AppFactory) -> Effects:
    app = app_factory(job_types=[Weigh()], keys=OLD_KEYS)
    sealing(app)
    fill(app)
    return app


def test_it_is_sealed_where_the_type_says_so_or_its_payload_is(sealed: Effects) -> None:
    stored = {each["job_type"]: str(each["result"]) for each in rows(sealed, "job_history")}
    assert {name: "canary" in text or "clear" in text for name, text in stored.items()} == {
        "parcel.open": False, "parcel.address": False, "parcel.weigh": True,
    }  # fmt: skip
    assert status(key="open", effects=sealed).result == "canary-1"
    assert status(key="address", effects=sealed).result == "canary-ann"


def test_no_screen_opens_it(sealed: Effects, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EFFECTS_KEYS", OLD_KEYS)
    for arguments in product((["why", "open"], ["jobs", "show", "1"]), ([], ["--json"])):
        answer = command("--database-url", sealed.settings.database_url, *chain(*arguments))
        assert "canary" not in answer.out
        assert "it is sealed, and not shown here" in answer.out


def test_a_rotation_reseals_it(sealed: Effects, app_factory: AppFactory) -> None:
    both = app_factory(job_types=[Weigh()], keys=BOTH_KEYS)
    counts = {(each.place, each.key_id, each.values) for each in count_keys(both.store)}
    assert counts == {("job_history", "old", 1), ("job_history.result", "old", 2)}
    assert rotate(both.store, both.keys, actor="ann").unreadable == []
    assert {each.key_id for each in count_keys(both.store)} == {"new"}
    new = app_factory(job_types=[Weigh()], keys=NEW_KEYS)
    sealing(new)
    assert status(key="address", effects=new).result == "canary-ann"


def test_without_its_key_it_says_so(sealed: Effects, app_factory: AppFactory) -> None:
    effect = status(key="open", effects=app_factory(job_types=[Weigh()], keys=NEW_KEYS))
    assert (effect.state, effect.result) == ("done", None)
    assert "EFFECTS_KEYS does not hold the key 'old'" in str(effect.result_missing)


def test_one_that_could_not_be_sealed_waits_before_its_effect(app_factory: AppFactory) -> None:
    performed = []
    app = app_factory(job_types=[], keys="")

    @app.job("parcel.open", result="sealed")
    def open_parcel() -> str:
        performed.append(1)
        return ""

    open_parcel.using(key="k").enqueue()
    Worker(app).drain()
    assert (performed, status(key="k", effects=app).error_code) == ([], "waits_for_operator")


def test_a_row_that_anyone_may_have_written_is_no_error(sealed: Effects) -> None:
    for text in ("7", "[]", '{"json": "{"}', '{"$sealed": 1}', '{"$sealed": {"key": "old", "value": "AA=="}}'):
        run_sql(sealed, "UPDATE effects_job_history SET result = :text", text=text)
        effect = status(key="open", effects=sealed)
        assert (effect.result, effect.result_missing is not None) == (None, True)
        assert command("--database-url", sealed.settings.database_url, "why", "open").exit_code == 0


# -- reading, and the end ----------------------------------------------------------------------------------


def test_commands_tell_it(app: Effects) -> None:
    weighed(app, {"grams": 120})
    url = ["--database-url", app.settings.database_url]
    assert 'its effect is done, result: {"grams": 120}' in command(*url, "jobs", "wait", "--key", "k").out
    assert command(*url, "jobs", "wait", "--key", "k", "--json").json["result"] == {"grams": 120}
    assert 'attempt 1 of job 1, result: {"grams": 120}' in command(*url, "why", "k").out
    [answer] = command(*url, "why", "k", "--json").json
    assert answer["facts"]["attempts"][0]["result"] == {"grams": 120}


def test_cancelling_what_is_done_finds_it_done(app: Effects) -> None:
    weighed(app, 1)
    assert cancel(key="k", actor="app:shop", effects=app).result == "ended"


def test_it_goes_with_the_jobs_history(app: Effects) -> None:
    weighed(app, "kept")
    app.store.shift_clock(app.settings.retention_jobs_days * 86_400 + 60)
    assert prune(app).jobs == 1
    assert [rows(app, table) for table in ("job_history", "attempt_log")] == [[], []]
    effect = status(key="k", effects=app)
    assert (effect.state, effect.status, effect.result, effect.result_missing) == ("done", None, None, None)


def test_json_of_a_stored_one_is_readable_in_sql(app: Effects) -> None:
    weighed(app, {"grams": 120})
    stored = row(app, "job_attempts")["result"]
    document = json.loads(stored) if isinstance(stored, str) else stored
    assert json.loads(document["json"]) == {"grams": 120}
