"""From the event to the partner and back: the worker, a real receiver, both databases."""

from __future__ import annotations

import base64
import json
import logging
from typing import Any

import pytest
import standardwebhooks
from sqlalchemy import text

from effects import Effects, Fixed, RetryPolicy
from effects.keys.encryption import generate_key
from effects.keys.signing import parse_secret
from effects.operate.evidence import find_evidence
from effects_webhooks import (
    WebhookDelivery,
    WebhookEvent,
    add_endpoint,
    deliver_webhook,
    deliver_webhooks,
    disable_endpoint,
    enable_endpoint,
    generate_secret,
    verify,
)
from effects_webhooks.tables import endpoint_rows as endpoint_table
from effects_webhooks.writing import limit_key
from tests.conftest import AppFactory
from tests.peers.http import Answer, Receiver
from tests.webhooks.conftest import KEYS, Rows, drain, statements


def ledger(rows: Rows) -> list[dict[str, Any]]:
    return rows("SELECT state, status_code, tries FROM effects_delivered_webhooks ORDER BY job_id")


def test_every_event_arrives_signed_and_byte_for_byte_as_stored(shop: Effects, rows: Rows) -> None:
    with Receiver() as receiver:
        endpoint = add_endpoint(receiver.url, effects=shop)
        events = [WebhookEvent("order.paid", {"n": n, "name": "Zoë ☕", "z": {"b": 1, "a": 2}}) for n in range(20)]
        receipts = deliver_webhooks(events, effects=shop)
        assert drain(shop) == {"succeeded": 20}
        stored = {row["id"]: bytes(row["body"]) for row in rows("SELECT id, body FROM effects_webhook_events")}
        assert {request.message_id: request.body for request in receiver.requests} == stored
        assert set(stored) == {receipt.event_id for receipt in receipts}
        for request in receiver.requests:
            assert verify(endpoint.secret, request.headers, request.body) == request.message_id
            message = standardwebhooks.Webhook(endpoint.secret).verify(request.body, request.headers)
            assert message["data"]["name"] == "Zoë ☕"
            assert request.headers["content-type"] == "application/json"
            assert request.headers["accept-encoding"] == "identity"
    assert ledger(rows) == [{"state": "done", "status_code": 200, "tries": 1}] * 20


@pytest.mark.slow
def test_every_try_has_the_same_id_and_bytes_and_a_fresh_signature(shop: Effects, rows: Rows) -> None:
    with Receiver([503, 404, Answer(reset=True), 200]) as receiver:
        endpoint = add_endpoint(receiver.url, effects=shop)
        receipt = deliver_webhook(WebhookEvent("order.paid", {"n": 1}), effects=shop)
        seen = []
        for wait in (0, 6, 400, 2500):
            shop.store.shift_clock(wait)
            drain(shop)
            seen.append(ledger(rows)[0])
        assert {(request.message_id, request.body) for request in receiver.requests} == {
            (receipt.event_id, receiver.requests[0].body)
        }
        for request in receiver.requests:
            verify(endpoint.secret, request.headers, request.body)
    assert seen == [
        {"state": "intended", "status_code": 503, "tries": 1},
        {"state": "intended", "status_code": 404, "tries": 2},
        {"state": "unknown", "status_code": 404, "tries": 3},
        {"state": "done", "status_code": 200, "tries": 4},
    ]
    attempts = rows("SELECT outcome, verdict, error_code FROM effects_job_attempts ORDER BY attempt")
    assert [tuple(row.values()) for row in attempts] == [
        ("failed", "not_done", "http_503"),
        ("failed", "not_done", "http_404"),
        ("unknown", "unknown", "no_answer"),
        ("succeeded", "done", None),
    ]


def test_the_schedule_is_the_listed_one(shop: Effects, rows: Rows) -> None:
    policy = shop.job_types.get("webhook.deliver").retry
    assert policy.max_attempts == 10
    assert [policy.delay_seconds(attempt, draw=lambda: 0.0) for attempt in range(1, 10)] == [
        5, 300, 1800, 7200, 18_000, 36_000, 50_400, 72_000, 86_400,
    ]  # fmt: skip
    assert sum(policy.delay_seconds(attempt, draw=lambda: 1.0) for attempt in range(1, 10)) < policy.max_age_seconds


def test_a_shorter_schedule_may_replace_it_and_its_end_is_a_dead_job(shop: Effects, rows: Rows) -> None:
    policy = RetryPolicy(backoff=Fixed(0), max_attempts=3)
    shop.job_types.replace(WebhookDelivery(shop, retry=policy))
    with Receiver([Answer(500, b"gone \x1b[31m")]) as receiver:
        add_endpoint(receiver.url, effects=shop)
        deliver_webhook(WebhookEvent("order.paid", {}), effects=shop)
        drain(shop)
        assert len(receiver.requests) == 3
    assert ledger(rows) == [{"state": "refused", "status_code": 500, "tries": 3}]
    history = rows("SELECT status, error_code, last_error FROM effects_job_history")
    assert [(row["status"], row["error_code"]) for row in history] == [("dead", "http_500")]
    detail = rows("SELECT detail FROM effects_job_attempts ORDER BY attempt DESC")[0]["detail"]
    detail = json.loads(detail) if isinstance(detail, str) else detail
    assert (detail["status"], detail["sent"], detail["response"]) == (500, "answered", "gone \\x1b[31m")


def test_one_dead_receiver_does_not_affect_another(shop: Effects, rows: Rows) -> None:
    with Receiver() as good, Receiver([500]) as bad:
        add_endpoint(good.url, effects=shop)
        add_endpoint(bad.url, effects=shop)
        deliver_webhooks([WebhookEvent("order.paid", {"n": n}) for n in range(10)], effects=shop)
        assert drain(shop) == {"succeeded": 10, "failed": 10}
        assert len(good.requests) == 10


@pytest.mark.slow
def test_what_is_in_flight_to_an_endpoint_is_capped_by_a_row_of_limits(shop: Effects, rows: Rows) -> None:
    with Receiver() as receiver:
        endpoint = add_endpoint(receiver.url, effects=shop)
    limits = rows("SELECT limit_key, max_in_flight FROM effects_limits")
    assert limits == [{"limit_key": limit_key(endpoint.id), "max_in_flight": 16}]


# -- what is read when the request is sent -------------------------------------------------------------------------


def test_disabling_cancels_waiting_deliveries_and_enabling_does_not_restore_them(shop: Effects, rows: Rows) -> None:
    with Receiver() as receiver:
        endpoint = add_endpoint(receiver.url, effects=shop)
        deliver_webhook(WebhookEvent("order.paid", {}), effects=shop)
        disable_endpoint(endpoint.id, reason="they asked", effects=shop)
        assert drain(shop) == {"cancelled": 1}
        enable_endpoint(endpoint.id, effects=shop)
        deliver_webhook(WebhookEvent("order.paid", {}), effects=shop)
        assert drain(shop) == {"succeeded": 1}
        assert len(receiver.requests) == 1
    assert ledger(rows) == [
        {"state": "abandoned", "status_code": None, "tries": 0},
        {"state": "done", "status_code": 200, "tries": 1},
    ]


def test_while_a_secret_is_replaced_both_sign_the_newest_first(shop: Effects) -> None:
    with Receiver() as receiver:
        endpoint = add_endpoint(receiver.url, effects=shop)
        newer, ended = generate_secret(), generate_secret()
        with shop.store.begin() as connection:
            for secret_id, secret in (("sec_zz", newer), ("sec_ended", ended)):
                sealed = shop.keys.seal(
                    parse_secret(secret), table="webhook_secrets", row=f"{endpoint.id}/{secret_id}", field="sealed"
                )
                endpoint_table.insert_secret(
                    shop.store, connection, secret_id=secret_id, endpoint_id=endpoint.id, sealed=sealed
                )
            for secret_id, column, seconds in (("sec_zz", "created_at", "3600"), ("sec_ended", "expires_at", "-1")):
                moment = shop.store.sql.after(seconds)
                connection.execute(
                    text(f"UPDATE effects_webhook_secrets SET {column} = {moment} WHERE id = '{secret_id}'")
                )
        deliver_webhook(WebhookEvent("order.paid", {}), effects=shop)
        drain(shop)
        request = receiver.requests[0]
    tokens = request.headers["webhook-signature"].split(" ")
    assert len(tokens) == 2
    for secret, token in zip((newer, endpoint.secret), tokens, strict=True):
        verify(secret, {**request.headers, "webhook-signature": token}, request.body)


def test_an_address_that_became_forbidden_is_refused_before_a_byte_is_sent(
    shop: Effects, app_factory: AppFactory, rows: Rows
) -> None:
    strict = app_factory(job_types=[], keys=KEYS)
    with Receiver() as receiver:
        add_endpoint(receiver.url, effects=shop)
        deliver_webhook(WebhookEvent("order.paid", {}), effects=shop)
        assert drain(strict) == {"dead": 1}
        assert receiver.connections == []
    history = rows("SELECT status, error_code, last_error FROM effects_job_history")
    assert (history[0]["status"], history[0]["error_code"]) == ("dead", "blocked_address")
    assert "127.0.0.1" not in history[0]["last_error"]


@pytest.mark.parametrize("column", ["secrets", "headers"])
def test_a_sealed_value_of_another_endpoint_is_refused_at_once(shop: Effects, rows: Rows, column: str) -> None:
    with Receiver() as receiver:
        for event_type in ("order.paid", "order.sent"):
            add_endpoint(f"{receiver.url}/{event_type}", [event_type], headers={"x-shop": event_type}, effects=shop)
        first = "(SELECT sealed FROM effects_webhook_secrets LIMIT 1)"
        statement = f"UPDATE effects_webhook_secrets SET sealed = {first}"
        if column == "headers":
            first = "(SELECT headers FROM effects_webhook_endpoints WHERE url LIKE '%paid')"
            statement = f"UPDATE effects_webhook_endpoints SET headers = {first}"
        with shop.store.begin() as connection:
            connection.execute(text(statement))
        deliver_webhooks([WebhookEvent("order.paid", {}), WebhookEvent("order.sent", {})], effects=shop)
        assert drain(shop) == {"succeeded": 1, "dead": 1}
        assert len(receiver.requests) == 1
    history = rows("SELECT error_code FROM effects_job_history WHERE status = 'dead'")
    assert [entry["error_code"] for entry in history] == ["payload_invalid"]


def test_a_missing_key_uses_up_no_try_and_is_logged(
    shop: Effects, app_factory: AppFactory, rows: Rows, caplog: pytest.LogCaptureFixture
) -> None:
    keyless = app_factory(job_types=[], keys=f"k2={generate_key()}", allow_private_addresses=True)
    with Receiver() as receiver:
        add_endpoint(receiver.url, effects=shop)
        deliver_webhooks([WebhookEvent("order.paid", {"n": n}) for n in range(3)], effects=shop)
        with caplog.at_level(logging.ERROR, logger="effects.worker"):
            assert drain(keyless) == {"snoozed": 3}
        assert [record.message for record in caplog.records if record.name == "effects.worker"] == ["job.waiting"]
        assert "'k1'" in rows("SELECT last_error FROM effects_jobs")[0]["last_error"]
        assert receiver.requests == []
        shop.store.shift_clock(61)
        assert drain(shop) == {"succeeded": 3}
    assert {row["attempts"] for row in rows("SELECT attempts FROM effects_job_history")} == {1}


def test_a_secret_that_was_copied_to_another_endpoint_does_not_sign(shop: Effects, rows: Rows) -> None:
    with Receiver() as receiver:
        ours, theirs = (add_endpoint(receiver.url, [name], effects=shop) for name in ("a", "b"))
        with shop.store.begin() as connection:
            connection.execute(text("DELETE FROM effects_webhook_secrets WHERE endpoint_id = :id"), {"id": theirs.id})
            connection.execute(text("UPDATE effects_webhook_secrets SET endpoint_id = :id"), {"id": theirs.id})
        deliver_webhooks([WebhookEvent("a", {}), WebhookEvent("b", {})], effects=shop)
        # None of ours is left: the endpoint is paused for all workers. Theirs may wait for the right value of the key.
        assert drain(shop) == {"snoozed": 1, "paused": 1}
        assert receiver.requests == []
        assert [row["attempts"] for row in rows("SELECT attempts FROM effects_jobs")] == [0, 0]
    assert ours.secret != theirs.secret


def test_secrets_are_nowhere_in_the_database_in_clear(shop: Effects, rows: Rows) -> None:
    endpoint = add_endpoint("http://127.0.0.1:9/", effects=shop)
    key = base64.b64decode(endpoint.secret.removeprefix("whsec_"))
    for table in ("webhook_secrets", "webhook_endpoints"):
        for row in rows(f"SELECT * FROM effects_{table}"):
            for value in row.values():
                raw = bytes(value) if isinstance(value, bytes | memoryview) else str(value).encode()
                assert key not in raw
                assert endpoint.secret.removeprefix("whsec_").encode() not in raw
    assert endpoint.secret not in repr(endpoint)


def test_why_finds_deliveries_by_the_callers_key_the_events_id_and_the_pair(shop: Effects) -> None:
    first, second = (add_endpoint("http://127.0.0.1:9/", effects=shop).id for _ in range(2))
    receipt = deliver_webhook(WebhookEvent("order.paid", {}, key="order:1:paid"), effects=shop)
    deliver_webhook(WebhookEvent("order.paid", {}, key="order:2:paid", tenant="t"), effects=shop)
    both = {f"{receipt.event_id}:{first}", f"{receipt.event_id}:{second}"}
    for key, expected in (
        ("order:1:paid", both),
        (receipt.event_id, both),
        (f"{receipt.event_id}:{second}", {f"{receipt.event_id}:{second}"}),
    ):
        effects = find_evidence(shop, key)
        assert {evidence.key for evidence in effects} == expected
        assert {evidence.state for evidence in effects} == {"waiting"}


# -- odd rows --------------------------------------------------------------------------------------------------------


def test_a_plain_insert_is_delivered(shop: Effects, rows: Rows) -> None:
    with Receiver() as receiver:
        receipt = deliver_webhook(WebhookEvent("order.paid", {}), effects=shop)
        endpoint = add_endpoint(receiver.url, effects=shop)
        payload = json.dumps({"event_id": receipt.event_id, "endpoint_id": endpoint.id})
        with shop.store.begin() as connection:
            connection.execute(
                text("INSERT INTO effects_jobs (job_type, queue, payload) VALUES ('webhook.deliver', 'webhooks', :p)"),
                {"p": payload},
            )
        drain(shop)
        assert [request.message_id for request in receiver.requests] == [receipt.event_id]


@pytest.mark.parametrize("table", ["webhook_events", "webhook_endpoints"])
def test_a_delivery_whose_rows_are_gone_is_dead(shop: Effects, rows: Rows, table: str) -> None:
    with Receiver() as receiver:
        add_endpoint(receiver.url, effects=shop)
        deliver_webhook(WebhookEvent("order.paid", {}), effects=shop)
        with shop.store.begin() as connection:
            connection.execute(text(f"DELETE FROM effects_{table}"))
        assert drain(shop) == {"dead": 1}
        assert receiver.requests == []
    assert rows("SELECT error_code FROM effects_job_history") == [{"error_code": "not_found"}]


def test_a_batch_is_loaded_with_one_query_for_each_table(shop: Effects) -> None:
    job_type = shop.job_types.get("webhook.deliver")
    assert isinstance(job_type, WebhookDelivery)
    endpoints = [add_endpoint("http://127.0.0.1:9/", effects=shop) for _ in range(3)]
    receipts = deliver_webhooks([WebhookEvent("order.paid", {"n": n}) for n in range(10)], effects=shop)
    jobs: Any = [
        (_Numbered(job_id), job_type.decode(json.dumps({"event_id": receipt.event_id, "endpoint_id": endpoint.id})))
        for receipt in receipts
        for endpoint, job_id in zip(endpoints, receipt.job_ids, strict=True)
    ]
    with shop.store.read() as connection, statements(shop) as seen:
        loaded = job_type.load(connection, jobs)
    assert set(loaded) == {job.id for job, _ in jobs}
    assert len([statement for statement in seen if "effects_" in statement]) == 3


class _Numbered:
    """As much of a job as `load` looks at."""

    def __init__(self, job_id: int) -> None:
        self.id = job_id
        self.attempts = 1
