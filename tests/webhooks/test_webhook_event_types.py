"""Declared event types: checked at start, in every call that names a type or a pattern, and shown."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Callable
from decimal import Decimal
from typing import Any

import pytest

from effects import ConfigurationError, Effects, Schedule, enqueue
from effects.worker import Worker
from effects_webhooks import (
    ANY_TENANT,
    EndpointInvalid,
    EventInvalid,
    EventType,
    WebhookEvent,
    add_endpoint,
    change_endpoint,
    deliver_webhook,
    deliver_webhooks,
    ensure_endpoint,
    get_event,
    list_events,
    send_test,
)
from effects_webhooks.commands.send import send_lines
from effects_webhooks.settings import WebhookSettings
from tests.cli.conftest import Answer, effects
from tests.conftest import AppFactory
from tests.support.manual_workers import row
from tests.webhooks.conftest import KEYS

URL = "http://127.0.0.1:9/hooks"
PAID = EventType(
    "order.paid", "An order is paid.", example={"id": 1, "total": Decimal("1.90")}, schema={"type": "object"}
)
SHIPPED = EventType("order.item.shipped")
JOINED = EventType("user_joined")
UNDECLARED = r"type 'order.payed' is not declared in Effects\(webhook_event_types=\[…\]\); is it 'order.paid'\?"


@pytest.fixture
def declaring(app_factory: AppFactory) -> Effects:
    return app_factory(
        job_types=[], keys=KEYS, allow_private_addresses=True, webhook_event_types=[PAID, SHIPPED, JOINED]
    )


class Holder:
    """Not JSON, not a model."""


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: EventType(""), "name is ''; give a dotted name"),
        (lambda: EventType("order paid"), "name is 'order paid'; give a dotted name"),
        (lambda: EventType("order.*"), "name is"),
        (lambda: EventType("x" * 129), "name is"),
        (lambda: EventType(None), "name is None"),  # type: ignore[arg-type]
        (lambda: EventType("order.paid", "two\nlines"), "'order.paid': description"),
        (lambda: EventType("order.paid", "x" * 1001), "'order.paid': description"),
        (lambda: EventType("order.paid", None), "'order.paid': description"),  # type: ignore[arg-type]
        (lambda: EventType("order.paid", example=[1]), r"'order.paid': example is a list"),  # type: ignore[arg-type]
        (lambda: EventType("order.paid", example={"of": [Holder()]}), r"'order.paid': example\.of\[0\]: "),
        (lambda: EventType("order.paid", example={"total": math.nan}), "'order.paid': example.total: NaN"),
        (lambda: EventType("order.paid", schema="{}"), "'order.paid': schema is a str; give a dict"),  # type: ignore[arg-type]
        (lambda: EventType("order.paid", schema={"of": Holder()}), r"'order.paid': schema is not JSON \(TypeError\)"),
        (lambda: EventType("order.paid", schema={"x": "x" * 300_000}), "schema has more than 256 KiB"),
        (lambda: EventType("order.paid", big_integers="texts"), "'order.paid': big_integers"),  # type: ignore[arg-type]
    ],
)
def test_an_invalid_declaration_is_refused_where_it_is_made(make: Callable[[], Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        make()


@pytest.mark.parametrize(
    ("declared", "message"),
    [
        (PAID, r"webhook_event_types: give a list, such as \[EventType\('order.paid'\)\]"),
        ("order.paid", "webhook_event_types: give a list"),
        (["order.paid"], r"webhook_event_types holds .*; give EventType\('order.paid', …\)"),
        ([PAID, EventType("order.paid")], "two event types are called 'order.paid'"),
    ],
)
def test_what_is_declared_wrong_is_refused_at_the_start(app_factory: AppFactory, declared: Any, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        app_factory(job_types=[], webhook_event_types=declared)


def test_nothing_is_declared_by_the_environment() -> None:
    assert WebhookSettings.from_environment({"EFFECTS_WEBHOOK_EVENT_TYPES": "order.paid"}).webhook_event_types == ()


def test_an_event_of_another_type_is_refused_with_the_nearest(declaring: Effects) -> None:
    deliver_webhook(WebhookEvent("order.paid", {}), effects=declaring)
    with pytest.raises(EventInvalid, match=UNDECLARED):
        deliver_webhook(WebhookEvent("order.payed", {}), effects=declaring)
    with pytest.raises(EventInvalid, match=UNDECLARED):
        deliver_webhooks([WebhookEvent("user_joined", {}), WebhookEvent("order.payed", {})], effects=declaring)
    assert [event.type for event in list_events(tenant=ANY_TENANT, effects=declaring)] == ["order.paid"]


def test_a_line_of_another_type_is_refused_and_the_others_are_sent(declaring: Effects) -> None:
    lines = [b'{"type": "order.paid", "data": {}}', b'{"type": "order.payed", "data": {}}']
    result = send_lines(lines, declaring)
    assert (result.events, [number for number, _ in result.errors]) == (1, [2])
    assert "is it 'order.paid'?" in result.errors[0][1]


def test_a_job_that_composes_another_type_ends_dead(declaring: Effects) -> None:
    enqueue("webhook.compose", {"type": "order.payed"}, effects=declaring)
    assert Worker(declaring).drain(30).counts == {"dead": 1}
    assert "is it 'order.paid'?" in row(declaring, "job_history")["last_error"]


def test_a_schedule_that_would_compose_another_type_is_refused(app_factory: AppFactory) -> None:
    """By `init`, by `schedules add`, by doctor, and in the log of a starting worker."""
    nightly = Schedule("nightly", "webhook.compose", {"type": "order.payed"}, cron="0 2 * * *")
    app = app_factory(job_types=[], schedules=[nightly], webhook_event_types=[PAID])
    with pytest.raises(ConfigurationError, match=r"is it 'order\.paid'"):
        app.job_types.check_declared(nightly)


@pytest.mark.parametrize("pattern", ["*", "order.*", "order.paid", "order.item.*", "user_joined"])
def test_patterns_that_take_a_declared_type_are_taken(declaring: Effects, pattern: str) -> None:
    assert add_endpoint(URL, [pattern], effects=declaring).patterns == (pattern,)


@pytest.mark.parametrize(
    ("pattern", "hint"),
    [
        ("order.payed", "; is it 'order.paid'?"),
        ("orders.*", "; is it 'order.*'?"),
        ("order.items.*", "; is it 'order.item.*'?"),
        ("order", ""),  # the type itself, which none is
        ("user_joined.*", "; is it 'user_joined'?"),
        ("zzz", ""),
    ],
)
def test_patterns_that_take_none_are_refused_with_the_nearest(declaring: Effects, pattern: str, hint: str) -> None:
    endpoint = add_endpoint(URL, effects=declaring)
    calls: list[Callable[[], object]] = [
        lambda: add_endpoint(URL, ["*", pattern], effects=declaring),
        lambda: ensure_endpoint("crm", URL, [pattern], effects=declaring),
        lambda: change_endpoint(endpoint.id, patterns=[pattern], effects=declaring),
    ]
    for call in calls:
        with pytest.raises(EndpointInvalid) as refused:
            call()
        message = f"pattern {pattern!r} takes none of the event types that this app declares"
        assert str(refused.value).startswith(message)
        assert hint in str(refused.value)


def test_an_endpoint_of_a_pattern_that_takes_nothing_any_more_can_be_changed(
    app_factory: AppFactory, shop: Effects
) -> None:
    endpoint = add_endpoint(URL, ["order.cancelled"], effects=shop)
    declaring = app_factory(job_types=[], keys=KEYS, allow_private_addresses=True, webhook_event_types=[PAID])
    change_endpoint(endpoint.id, url=f"{URL}/new", effects=declaring)


def test_without_declarations_every_type_and_pattern_is_taken(shop: Effects) -> None:
    endpoint = add_endpoint(URL, ["anything.*"], effects=shop)
    assert deliver_webhook(WebhookEvent("anything.goes", {}), effects=shop).deliveries[0].endpoint_id == endpoint.id


def test_a_test_event_has_the_example_of_its_type(declaring: Effects) -> None:
    endpoint = add_endpoint(URL, ["user_joined"], effects=declaring)
    receipt = send_test(endpoint.id, event_type="order.paid", effects=declaring)
    body = json.loads(get_event(receipt.event_id, effects=declaring).body)
    assert (body["type"], body["data"]) == ("order.paid", {"id": 1, "total": "1.90"})
    plain = send_test(endpoint.id, effects=declaring)
    assert json.loads(get_event(plain.event_id, effects=declaring).body)["type"] == "webhook.test"


def test_a_test_event_of_no_declared_type_or_without_example_is_refused(declaring: Effects, shop: Effects) -> None:
    endpoint = add_endpoint(URL, effects=declaring)
    with pytest.raises(EventInvalid, match=UNDECLARED):
        send_test(endpoint.id, event_type="order.payed", effects=declaring)
    with pytest.raises(EventInvalid, match="the event type 'user_joined' has no example"):
        send_test(endpoint.id, event_type="user_joined", effects=declaring)
    with pytest.raises(EventInvalid, match=r"type 'order\.paid' is not declared"):
        send_test(endpoint.id, event_type="order.paid", effects=shop)
    assert list_events(effects=declaring) == []


APP = """
from effects import Effects
from effects_webhooks import EventType

app = Effects(
    {url!r}, keys={keys!r}, allow_private_addresses=True,
    webhook_event_types=[
        EventType("user.joined"), EventType("order.paid", "Paid.", example={{"id": 1}}, schema={{"type": "object"}})
    ],
)
"""


def test_the_commands_list_them_and_send_their_examples(
    declaring: Effects, database_url: str, tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delitem(sys.modules, "declaring_shop", raising=False)
    (tmp_path / "declaring_shop.py").write_text(APP.format(url=database_url, keys=KEYS))

    def webhooks(*arguments: str) -> Answer:
        return effects("--app", "declaring_shop:app", "webhooks", *arguments)

    assert [line.split() for line in webhooks("event-types").out.splitlines()[1:]] == [
        ["order.paid", "Paid.", "yes"],
        ["user.joined", "no"],
    ]
    assert json.loads(webhooks("event-types", "--json").out) == [
        {"name": "order.paid", "description": "Paid.", "example": {"id": 1}, "schema": {"type": "object"}},
        {"name": "user.joined", "description": "", "example": None, "schema": None},
    ]
    refused = webhooks("endpoints", "add", URL, "--pattern", "order.payed")
    assert (refused.exit_code, "is it 'order.paid'?" in refused.err) == (2, True)
    endpoint = add_endpoint(URL, effects=declaring)
    assert webhooks("test", endpoint.id, "--type", "order.paid").exit_code == 0
    assert [event.type for event in list_events(effects=declaring)] == ["order.paid"]
    assert effects("--database-url", database_url, "webhooks", "event-types").out == "no event types\n"


EXACT = 2**53 - 1
BIG = {"id": EXACT + 1, "of": [-EXACT - 1, EXACT, -EXACT, 10**40, 1.5e300, "7", True], "Größe": {"n": 2**63}}


def test_big_integers_leave_as_texts_where_the_type_says_so(app_factory: AppFactory) -> None:
    types = [EventType("a.texts", example=BIG, big_integers="text"), EventType("a.numbers", example=BIG)]
    app = app_factory(job_types=[], keys=KEYS, allow_private_addresses=True, webhook_event_types=types)
    endpoint = add_endpoint(URL, effects=app)
    texts = {"id": str(EXACT + 1), "of": [str(-EXACT - 1), EXACT, -EXACT, str(10**40), 1.5e300, "7", True],
             "Größe": {"n": str(2**63)}}  # fmt: skip
    for event_type, expected in ((types[0], texts), (types[1], BIG)):
        name = event_type.name
        event = WebhookEvent(name, BIG, key=f"k:{name}")
        event_id = deliver_webhook(event, effects=app).event_id
        assert deliver_webhook(event, effects=app).event_id == event_id
        test_id = send_test(endpoint.id, event_type=name, effects=app).event_id
        for each in (event_id, test_id):
            assert json.loads(get_event(each, effects=app).body)["data"] == expected
        assert event_type.example_data() == expected
