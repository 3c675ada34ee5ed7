"""For the tests of apps: `toolkit.webhooks`, every event that was stored, and to whom it goes.

    def test_a_purchase_tells_the_partner(effects_toolkit):
        add_endpoint("https://partner.example/hooks", ["order.*"])
        purchase("teapot")
        [event] = effects_toolkit.webhooks
        assert event.type == "order.paid" and event.data["item"] == "teapot"
        assert [delivery.url for delivery in event.deliveries] == ["https://partner.example/hooks"]

Nothing is sent. `effects_toolkit.drain()` lets the deliveries end as done; `state` then says so.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from effects_webhooks.admin.deliveries import EventSummary, list_deliveries, list_events
from effects_webhooks.jobs import WebhookDelivery
from effects_webhooks.tables import events as table
from effects_webhooks.tenants import ANY_TENANT

if TYPE_CHECKING:
    from effects.testing import Toolkit

LIST_MAX = 100_000  # no test has as many


class PartnerRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A request as the partner gets it: signed by the endpoint's secrets when it is looked at, as each attempt is.

    `headers` are those that are given, in lower case; the HTTP client adds `host` and `content-length`.
    """

    method: str
    url: str
    headers: dict[str, str]
    body: bytes


class StoredDelivery(msgspec.Struct, frozen=True, kw_only=True):
    """One event to one endpoint. `state`: intended until its job has run, then done."""

    endpoint_id: str
    url: str
    state: str
    request: PartnerRequest


class StoredEvent(msgspec.Struct, frozen=True, kw_only=True):
    """One event. `data` is the part of the body that the app gave; `body` is all of it, as partners get it."""

    id: str
    type: str
    key: str | None
    tenant: str
    data: Any
    body: bytes
    deliveries: list[StoredDelivery]


def webhooks(toolkit: Toolkit) -> list[StoredEvent]:
    """The entry point `effects.testing`: the events that were stored and committed so far, oldest first."""
    app = toolkit.app
    events = list_events(limit=LIST_MAX, tenant=ANY_TENANT, effects=app)
    events.sort(key=lambda event: (event.created_at, event.occurred_at, event.type))
    with app.store.read() as connection:
        bodies = {row.id: row.body for row in table.bodies(app.store, connection, {event.id for event in events})}
    return [_stored(toolkit, event, bytes(bodies[event.id])) for event in events]


def _stored(toolkit: Toolkit, event: EventSummary, body: bytes) -> StoredEvent:
    page = list_deliveries(event_id=event.id, limit=LIST_MAX, tenant=ANY_TENANT, effects=toolkit.app)
    deliveries = []
    for delivery in reversed(page.deliveries):
        request = _request(toolkit, event.id, delivery.endpoint_id, body)
        deliveries.append(
            StoredDelivery(
                endpoint_id=delivery.endpoint_id, url=request.url, state=delivery.state, request=request
            )
        )  # fmt: skip
    return StoredEvent(
        id=event.id, type=event.type, key=event.key, tenant=event.tenant, data=msgspec.json.decode(body)["data"],
        body=body, deliveries=deliveries,
    )  # fmt: skip


def _request(toolkit: Toolkit, event_id: str, endpoint_id: str, body: bytes) -> PartnerRequest:
    delivering = toolkit.app.job_types.get(WebhookDelivery.name)
    assert isinstance(delivering, WebhookDelivery)
    url, headers = delivering.request_of(event_id, endpoint_id, body)
    return PartnerRequest(method="POST", url=url, headers=headers, body=body)
