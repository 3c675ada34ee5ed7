"""Events and deliveries go when they are old and settled, and a partner's open failure keeps its event."""

from __future__ import annotations

from datetime import timedelta

import pytest

from effects import Done, Effects, Refused, Snooze, enqueue
from effects.app.retention import prune
from effects.operate.tables.audit import audit
from effects.store.effects import requeue as resolution
from effects_webhooks import WebhookEvent, add_endpoint, deliver_webhook
from tests.support.manual_workers import ManualWorker
from tests.webhooks.conftest import Rows

DAY = 86_400.0


def send(shop: Effects, key: str, ending: object | None) -> str:
    """An event that was delivered with this ending, or not at all."""
    receipt = deliver_webhook(WebhookEvent("order.paid", {"order": key}, key=key), effects=shop)
    if ending is not None:
        manual_worker = ManualWorker(shop, f"manual of {key}", queue="webhooks")
        manual_worker.settle(*((job, ending) for job in manual_worker.claim()))  # type: ignore[misc]
    return receipt.event_id


def left(rows: Rows) -> tuple[set[str], int]:
    events = {event["key"] for event in rows("SELECT key FROM effects_webhook_events")}
    return events, len(rows("SELECT event_id FROM effects_delivered_webhooks"))


def test_an_event_goes_after_the_last_of_its_deliveries(shop: Effects, rows: Rows) -> None:
    add_endpoint("http://127.0.0.1:1/a", ["*"], effects=shop)
    send(shop, "done", Done())
    send(shop, "dead", Refused("gone", code="http_410"))
    shop.store.shift_clock(89 * DAY)
    send(shop, "waiting", None)
    assert prune(shop).jobs == 1
    assert left(rows) == ({"done", "dead", "waiting"}, 3)
    assert audit(shop.store, shop.ledgers) == []

    shop.store.shift_clock(2 * DAY)
    assert prune(shop, dry_run=True).packages == {}  # its delivery goes first
    pruned = prune(shop)
    assert (pruned.effects, pruned.packages) == (1, {"webhook.deliver": 1})
    assert left(rows) == ({"dead", "waiting"}, 2)
    assert audit(shop.store, shop.ledgers) == []
    shop.store.shift_clock(1000 * DAY)
    prune(shop)
    assert left(rows) == ({"dead", "waiting"}, 2)
    assert not deliver_webhook(WebhookEvent("order.paid", {"order": "new"}, key="done"), effects=shop).existing


def test_an_event_without_deliveries_is_pruned_by_its_own_age(shop: Effects, rows: Rows) -> None:
    send(shop, "nobody", None)
    shop.store.shift_clock(89 * DAY)
    assert prune(shop).packages == {}
    shop.store.shift_clock(2 * DAY)
    assert prune(shop, dry_run=True).packages == {"webhook.deliver": 1}
    assert prune(shop).packages == {"webhook.deliver": 1}
    assert left(rows) == (set(), 0)


def test_an_event_with_an_unresolved_fan_out_is_kept(shop: Effects, rows: Rows) -> None:
    """Its first deliveries are over, those that the job was to make are not."""
    events = [send(shop, name, None) for name in ("dead", "live", "done")]
    jobs = [enqueue("webhook.fan_out", {"event_id": event_id}, effects=shop).job_id for event_id in events]
    manual_worker = ManualWorker(shop, queue="webhooks")
    claimed = {job.id: job for job in manual_worker.claim()}
    endings = zip(jobs, (Refused("no"), Snooze(200 * DAY), Done()), strict=True)
    manual_worker.settle(*((claimed[job_id], ending) for job_id, ending in endings))
    shop.store.shift_clock(91 * DAY)
    assert prune(shop).packages == {"webhook.deliver": 1}
    assert left(rows) == ({"dead", "live"}, 0)
    actor = {"actor": "test", "reason": "the partner is gone"}
    resolution.ignore(shop.store, shop.ledgers, jobs[0], **actor)
    shop.store.shift_clock(31 * DAY)
    prune(shop)
    assert left(rows) == ({"live"}, 0)


def test_pruning_walks_past_rows_that_are_still_needed(
    shop: Effects, rows: Rows, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("effects_webhooks.tables.events.PRUNE_PAGE", 3)
    for number in range(11):
        send(shop, f"a{number}", None)
    add_endpoint("http://127.0.0.1:1/a", ["*"], effects=shop)
    for number in range(4):
        send(shop, f"b{number}", None)
    for number in range(5):
        shop.store.shift_clock(timedelta(seconds=1).total_seconds())
        send(shop, f"c{number}", Refused("gone"))
    shop.store.shift_clock(91 * DAY)
    assert prune(shop).packages == {"webhook.deliver": 11}
    assert len(left(rows)[0]) == 9
