"""What an endpoint may ask for: retry rules, order, headers; events for many endpoints; the log of an attempt."""

from __future__ import annotations

import json
import threading
from typing import Any

import pytest

from effects import Effects
from effects.keys.encryption import generate_key
from effects.operate.tables.audit import audit
from effects.operate.tables.rotate import rotate as rotate_keys
from effects.store.limits import key_limits as limit_rows
from effects_webhooks import (
    EndpointInvalid,
    EndpointNotFound,
    EventInvalid,
    WebhookEvent,
    add_endpoint,
    change_endpoint,
    deliver_webhook,
    deliver_webhooks,
    disable_endpoint,
    get_endpoint,
    send_test,
)
from effects_webhooks.writing import limit_key
from tests.conftest import AppFactory
from tests.peers.http import Answer, Receiver, Request
from tests.support.sampling import is_full
from tests.webhooks.conftest import KEYS, Rows, drain

LOST_ANSWERS = 1000 if is_full() else 200


def details(rows: Rows) -> list[dict[str, Any]]:
    recorded = rows("SELECT detail FROM effects_job_attempts ORDER BY job_id, lease_token")
    return [json.loads(row["detail"]) if isinstance(row["detail"], str) else row["detail"] for row in recorded]


# -- retry rules ---------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_an_endpoints_rules_are_read_when_the_answer_comes(shop: Effects, rows: Rows) -> None:
    with Receiver([422]) as receiver:
        endpoint = add_endpoint(receiver.url, overrides={"4xx": "full"}, effects=shop)
        deliver_webhook(WebhookEvent("order.paid", {}), effects=shop)
        assert drain(shop) == {"failed": 1}
        change_endpoint(endpoint.id, overrides={}, effects=shop)
        shop.store.shift_clock(10)
        assert drain(shop) == {"dead": 1}
        change_endpoint(endpoint.id, profile="patient", effects=shop)
        deliver_webhook(WebhookEvent("order.paid", {}), effects=shop)
        assert drain(shop) == {"failed": 1}
    changed = get_endpoint(endpoint.id, effects=shop)
    assert (changed.profile, changed.overrides, changed.patterns) == ("patient", {}, ("*",))
    assert [detail["retry_class"] for detail in details(rows)] == ["full", "none", "short"]


def test_a_new_url_holds_for_what_waits(shop: Effects) -> None:
    with Receiver([500]) as old, Receiver() as new:
        endpoint = add_endpoint(old.url, effects=shop)
        receipt = deliver_webhook(WebhookEvent("order.paid", {}), effects=shop)
        drain(shop)
        change_endpoint(endpoint.id, url=new.url, patterns=["order.*"], effects=shop)
        shop.store.shift_clock(10)
        drain(shop)
        assert [request.message_id for request in new.requests] == [receipt.event_id]


@pytest.mark.parametrize(
    "wrong",
    [{"profile": "none such"}, {"overrides": {"404": "ever"}}, {"ordering": "sorted"}, {"url": "http://169.254.169.254/"},
     {"patterns": []}, {"headers": {"host": "x"}}],
)  # fmt: skip
def test_invalid_options_are_refused_and_change_nothing(shop: Effects, wrong: dict[str, Any]) -> None:
    endpoint = add_endpoint("http://127.0.0.1:9/", effects=shop)
    before = get_endpoint(endpoint.id, effects=shop)
    with pytest.raises(EndpointInvalid):
        change_endpoint(endpoint.id, **wrong, effects=shop)
    assert get_endpoint(endpoint.id, effects=shop) == before
    with pytest.raises(EndpointNotFound):
        change_endpoint("ep_none", effects=shop)


# -- headers -------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_headers_are_sent_sealed_and_kept_through_a_rotation_of_keys(
    shop: Effects, app_factory: AppFactory, rows: Rows
) -> None:
    with Receiver() as receiver:
        endpoint = add_endpoint(receiver.url, headers={"Authorization": "Bearer hunter2", "X-Team": "b"}, effects=shop)
        plain = add_endpoint(receiver.url, ["none"], effects=shop)
        stored = rows("SELECT * FROM effects_webhook_endpoints WHERE id = :id", id=endpoint.id)[0]
        assert "hunter2" not in repr({**stored, "headers": bytes(stored["headers"])})
        newer = app_factory(job_types=[], keys=f"k2={generate_key()},{KEYS}", allow_private_addresses=True)
        rotation = rotate_keys(newer.store, newer.keys, actor="ann")
        assert (rotation.left, rotation.unreadable) == ([], [])
        deliver_webhook(WebhookEvent("order.paid", {}), effects=newer)
        assert drain(newer) == {"succeeded": 1}
        headers = receiver.requests[0].headers
        assert (headers["authorization"], headers["x-team"]) == ("Bearer hunter2", "b")
        assert get_endpoint(endpoint.id, effects=newer).has_headers
        assert not get_endpoint(plain.id, effects=newer).has_headers
        change_endpoint(endpoint.id, headers={}, effects=newer)
        deliver_webhook(WebhookEvent("order.paid", {}), effects=newer)
        drain(newer)
        assert "authorization" not in receiver.requests[1].headers


@pytest.mark.parametrize(
    ("name", "value"),
    [("Host", "x"), ("content-type", "x"), ("Content-Length", "1"), ("Webhook-Id", "x"), ("webhook-signature", "x"),
     ("user-agent", "x"), ("Transfer-Encoding", "chunked"), ("proxy-authorization", "x"), ("Cookie", "a=b"),
     ("X-Forwarded-For", "1.1.1.1"), ("Connection", "close"), ("X A", "x"), ("X:", "x"), ("", "x"), ("X\r\nY", "x"),
     ("X-A", "a\r\nX-B: b"), ("X-A", "a\nb"), ("X-A", "a\0"), ("X-A", "ü"), ("X-A", "\u2028"), ("X-A", "\x85"),
     ("X-A", ""), ("X-A", " a"), ("X-A", "a" * 1001), ("ⅹ", "a"), ("expect", "100-continue")],
)  # fmt: skip
def test_headers_that_an_endpoint_may_not_set(shop: Effects, name: str, value: str) -> None:
    with pytest.raises(EndpointInvalid) as caught:
        add_endpoint("http://127.0.0.1:9/", headers={name: value}, effects=shop)
    assert "1.1.1.1" not in str(caught.value)


def test_headers_are_bounded_and_unique(shop: Effects) -> None:
    for wrong in ({f"x-{n}": "1" for n in range(21)}, {"X-A": "1", "x-a": "2"}):
        with pytest.raises(EndpointInvalid):
            add_endpoint("http://127.0.0.1:9/", headers=wrong, effects=shop)


# -- order ---------------------------------------------------------------------------------------------------------


def numbers(receiver: Receiver) -> list[int]:
    return [json.loads(request.body)["data"]["n"] for request in receiver.requests]


@pytest.mark.slow
def test_an_ordered_endpoint_gets_one_event_after_the_other(shop: Effects) -> None:
    with Receiver([200, 500, 200]) as receiver:
        add_endpoint(receiver.url, ordering="endpoint", effects=shop)
        deliver_webhooks([WebhookEvent("order.paid", {"n": n}) for n in range(5)], effects=shop)
        drain(shop)
        assert numbers(receiver) == [0, 1]  # the second failed, and holds those behind it
        shop.store.shift_clock(10)
        drain(shop)
        assert numbers(receiver) == [0, 1, 1, 2, 3, 4]
    assert audit(shop.store, shop.ledgers) == []


def test_order_by_key_holds_within_the_key_only(shop: Effects) -> None:
    def answer(request: Request) -> int:
        return 500 if json.loads(request.body)["data"]["n"] == 0 else 200

    with Receiver(answer) as receiver:
        add_endpoint(receiver.url, ordering="key", effects=shop)
        events = [WebhookEvent("order.paid", {"n": n}, ordering_key=f"order:{n % 2}") for n in range(4)]
        deliver_webhooks([*events, WebhookEvent("order.paid", {"n": 9})], effects=shop)
        drain(shop)
        assert sorted(numbers(receiver)) == [0, 1, 3, 9]
        assert [n for n in numbers(receiver) if n in (1, 3)] == [1, 3]


def test_an_ordering_key_is_short_and_printable() -> None:
    for wrong in ("", "a" * 201, "a\nb"):
        with pytest.raises(EventInvalid, match="ordering_key"):
            WebhookEvent("order.paid", {}, ordering_key=wrong)


# -- many endpoints ------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_more_than_100_endpoints_are_a_job_of_their_own(shop: Effects, rows: Rows) -> None:
    with Receiver() as receiver:
        for number in range(103):
            add_endpoint(receiver.url, ["a"] if number < 101 else ["b"], effects=shop)
        receipt, small = deliver_webhooks([WebhookEvent("a", {}), WebhookEvent("b", {})], effects=shop)
        assert (receipt.deliveries, receipt.fan_out_job_id is not None) == ((), True)
        assert (len(small.deliveries), small.fan_out_job_id) == (2, None)
        late = add_endpoint(receiver.url, ["a"], effects=shop)
        assert drain(shop)["succeeded"] == 1 + 101 + 2
        assert len(receiver.bodies_by_id()[receipt.event_id]) == 101
    deliveries = rows("SELECT endpoint_id FROM effects_delivered_webhooks WHERE event_id = :id", id=receipt.event_id)
    assert len({row["endpoint_id"] for row in deliveries}) == 101
    assert late.id not in {row["endpoint_id"] for row in deliveries}
    assert audit(shop.store, shop.ledgers) == []


def test_a_body_over_the_limit_is_a_clear_error_and_writes_nothing(shop: Effects, rows: Rows) -> None:
    add_endpoint("http://127.0.0.1:9/", effects=shop)
    with pytest.raises(EventInvalid, match="262,144"):
        deliver_webhook(WebhookEvent("order.paid", {"x": "a" * 300_000}), effects=shop)
    assert rows("SELECT * FROM effects_webhook_events") == []


def test_a_test_event_goes_to_one_endpoint_whatever_its_patterns(shop: Effects) -> None:
    with Receiver() as receiver, Receiver() as bystander:
        endpoint = add_endpoint(receiver.url, ["order.*"], tenant="t", effects=shop)
        add_endpoint(bystander.url, ["*"], tenant="t", effects=shop)
        receipt = send_test(endpoint.id, tenant="t", effects=shop)
        drain(shop)
        assert [request.message_id for request in receiver.requests] == [receipt.event_id]
        assert json.loads(receiver.requests[0].body)["type"] == "webhook.test"
        assert bystander.requests == []
    disable_endpoint(endpoint.id, tenant="t", effects=shop)
    with pytest.raises(EndpointInvalid, match="disabled"):
        send_test(endpoint.id, tenant="t", effects=shop)
    with pytest.raises(EndpointNotFound):
        send_test("ep_none", effects=shop)


# -- the log of an attempt -----------------------------------------------------------------------------------------


@pytest.mark.slow
def test_an_attempt_records_its_phases_durations_and_response(shop: Effects, rows: Rows) -> None:
    headers = {"x-trace": "abc", "set-cookie": "session=hunter2", "location": "https://x.example/a?token=hunter2"}
    script = [Answer(500, b"broken \x1b[2J", headers), Answer(reset=True), Answer(200)]
    with Receiver(script) as receiver:
        add_endpoint(receiver.url, effects=shop)
        deliver_webhook(WebhookEvent("order.paid", {}), effects=shop)
        for _ in range(3):
            drain(shop)
            shop.store.shift_clock(1000)
    first, second, third = details(rows)
    assert [detail["sent"] for detail in (first, second, third)] == ["answered", "sent_no_answer", "answered"]
    assert {"resolve", "connect", "write", "answer", "body", "total"} <= set(first["ms"])
    assert first["ms"]["total"] >= sum(value for name, value in first["ms"].items() if name != "total") - 1
    assert (first["status"], first["response"]) == (500, "broken \\x1b[2J")
    assert "x-trace: abc" in first["head"]
    assert "set-cookie: (hidden)" in first["head"]
    assert "location: https://x.example/a\n" in first["head"] + "\n"
    assert "hunter2" not in repr(first)
    assert "warning" not in first


def test_an_endpoint_that_cannot_be_reached_was_sent_nothing(shop: Effects, rows: Rows) -> None:
    with Receiver() as receiver:
        port = receiver.port
    add_endpoint(f"http://127.0.0.1:{port}/", effects=shop)
    deliver_webhook(WebhookEvent("order.paid", {}), effects=shop)
    drain(shop)
    assert details(rows)[0]["sent"] == "not_sent"


def test_at_most_four_requests_are_in_flight_to_an_endpoint(shop: Effects) -> None:
    gate, lock = threading.Event(), threading.Lock()
    open_now, most = 0, 0

    def answer(request: Request) -> Answer:
        nonlocal open_now, most
        with lock:
            open_now += 1
            most = max(most, open_now)
            if open_now == 4:
                gate.set()
        gate.wait(10)
        with lock:
            open_now -= 1
        return Answer(200)

    with Receiver(lambda request: Answer(200)) as receiver:
        receiver._script = answer  # answered under no lock of the receiver's
        add_endpoint(receiver.url, effects=shop)
        deliver_webhooks([WebhookEvent("order.paid", {"n": n}) for n in range(12)], effects=shop)
        assert drain(shop) == {"succeeded": 12}
    assert most == 4


@pytest.mark.slow
def test_answers_that_are_lost_repeat_no_more_than_that_and_the_same_bytes(shop: Effects, rows: Rows) -> None:
    seen: set[str] = set()

    def answer(request: Request) -> Answer:  # handled, and the answer is lost, once for each message
        first = request.message_id not in seen
        seen.add(request.message_id)
        return Answer(reset=first)

    with Receiver(answer) as receiver:
        endpoint = add_endpoint(receiver.url, effects=shop)
        with shop.store.begin() as connection:  # a breaker would let one through a minute
            limit_rows.set_limit(shop.store, connection, limit_key(endpoint.id), actor="test", breaker=None)
        deliver_webhooks([WebhookEvent("order.paid", {"n": n}) for n in range(LOST_ANSWERS)], effects=shop)
        drain(shop)
        shop.store.shift_clock(10)
        drain(shop)
        assert len(receiver.requests) == 2 * LOST_ANSWERS  # as many repeats as resets
        assert {(len(bodies), len(set(bodies))) for bodies in receiver.bodies_by_id().values()} == {(2, 1)}
    assert rows("SELECT state, count(*) AS n FROM effects_delivered_webhooks GROUP BY state") == [
        {"state": "done", "n": LOST_ANSWERS}
    ]
