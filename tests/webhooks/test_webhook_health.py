"""An endpoint's health: notices, disabling, enabling; 410; pauses of the whole endpoint; the breaker's trial."""

from __future__ import annotations

import threading
from contextlib import ExitStack
from typing import Any

import msgspec
import pytest

from effects import Done, Effects, Refused, Routing
from effects.model.job import Attempt
from effects.model.job_type import JobType
from effects.model.settlement import Execution
from effects.operate.tables import limit_status
from effects.operate.tables.audit import audit
from effects.store.limits import key_limits as limit_rows
from effects.store.queue.settle import settle
from effects.worker import Worker
from effects_webhooks import (
    WebhookEvent,
    add_endpoint,
    change_endpoint,
    deliver_webhook,
    deliver_webhooks,
    enable_endpoint,
    get_endpoint,
)
from effects_webhooks.tables.ledger import DeliveryRecord
from effects_webhooks.writing import limit_key
from tests.conftest import AppFactory
from tests.peers.http import Answer, Receiver, Request
from tests.support.manual_workers import ManualWorker
from tests.support.running import running
from tests.support.waiting import wait_until
from tests.webhooks.conftest import KEYS, Rows, drain

HOUR, DAY = 3600, 86_400


class TellOps(JobType[dict[str, Any]]):
    name = "ops.tell"

    def __init__(self) -> None:
        self.told: list[dict[str, Any]] = []

    def perform(self, payload: dict[str, Any], attempt: Attempt) -> None:
        self.told.append(payload)


@pytest.fixture
def ops() -> TellOps:
    return TellOps()


@pytest.fixture
def shop(app_factory: AppFactory, ops: TellOps) -> Effects:
    return app_factory(job_types=[ops], keys=KEYS, allow_private_addresses=True, webhook_notice_job_type="ops.tell")


def send(shop: Effects, count: int = 1) -> None:
    deliver_webhooks([WebhookEvent("order.paid", {"n": n}) for n in range(count)], effects=shop)
    drain(shop)


@pytest.mark.slow
def test_people_are_notified_after_1_24_and_72_hours_once_each_and_it_ends_after_5_days(
    shop: Effects, ops: TellOps, rows: Rows
) -> None:
    with Receiver([422]) as receiver:
        endpoint = add_endpoint(receiver.url, effects=shop)
        for wait in (0, HOUR + 1, HOUR, 23 * HOUR, HOUR, 48 * HOUR, HOUR):
            shop.store.shift_clock(wait)
            send(shop, 2)
        drain(shop)
        assert [notice["reason"] for notice in ops.told] == [
            "no success for 1 h",
            "no success for 24 h",
            "no success for 72 h",
        ]
        assert {(notice["notice"], notice["endpoint_id"]) for notice in ops.told} == {("failing", endpoint.id)}
        health = get_endpoint(endpoint.id, effects=shop)
        assert (health.status, health.failed_messages) == ("active", 14)
        assert health.failing_since is not None
        shop.store.shift_clock(2 * DAY)
        send(shop)
        drain(shop)
        health = get_endpoint(endpoint.id, effects=shop)
        assert health.status == "disabled"
        assert "5 days and 15 messages" in (health.reason or "")
        assert ops.told[-1]["notice"] == "disabled"
        before = len(receiver.requests)
        send(shop)
        assert len(receiver.requests) == before
        enable_endpoint(endpoint.id, effects=shop)
        send(shop)
        health = get_endpoint(endpoint.id, effects=shop)
        assert (health.status, health.failed_messages) == ("active", 1)  # counted from the start again
    assert audit(shop.store, shop.ledgers) == []


@pytest.mark.slow
def test_few_messages_do_not_end_an_endpoint(shop: Effects) -> None:
    with Receiver([422]) as receiver:
        endpoint = add_endpoint(receiver.url, effects=shop)
        for _ in range(9):
            send(shop)
            shop.store.shift_clock(DAY)
        assert get_endpoint(endpoint.id, effects=shop).status == "active"
        send(shop)
        assert get_endpoint(endpoint.id, effects=shop).status == "disabled"


@pytest.mark.slow
def test_a_success_resets_the_failure_count(shop: Effects, ops: TellOps) -> None:
    answers = [422] * 12 + [200] + [422] * 12
    with Receiver(answers) as receiver:
        endpoint = add_endpoint(receiver.url, effects=shop)
        send(shop, 12)
        shop.store.shift_clock(6 * DAY)
        send(shop)
        assert get_endpoint(endpoint.id, effects=shop).failing_since is None
        send(shop, 12)
        health = get_endpoint(endpoint.id, effects=shop)
        assert (health.status, health.failed_messages) == ("active", 12)
        assert ops.told == []


def test_health_of_a_working_endpoint_writes_no_row(shop: Effects, rows: Rows) -> None:
    with Receiver() as receiver:
        add_endpoint(receiver.url, effects=shop)
        send(shop, 5)
    assert rows("SELECT * FROM effects_webhook_health") == []


@pytest.mark.slow
def test_a_second_410_for_another_message_after_ten_minutes_disables_the_endpoint(shop: Effects) -> None:
    with Receiver([410]) as receiver:
        endpoint = add_endpoint(receiver.url, effects=shop)
        send(shop)
        send(shop)  # at once: one bad deploy answers so to everything
        assert get_endpoint(endpoint.id, effects=shop).status == "active"
        shop.store.shift_clock(601)
        send(shop)
        health = get_endpoint(endpoint.id, effects=shop)
        assert health.status == "disabled"
        assert "410" in (health.reason or "")


@pytest.mark.slow
def test_a_success_between_two_410s_cancels_the_first(shop: Effects) -> None:
    with Receiver([410, 200, 410, 410]) as receiver:
        endpoint = add_endpoint(receiver.url, effects=shop)
        for _ in range(3):
            send(shop)
            shop.store.shift_clock(700)
        assert get_endpoint(endpoint.id, effects=shop).status == "active"
        send(shop)
        assert get_endpoint(endpoint.id, effects=shop).status == "disabled"


@pytest.mark.parametrize(("requested", "status"), [(True, "disabled"), (False, "active")])
def test_a_success_in_the_same_batch_does_not_undo_a_request_to_disable(
    shop: Effects, requested: bool, status: str
) -> None:
    endpoint = add_endpoint("https://partner.test/", effects=shop)
    deliver_webhooks([WebhookEvent("order.paid", {"n": n}) for n in range(2)], effects=shop)
    worker = ManualWorker(shop, queue="webhooks")
    settlements = []
    for ending in (Refused("no more", code="http_400"), Done()):
        job = worker.claim_one()
        record = DeliveryRecord(
            msgspec.json.decode(job.payload)["event_id"], endpoint.id, 200 if isinstance(ending, Done) else 400,
            disable_requested=requested and isinstance(ending, Refused),
        )  # fmt: skip
        settlement = worker.decide(job, ending)
        settlements.append(msgspec.structs.replace(settlement, execution=Execution(job, private=record)))
    settle(shop.store, settlements, shop.ledgers)
    assert get_endpoint(endpoint.id, effects=shop).status == status


class WrongRoute(TellOps):
    def route(self, payload: dict[str, Any]) -> Routing:
        return Routing(queue=payload["team"])


@pytest.mark.slow
@pytest.mark.parametrize("job_type", ["no.such_type", "ops.tell"])
def test_a_notice_that_cannot_be_enqueued_does_not_harm_the_delivery(app_factory: AppFactory, job_type: str) -> None:
    shop = app_factory(
        job_types=[WrongRoute()], keys=KEYS, allow_private_addresses=True, webhook_notice_job_type=job_type
    )
    with Receiver([422]) as receiver:
        endpoint = add_endpoint(receiver.url, effects=shop)
        send(shop)
        shop.store.shift_clock(2 * HOUR)
        deliver_webhook(WebhookEvent("order.paid", {}), effects=shop)
        assert drain(shop) == {"dead": 1}
        assert get_endpoint(endpoint.id, effects=shop).failed_messages == 2


# -- pauses --------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_retry_after_pauses_the_whole_endpoint_and_no_other(shop: Effects, rows: Rows) -> None:
    with Receiver([Answer(429, headers={"retry-after": "3600"}), 200]) as slow, Receiver() as unaffected:
        add_endpoint(slow.url, ["a"], effects=shop)
        add_endpoint(unaffected.url, ["b"], effects=shop)
        deliver_webhook(WebhookEvent("a", {}), effects=shop)
        drain(shop)
        deliver_webhooks([WebhookEvent("a", {}), WebhookEvent("b", {})], effects=shop)
        drain(shop)
        assert (len(slow.requests), len(unaffected.requests)) == (1, 1)
        shop.store.shift_clock(3601)
        drain(shop)
        assert len(slow.requests) == 2  # the one that waited; the first waits out its jitter
        shop.store.shift_clock(1000)
        drain(shop)
        assert len(slow.requests) == 3
    assert rows("SELECT DISTINCT state FROM effects_delivered_webhooks") == [{"state": "done"}]


@pytest.mark.slow
def test_enabling_an_endpoint_closes_its_breaker_and_ends_its_pause(shop: Effects) -> None:
    answers = [500] * 10 + [Answer(429, headers={"retry-after": "86400"})] + [200]
    with Receiver(answers) as receiver:
        endpoint = add_endpoint(receiver.url, effects=shop)
        with shop.store.begin() as connection:
            limit_rows.set_limit(shop.store, connection, limit_key(endpoint.id), actor="test", max_in_flight=1)
        send(shop, 11)
        shop.store.shift_clock(61)
        drain(shop)
        assert len(receiver.requests) == 11
        send(shop)
        assert len(receiver.requests) == 11
        enable_endpoint(endpoint.id, effects=shop)
        assert drain(shop)["succeeded"] >= 1
        with shop.store.read() as connection:
            stands = limit_status.show(shop.store, connection, limit_key(endpoint.id))
        assert (stands.breaker_state, stands.paused_until, stands.limits.max_in_flight) == ("closed", None, 1)


@pytest.mark.slow
def test_a_failing_endpoint_gets_one_trial_request_at_a_time(shop: Effects) -> None:
    with Receiver([500]) as receiver:
        endpoint = add_endpoint(receiver.url, effects=shop)
        deliver_webhooks([WebhookEvent("order.paid", {"n": n}) for n in range(60)], effects=shop)
        drain(shop)
        first = len(receiver.requests)
        assert 10 <= first < 30  # ten in a row open the breaker; what was in flight goes on
        shop.store.shift_clock(120)
        drain(shop)
        assert len(receiver.requests) == first + 1
    with shop.store.read() as connection:
        assert limit_status.show(shop.store, connection, limit_key(endpoint.id)).breaker_state != "closed"


@pytest.mark.slow
def test_failing_receivers_never_hold_every_thread(shop: Effects) -> None:
    """Three that failed once and then fall silent could hold 12; of 10 in flight 7 are not for them."""
    gate = threading.Event()

    def fails_then_hangs(request: Request) -> Answer:
        return Answer(500) if request.headers["x-turn"] == "first" else Answer(wait=gate)

    with ExitStack() as stack:
        silent = [stack.enter_context(Receiver(fails_then_hangs)) for _ in range(3)]
        good = stack.enter_context(Receiver())
        endpoints = [
            add_endpoint(receiver.url, ["all"], headers={"x-turn": "first"}, effects=shop) for receiver in silent
        ]
        add_endpoint(good.url, ["good"], effects=shop)
        deliver_webhook(WebhookEvent("all", {}), effects=shop)
        drain(shop)
        for endpoint in endpoints:
            change_endpoint(endpoint.id, headers={"x-turn": "second"}, effects=shop)
        deliver_webhooks([WebhookEvent("all", {"n": n}) for n in range(4)], effects=shop)
        with running(Worker(shop, queues={"webhooks": 10})):
            wait_until(lambda: sum(len(receiver.requests) - 1 for receiver in silent) == 3)
            for _ in range(5):
                deliver_webhook(WebhookEvent("good", {}), effects=shop)
            good.wait_for(5)
            assert sum(len(receiver.requests) - 1 for receiver in silent) == 3
            gate.set()
            wait_until(lambda: sum(len(receiver.requests) - 1 for receiver in silent) >= 12)
