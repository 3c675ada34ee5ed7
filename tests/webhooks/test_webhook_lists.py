"""The lists of deliveries and of events: by endpoint, event, state and tenant, page after page."""

from __future__ import annotations

import pytest

from effects import Effects
from effects.store.limits.key_limits import unblock_limit
from effects.store.queue import cancellation
from effects.worker import Worker
from effects_webhooks import (
    ANY_TENANT,
    EndpointNotFound,
    EventNotFound,
    WebhookEvent,
    add_endpoint,
    deliver_webhook,
    get_delivery,
    get_event,
    list_deliveries,
    list_events,
)
from effects_webhooks.admin.deliveries import read_traffic
from effects_webhooks.tables.delivery_rows import STANDINGS
from effects_webhooks.writing import limit_key
from tests.cli.conftest import effects
from tests.peers.http import Receiver
from tests.webhooks.conftest import Rows

URL = "http://127.0.0.1:9/"


def send(shop: Effects, tenant: str | None, event_type: str = "order.paid") -> str:
    return deliver_webhook(WebhookEvent(event_type, {}, tenant=tenant), effects=shop).event_id


def test_deliveries_are_listed_by_endpoint_event_state_and_tenant(shop: Effects) -> None:
    first = add_endpoint(URL, ["order.*"], tenant="ann", effects=shop).id
    second = add_endpoint(URL, tenant="ann", effects=shop).id
    bobs = add_endpoint(URL, tenant="bob", effects=shop).id
    order, user, foreign = send(shop, "ann"), send(shop, "ann", "user.new"), send(shop, "bob")
    cancelled = list_deliveries(event_id=user, tenant="ann", effects=shop).deliveries[0].job_id
    cancellation.cancel(shop.store, shop.ledgers, cancelled, actor="test")

    def pairs(**filters: object) -> set[tuple[str, str]]:
        page = list_deliveries(effects=shop, **filters)  # type: ignore[arg-type]
        assert page.next_before is None
        return {(delivery.event_id, delivery.endpoint_id) for delivery in page.deliveries}

    assert pairs(tenant="ann") == {(order, first), (order, second), (user, second)}
    assert pairs(tenant="bob") == pairs(endpoint_id=bobs, tenant=ANY_TENANT) == {(foreign, bobs)}
    assert pairs(tenant=None) == set()
    assert pairs(endpoint_id=first, tenant="ann") == {(order, first)}
    assert pairs(event_id=order, tenant=ANY_TENANT) == {(order, first), (order, second)}
    assert pairs(event_id=order, endpoint_id=second, tenant="ann") == {(order, second)}
    assert pairs(state="abandoned", tenant=ANY_TENANT) == {(user, second)}
    assert len(pairs(tenant=ANY_TENANT)) == 4


def test_deliveries_that_are_tried_again_are_listed_as_retrying(shop: Effects, database_url: str) -> None:
    with Receiver([503]) as busy, Receiver([400]) as strict, Receiver() as well:
        for receiver in (busy, strict, well):
            add_endpoint(receiver.url, effects=shop)
        send(shop, None)
        Worker(shop).drain(max_seconds=50)
    send(shop, None)  # not tried yet
    [retrying] = list_deliveries(state="retrying", effects=shop).deliveries
    assert (retrying.state, retrying.status_code, retrying.tries, retrying.retrying) == ("intended", 503, 1, True)
    everything = list_deliveries(effects=shop).deliveries
    assert len(everything) == 6
    assert [delivery for delivery in everything if delivery.retrying] == [retrying]
    answer = effects("--database-url", database_url, "webhooks", "deliveries", "--status", "retrying")
    assert "intended (retrying)" in answer.out


def test_each_delivery_of_an_endpoint_has_one_standing(shop: Effects) -> None:
    with Receiver([200, 503, 400]) as receiver:
        endpoint_id = add_endpoint(receiver.url, ordering="endpoint", effects=shop).id
        for _ in range(3):
            send(shop, None)
        Worker(shop).drain(max_seconds=50)
        with shop.store.begin() as connection:
            unblock_limit(shop.store, connection, limit_key(endpoint_id))
    cancelled = send(shop, None)
    [job] = list_deliveries(event_id=cancelled, effects=shop).deliveries
    cancellation.cancel(shop.store, shop.ledgers, job.job_id, actor="test")
    listed = {
        standing: list_deliveries(endpoint_id=endpoint_id, standing=standing, effects=shop).deliveries
        for standing in STANDINGS
    }
    counted = read_traffic(shop, endpoint_id)
    assert counted.counts == {standing: len(deliveries) for standing, deliveries in listed.items()}
    assert counted.counts == {"failing": 1, "waiting": 1, "delivered": 1, "given_up": 1}
    every = list_deliveries(endpoint_id=endpoint_id, effects=shop).deliveries
    assert {delivery.job_id for delivery in every} == {delivery.job_id for each in listed.values() for delivery in each}
    assert counted.next_job in {delivery.job_id for delivery in (*listed["failing"], *listed["waiting"])}


def test_another_tenants_endpoint_or_event_is_not_found(shop: Effects) -> None:
    endpoint_id = add_endpoint(URL, tenant="ann", effects=shop).id
    event_id = send(shop, "ann")
    with pytest.raises(EndpointNotFound):
        list_deliveries(endpoint_id=endpoint_id, tenant="bob", effects=shop)
    with pytest.raises(EventNotFound):
        list_deliveries(event_id=event_id, effects=shop)
    assert list_events(before=event_id, tenant="bob", effects=shop) == []


def test_pages_of_deliveries_follow_each_other(shop: Effects) -> None:
    endpoint_id = add_endpoint(URL, effects=shop).id
    newest_first = [send(shop, None) for _ in range(5)][::-1]
    for filters in ({"endpoint_id": endpoint_id}, {}, {"state": "intended"}):
        seen: list[str] = []
        before: int | None = None
        for _ in range(3):
            page = list_deliveries(before=before, limit=2, effects=shop, **filters)  # type: ignore[arg-type]
            seen += [delivery.event_id for delivery in page.deliveries]
            before = page.next_before
        assert (seen, before) == (newest_first, None)


def test_events_are_listed_by_tenant_newest_first(shop: Effects, rows: Rows) -> None:
    for tenant in ("ann", "bob", "ann", None, "ann"):
        send(shop, tenant)
    newest_first = [
        row["id"] for row in rows("SELECT id FROM effects_webhook_events ORDER BY created_at DESC, id DESC")
    ]
    assert [event.id for event in list_events(tenant=ANY_TENANT, effects=shop)] == newest_first
    of_ann = [event.id for event in list_events(tenant="ann", effects=shop)]
    assert of_ann == [event_id for event_id in newest_first if event_id in of_ann]
    assert len(of_ann) == 3
    assert [event.tenant for event in list_events(effects=shop)] == [""]
    first, *others = of_ann
    assert [event.id for event in list_events(before=first, limit=1, tenant="ann", effects=shop)] == others[:1]


def test_a_delivery_and_an_event_are_read_by_their_tenant_only(shop: Effects) -> None:
    endpoint_id = add_endpoint("http://127.0.0.1:9/", ["order.read"], tenant="ann", effects=shop).id
    event_id = deliver_webhook(WebhookEvent("order.read", {"id": 7}, tenant="ann"), effects=shop).event_id
    for tenant in ("ann", ANY_TENANT):
        [listed] = list_deliveries(event_id=event_id, tenant=tenant, effects=shop).deliveries
        assert get_delivery(event_id, endpoint_id, tenant=tenant, effects=shop) == listed
        event = get_event(event_id, tenant=tenant, effects=shop)
        assert (event.type, event.tenant, event.body[-16:]) == ("order.read", "ann", b'"data":{"id":7}}')
        assert 'id":7' not in repr(event)
    for tenant in ("bob", None):
        with pytest.raises(EventNotFound, match="there is no delivery of"):
            get_delivery(event_id, endpoint_id, tenant=tenant, effects=shop)
        with pytest.raises(EventNotFound, match=f"there is no event '{event_id}'"):
            get_event(event_id, tenant=tenant, effects=shop)
    with pytest.raises(EventNotFound):
        get_delivery(event_id, "ep_none", tenant="ann", effects=shop)
