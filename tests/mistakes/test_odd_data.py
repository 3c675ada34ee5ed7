"""Odd values within what an app passes as data: taken, or refused in words, at the call."""

from __future__ import annotations

import datetime as dt
import math
import sys
import uuid
from collections import OrderedDict
from collections.abc import Callable, Iterator
from decimal import Decimal
from fractions import Fraction
from itertools import count
from pathlib import Path
from typing import Any, TypeAlias

import pytest

import effects_email as mail
import effects_reports as reports
import effects_webhooks as webhooks
from effects import Alert, DeadLetters, Effects, EffectsError, Schedule, StoreRejected, StoreUnavailable, enqueue
from tests.mistakes.odd_calls import ANN, BASE, build_app
from tests.support.sampling import sample

Give: TypeAlias = Callable[[Effects, Any], object]
VALUES = 12  # of each call; all with EFFECTS_TEST_FULL=1
HUGE = 10**5_000  # more digits than Python writes
_numbers = count()


def nested(depth: int) -> dict[str, Any]:
    outer: dict[str, Any] = {}
    inner = outer
    for _ in range(depth):
        inner["a"] = inner = {}
    return outer


def own_holder() -> dict[str, Any]:
    holder: dict[str, Any] = {}
    holder["a"] = holder
    return holder


def odd_data() -> dict[str, Any]:
    return {
        "huge": HUGE, "beyond 64 bits": 10**30, "nan": math.nan, "infinity": -math.inf, "decimal": Decimal("1e999999"),
        "signalling": Decimal("sNaN"), "fraction": Fraction(1, 3), "complex": 1j, "surrogate": "\ud800", "nul": "a\0b",
        "bytes": b"\xff", "view": memoryview(b"a"), "generator": iter("a"), "range": range(10**18), "set": {1, 2},
        "deep": nested(100_000), "own holder": own_holder(), "object": object(), "class": int, "module": sys,
        "whole keys": {1: 2}, "no key": {None: 1}, "key of two": {(1, 2): 1}, "key": {"\ud800": 1},
        "huge key": {HUGE: 1},
        "ordered": OrderedDict(a=1), "uuid": uuid.UUID(int=1), "duration": dt.timedelta.max, "first": dt.datetime.min,  # noqa: DTZ901

        "before the first": dt.datetime.min.replace(tzinfo=dt.timezone(dt.timedelta(hours=14))),
        "after the last": dt.datetime.max.replace(tzinfo=dt.timezone(dt.timedelta(hours=-14))),
        "time": dt.time(1, tzinfo=dt.UTC), "long": "x" * 3_000_000, "many": list(range(100_000)),
    }  # fmt: skip


def _declare(app: Effects, value: Any) -> None:
    Schedule("nightly", "scripted", {"a": value}, cron="0 2 * * *")


def _alert(app: Effects, value: Any) -> None:
    Alert("dead", DeadLetters(), notify="scripted", payload={"a": value}).check(app.job_types)


GIVEN_TO: dict[str, Give] = {
    "a job": lambda app, value: enqueue("scripted", {"a": value}, effects=app),
    "a job, as it is": lambda app, value: enqueue("scripted", value, effects=app),
    "an event": lambda app, value: webhooks.deliver_webhook(
        webhooks.WebhookEvent("order.paid", {"a": value}), effects=app
    ),
    "an event, as it is": lambda app, value: webhooks.deliver_webhook(
        webhooks.WebhookEvent("order.paid", value), effects=app
    ),
    "an example": lambda app, value: webhooks.EventType("a.b", example=value),
    "a context": lambda app, value: mail.send_templated_email(
        "hello", to=ANN, context={"name": value}, event_id=f"e{next(_numbers)}", effects=app
    ),
    "a preview": lambda app, value: mail.preview_email("hello", context={"name": value}, effects=app),
    "metadata": lambda app, value: mail.send_email(
        subject="s", text="t", to=ANN, event_id=f"e{next(_numbers)}", metadata={"a": value}, effects=app
    ),
    "params": lambda app, value: reports.request_report("signups", {"day": value}, effects=app),
    "params of a subscription": lambda app, value: reports.subscribe(
        "signups", {"day": value}, cron="0 2 * * *", to=ANN, template="hello", link_to=BASE, effects=app
    ),
    "a notice": lambda app, value: reports.mail_notice("hello", to=ANN, context={"a": value}, link_to=BASE),
    "a schedule": _declare,
    "an alert": _alert,
}


@pytest.fixture(scope="module")
def app(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Effects]:
    folder: Path = tmp_path_factory.mktemp("shop")
    app = build_app(folder, f"sqlite:///{folder}/effects.db")
    yield app
    app.dispose()


@pytest.mark.parametrize("receiver", GIVEN_TO)
def test_odd_data_is_taken_or_refused_in_words(app: Effects, receiver: str) -> None:
    faults: dict[str, str] = {}
    for name, value in sample(odd_data().items(), VALUES):
        try:
            GIVEN_TO[receiver](app, value)
        except (StoreRejected, StoreUnavailable) as error:
            faults[name] = f"only the database refused it: {error!r:.100}"
        except EffectsError as error:
            if len(str(error)) > 600:
                faults[name] = "the error quotes it"
        except Exception as error:
            faults[name] = f"{error!r:.100}"
    assert faults == {}


def test_the_error_says_where_and_why() -> None:
    for value, why in {
        HUGE: "an integer of too many digits", "\ud800": "half of a surrogate pair", 1j: "complex has no JSON form",
    }.items():  # fmt: skip
        with pytest.raises(EffectsError, match=rf"schedule 'nightly': payload.days\[1\]: {why}"):
            Schedule("nightly", "scripted", {"days": [1, value]}, cron="0 2 * * *")
