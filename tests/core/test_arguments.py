"""Mistakes in a registration or in a call are said in one line, by an error of ours that names what to write."""

from __future__ import annotations

import datetime
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from effects import Attempt, ConfigurationError, Done, Effects, EnqueueError, JobType, NewJob, Routing, enqueue
from effects.calls.enqueue import enqueue_many
from effects.errors import EffectsError
from effects.model.registry import Registry
from effects_email import NewEmail, send_templated_email, send_templated_emails
from effects_reports import request_report
from effects_webhooks import WebhookEvent, deliver_webhook
from tests.support.answers import VALUES
from tests.support.scripted import Scripted


@dataclass
class Pack:
    order: int


class PackOrder(JobType[Pack]):
    name = "order.pack"
    payload = Pack

    def perform(self, payload: Pack, attempt: Attempt) -> Done:
        return Done()


class Forgotten(JobType[Pack]):
    name = "order.pack"

    def perform(self, payload: Pack, attempt: Attempt) -> Done:
        return Done()


class Idle(JobType[Any]):
    name = "idle"


class Async(PackOrder):
    async def perform(self, payload: Pack, attempt: Attempt) -> Any:  # type: ignore[override]
        yield Done()


class AsyncLoad(PackOrder):
    async def load(self, connection: Any, jobs: Any) -> Any:
        return {}


class Generator(PackOrder):
    def perform(self, payload: Pack, attempt: Attempt) -> Any:
        yield Done()


class Short(PackOrder):
    def perform(self, payload: Pack) -> Done:  # type: ignore[override]
        return Done()


class OneByOne(PackOrder):
    def load(self, job: Any) -> Any:  # type: ignore[override]
        return {}


class OwnClassify(PackOrder):
    def classify(self, error: Exception) -> Any:  # type: ignore[override]
        return Done()


MISTAKES: list[tuple[Any, str]] = [
    (PackOrder, r"job type PackOrder: the class was given; give an instance, PackOrder\(\)"),
    (Pack(1), "a Pack is no job type; give an instance of a subclass of JobType"),
    ("order.pack", "a str is no job type"),
    (None, "None is no job type"),
    (Idle(), r"it has no perform; write `def perform\(self, payload, attempt\)`"),
    (Forgotten(), r"it is a JobType\[Pack\] without a payload class; write `payload = Pack`"),
    (Async(), "perform is a generator"),
    (AsyncLoad(), "load is `async def`; write a plain `def`: only perform may be async"),
    (Generator(), "perform is a generator"),
    (Short(), r"perform cannot be called as the worker does; write `def perform\(self, payload, attempt\)`"),
    (OneByOne(), r"write `def load\(self, connection, jobs\)`"),
    (OwnClassify(), r"write `def classify\(self, error, \*, released\)`"),
    (Scripted(perform=None), "perform is None; it must be a method"),
    (Scripted(payload=Pack(1)), "payload is a Pack; give a class"),
    (Scripted(retry=5), "retry is an int; give a RetryPolicy"),
    (Scripted(priority="high"), "priority is a str; give a whole number"),
    (Scripted(priority=40_000), "priority is 40000; give -32,000 to 32,000"),
    (Scripted(name=7), "the name must be dotted lower case"),
    (Scripted(time_limit_seconds=float("nan")), "time_limit_seconds is nan; it must be above 0"),
    (Scripted(time_limit_seconds="60"), "time_limit_seconds is a str; it must be above 0"),
    (Scripted(reserved_share="half"), "reserved_share is a str; give 0 to below 1"),
    (Scripted(unknown_after_seconds=None), "unknown_after_seconds must not be negative"),
    (Scripted(retention_days="7"), "retention_days is a str; it must be above 0"),
]


@pytest.mark.parametrize(("candidate", "says"), MISTAKES, ids=[says[:40] for _, says in MISTAKES])
def test_a_mistake_in_a_registration_is_named(candidate: Any, says: str) -> None:
    with pytest.raises(ConfigurationError, match=says) as caught:
        Registry([candidate])
    assert "\n" not in str(caught.value)


def test_correct_registrations_are_accepted() -> None:
    assert Registry([PackOrder()]).names() == ["order.pack"]


class Misplaced(Scripted):
    """Its `route` says what the test wants."""

    answer: Any = None

    def route(self, payload: Any) -> Routing:
        return self.answer  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        (None, "route returned None; it must return a Routing"),
        ("slow", "route returned a str"),
        (Routing(limit_key=5), "route: limit_key is an int"),  # type: ignore[arg-type]
        (Routing(queue=""), "route: queue must have 1 to 255 printable characters"),
    ],
)
def test_a_wrong_routing_is_named(answer: Any, says: str) -> None:
    app = Effects("sqlite:///unused.db", job_types=[Misplaced(answer=answer)])
    with pytest.raises(ConfigurationError, match=says):
        enqueue("scripted", {}, effects=app)
    app.dispose()


# -- calls ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def unused(tmp_path: Path) -> Any:
    """No database is there: every mistake is found before one is asked."""
    template = tmp_path / "emails" / "hello"
    template.mkdir(parents=True)
    (template / "subject.txt").write_text("Hello")
    (template / "body.txt").write_text("Hello\n")
    app = Effects(
        f"sqlite:///{tmp_path}/none.db", job_types=[Scripted()], templates=tmp_path / "emails",
        email_from="shop@shop.example", smtp_url="smtp://127.0.0.1:1?tls=none",
    )  # fmt: skip
    yield app
    app.dispose()


CALLS: dict[str, tuple[Callable[..., Any], tuple[str, ...]]] = {
    "enqueue": (
        lambda app, **options: enqueue(**{"job_type": "scripted", "payload": {}, **options}, effects=app),
        ("job_type", "payload", "key", "queue", "priority", "run_at", "expires_at", "group_key", "limit_key",
         "max_attempts", "trace_context", "on_unknown", "session"),
    ),
    "deliver_webhook": (
        lambda app, session=None, **options: deliver_webhook(
            WebhookEvent(**{"type": "order.paid", "data": {}, **options}), session=session, effects=app
        ),
        ("type", "data", "key", "id", "occurred_at", "tenant", "ordering_key", "session"),
    ),
    "send_templated_email": (
        lambda app, **options: send_templated_email(
            **{"template": "hello", "to": "ann@shop.example", "context": {}, **options}, effects=app
        ),
        ("template", "to", "context", "event_id", "key", "run_at", "expires_at", "on_unknown", "group", "session"),
    ),
    "request_report": (
        lambda app, **options: request_report(**{"name": "none", **options}, effects=app), ("name", "format", "notify")
    ),
}  # fmt: skip
ARGUMENTS = [(call, argument) for call, (_, arguments) in CALLS.items() for argument in arguments]


@pytest.mark.parametrize(("call", "argument"), ARGUMENTS, ids=str)
def test_whatever_an_argument_is_the_error_is_ours(unused: Effects, call: str, argument: str) -> None:
    texts = {}
    for name, make in VALUES.items():
        value = make()
        try:
            CALLS[call][0](unused, **{argument: value})
        except EffectsError as error:  # what is good gets as far as the database, which is not there
            texts[name] = str(error)
    assert texts.keys() == VALUES.keys()
    assert [name for name, said in texts.items() if len(said) > 1000 or "\n" in said] == []


NAIVE = datetime.datetime(2026, 1, 1)  # noqa: DTZ001
EMAIL = NewEmail("hello", to="a@b.example", context={})
CALL_MISTAKES: list[tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any], str]] = [
    (enqueue, ("scripted", {}), {"run_at": "tomorrow"}, "run_at is a str; give an aware datetime"),
    (enqueue, ("scripted", {}), {"run_at": NAIVE}, "run_at has no time zone; give an aware datetime"),
    (enqueue, (Scripted, {}), {}, "job_type is the class Scripted; give a text"),
    (enqueue, ("scripted", {}), {"key": 7}, "key is an int; give a text of 1 to 255"),
    (enqueue, ("scripted", {}), {"priority": "high"}, "priority is a str; give a whole number"),
    (enqueue, ("scripted", {}), {"max_attempts": True}, "max_attempts is a bool; give a whole number, 1 to 1000"),
    (enqueue, ("scripted", {}), {"effects": "sqlite:///shop.db"}, "effects is a str; give an Effects"),
    (enqueue_many, ([NewJob(job_type="scripted", payload={}), {}],), {}, r"jobs\[1\] is a dict; give a NewJob"),
    (enqueue_many, (7,), {}, "jobs is an int; give a list of NewJob"),
    (deliver_webhook, ({"type": "order.paid"},), {}, r"event is a dict; give a WebhookEvent"),
    (send_templated_emails, (["hello"],), {}, r"emails\[0\] is a str; give a NewEmail"),
    (send_templated_emails, (EMAIL,), {}, "emails is a NewEmail; give a list"),
    (request_report, (["sales"],), {}, "name is a list; give a text"),
    (request_report, ("sales",), {"format": 5}, "format is an int; give a text"),
]


@pytest.mark.parametrize(
    ("call", "values", "options", "says"), CALL_MISTAKES, ids=[case[-1][:40] for case in CALL_MISTAKES]
)
def test_a_mistake_in_a_call_is_named(
    unused: Effects, call: Callable[..., Any], values: tuple[Any, ...], options: dict[str, Any], says: str
) -> None:
    with pytest.raises(EnqueueError, match=says):
        call(*values, **{"effects": unused, **options})
