"""Sending again: the same id and bytes, who asked for it, and a recovery that goes on where it stopped."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from effects import Effects, status
from effects.errors import JobStateError
from effects.operate.tables.audit import audit
from effects_webhooks import (
    EndpointInvalid,
    EndpointNotFound,
    EventNotFound,
    WebhookEvent,
    add_endpoint,
    cancel_delivery,
    deliver_webhook,
    deliver_webhooks,
    delivery_key,
    disable_endpoint,
    enable_endpoint,
    recover,
    replay_delivery,
    replay_event,
)
from tests.peers.http import Receiver
from tests.support.refused_requeues import refuse_requeues_of
from tests.webhooks.conftest import Rows, drain

LONG_AGO = datetime(2000, 1, 1, tzinfo=UTC)


@pytest.mark.slow
def test_a_refused_delivery_is_sent_again_with_the_same_id_and_bytes(shop: Effects, rows: Rows) -> None:
    with Receiver([422, 200]) as receiver:
        endpoint = add_endpoint(receiver.url, effects=shop)
        receipt = deliver_webhook(WebhookEvent("order.paid", {"n": 1}), effects=shop)
        assert drain(shop) == {"dead": 1}
        job_id = replay_delivery(receipt.event_id, endpoint.id, actor="ann", reason="mended", effects=shop)
        assert drain(shop) == {"succeeded": 1}
        first, second = receiver.requests
        assert (first.message_id, first.body) == (second.message_id, second.body)
    assert rows("SELECT state, job_id FROM effects_delivered_webhooks") == [{"state": "done", "job_id": job_id}]
    actions = rows("SELECT action, actor, reason FROM effects_job_actions")
    assert actions == [{"action": "requeue", "actor": "ann", "reason": "mended"}]
    assert audit(shop.store, shop.ledgers) == []


def test_a_delivery_is_withdrawn_until_it_is_claimed(shop: Effects) -> None:
    with Receiver() as receiver:
        ids = [add_endpoint(receiver.url, effects=shop).id for _ in range(2)]
        event_id = deliver_webhook(WebhookEvent("order.paid", {}), effects=shop).event_id
        assert cancel_delivery(event_id, ids[0], actor="ann", reason="a mistake", effects=shop).prevented
        drain(shop)
        assert len(receiver.requests) == 1
    assert cancel_delivery(event_id, ids[1], actor="ann", effects=shop).result == "ended"
    keys = [delivery_key(event_id, endpoint_id) for endpoint_id in ids]
    assert [status(key=key, effects=shop).state for key in keys] == ["abandoned", "done"]
    with pytest.raises(EventNotFound):
        cancel_delivery(event_id, "ep_none", actor="ann", effects=shop)


def test_a_delivery_that_the_database_refuses_does_not_stop_a_recovery(shop: Effects) -> None:
    endpoint_id = add_endpoint("https://partner.example/", effects=shop).id
    receipts = [deliver_webhook(WebhookEvent("order.paid", {"n": n}), effects=shop) for n in range(3)]
    for receipt in receipts:
        cancel_delivery(receipt.event_id, endpoint_id, actor="ann", effects=shop)
    job_id = receipts[1].deliveries[0].job_id
    refuse_requeues_of(shop, job_id)
    recovered = recover(endpoint_id, since=LONG_AGO, actor="ann", effects=shop)
    assert len(recovered.jobs) == 2
    name = delivery_key(receipts[1].event_id, endpoint_id)
    assert recovered.skipped == [(name, f"job {job_id}: the database refuses it")]


@pytest.mark.slow
def test_a_replay_starts_its_tries_again(shop: Effects, rows: Rows) -> None:
    with Receiver([404]) as receiver:
        endpoint = add_endpoint(receiver.url, effects=shop)
        receipt = deliver_webhook(WebhookEvent("order.paid", {}), effects=shop)
        for _ in range(5):
            drain(shop)
            shop.store.shift_clock(8 * 3600)
        assert len(receiver.requests) == 5
        assert rows("SELECT status FROM effects_job_history") == [{"status": "dead"}]
        replay_delivery(receipt.event_id, endpoint.id, actor="ann", effects=shop)
        assert drain(shop) == {"failed": 1}


@pytest.mark.slow
def test_what_is_done_or_waits_is_left_alone(shop: Effects) -> None:
    with Receiver() as receiver:
        endpoint = add_endpoint(receiver.url, effects=shop)
        receipt = deliver_webhook(WebhookEvent("order.paid", {}), effects=shop)
        with pytest.raises(JobStateError, match="queued"):
            replay_delivery(receipt.event_id, endpoint.id, actor="ann", effects=shop)
        drain(shop)
        with pytest.raises(JobStateError, match="done"):
            replay_delivery(receipt.event_id, endpoint.id, actor="ann", effects=shop)
        replay_delivery(receipt.event_id, endpoint.id, actor="ann", confirm_done=True, effects=shop)
        drain(shop)
        assert len(receiver.requests) == 2
    with pytest.raises(EventNotFound):
        replay_delivery(receipt.event_id, "ep_none", actor="ann", effects=shop)
    with pytest.raises(EventNotFound):
        replay_event("msg_none", actor="ann", effects=shop)


@pytest.mark.slow
def test_an_event_is_sent_again_where_it_failed(shop: Effects) -> None:
    with Receiver([422, 200]) as bad, Receiver() as good:
        add_endpoint(bad.url, effects=shop)
        add_endpoint(good.url, effects=shop)
        receipt = deliver_webhook(WebhookEvent("order.paid", {}), effects=shop)
        assert drain(shop) == {"dead": 1, "succeeded": 1}
        done = replay_event(receipt.event_id, actor="ann", effects=shop)
        assert (len(done.jobs), len(done.skipped)) == (1, 1)
        assert "done" in done.skipped[0][1]
        assert drain(shop) == {"succeeded": 1}
        assert (len(bad.requests), len(good.requests)) == (2, 1)
        assert len(replay_event(receipt.event_id, actor="ann", confirm_done=True, effects=shop).jobs) == 2


@pytest.mark.slow
def test_recovery_continues_where_it_stopped_and_touches_no_other_endpoint(shop: Effects, rows: Rows) -> None:
    mended = False
    with Receiver(lambda request: 200 if mended else 422) as receiver, Receiver([422]) as bystander:
        endpoint, theirs = (add_endpoint(server.url, effects=shop) for server in (receiver, bystander))
        receipts = deliver_webhooks([WebhookEvent("order.paid", {"n": n}) for n in range(12)], effects=shop)
        assert drain(shop) == {"dead": 24}
        mended = True
        first = recover(endpoint.id, since=LONG_AGO, limit=5, actor="ann", effects=shop)
        assert len(first.jobs) == 5
        again = recover(endpoint.id, since=LONG_AGO, actor="ann", effects=shop)
        assert len(again.jobs) == 7
        assert recover(endpoint.id, since=LONG_AGO, actor="ann", effects=shop).jobs == []
        assert drain(shop) == {"succeeded": 12}
        assert {len(bodies) for bodies in receiver.bodies_by_id().values()} == {2}
        assert set(receiver.bodies_by_id()) == {receipt.event_id for receipt in receipts}
        assert len(bystander.requests) == 12
    assert rows("SELECT count(*) AS n FROM effects_job_actions WHERE actor = 'ann'") == [{"n": 12}]
    assert recover(theirs.id, since=datetime.now(UTC) + timedelta(hours=1), actor="ann", effects=shop).jobs == []
    assert recover(theirs.id, since=LONG_AGO, until=LONG_AGO, actor="ann", effects=shop).jobs == []
    assert audit(shop.store, shop.ledgers) == []


def test_a_recovery_leaves_what_fails_again_to_the_next_one(shop: Effects, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else it would send to an endpoint that refuses at once for as long as the two keep pace."""
    monkeypatch.setattr("effects_webhooks.admin.deliveries.PAGE", 1)

    def fail_again(done: int) -> None:
        assert drain(shop) == {"dead": 1}

    with Receiver([422]) as receiver:
        endpoint = add_endpoint(receiver.url, effects=shop)
        deliver_webhooks([WebhookEvent("order.paid", {"n": n}) for n in range(2)], effects=shop)
        assert drain(shop) == {"dead": 2}
        recovery = {"since": LONG_AGO, "limit": 5, "actor": "ann", "effects": shop}
        assert len(recover(endpoint.id, progress=fail_again, **recovery).jobs) == 2
        assert len(receiver.requests) == 4
        assert len(recover(endpoint.id, **recovery).jobs) == 2


@pytest.mark.slow
def test_what_ended_while_the_endpoint_was_disabled_comes_back(shop: Effects) -> None:
    with Receiver() as receiver:
        endpoint = add_endpoint(receiver.url, effects=shop)
        receipt = deliver_webhook(WebhookEvent("order.paid", {}), effects=shop)
        disable_endpoint(endpoint.id, effects=shop)
        assert drain(shop) == {"cancelled": 1}
        with pytest.raises(EndpointInvalid, match="enable"):
            replay_delivery(receipt.event_id, endpoint.id, actor="ann", effects=shop)
        [(_, reason)] = replay_event(receipt.event_id, actor="ann", effects=shop).skipped
        assert "is disabled" in reason
        with pytest.raises(EndpointInvalid, match="enable"):
            recover(endpoint.id, since=LONG_AGO, actor="ann", effects=shop)
        enable_endpoint(endpoint.id, effects=shop)
        assert len(recover(endpoint.id, since=LONG_AGO, actor="ann", effects=shop).jobs) == 1
        assert drain(shop) == {"succeeded": 1}
    with pytest.raises(EndpointNotFound):
        recover("ep_none", since=LONG_AGO, actor="ann", effects=shop)
    with pytest.raises(EndpointInvalid, match="time zone"):
        recover(endpoint.id, since=datetime(2026, 1, 1), actor="ann", effects=shop)  # noqa: DTZ001
