"""What was sent to whom: the lists of deliveries and of events."""

from __future__ import annotations

from datetime import datetime

import msgspec

from effects import Effects, default
from effects.extend import moment, set_filters
from effects_webhooks.errors import EndpointNotFound, EventNotFound
from effects_webhooks.tables import delivery_lists as table
from effects_webhooks.tables import endpoint_rows
from effects_webhooks.tenants import Tenant, tenant_filter


class DeliverySummary(msgspec.Struct, frozen=True, kw_only=True):
    """A delivery: one event to one endpoint. The event's type is None once the event was deleted.

    `state`: intended, released, done, refused, unknown or abandoned. `status_code`: of the newest answer. `job_id`: the
    newest job.
    """

    event_id: str
    endpoint_id: str
    event_type: str | None
    state: str
    status_code: int | None
    tries: int
    job_id: int
    created_at: datetime


class DeliveryPage(msgspec.Struct, frozen=True):
    """Some deliveries, and the `before` of the next page: None at the end."""

    deliveries: list[DeliverySummary]
    next_before: int | None = None


class EventSummary(msgspec.Struct, frozen=True, kw_only=True):
    """An event without its body."""

    id: str
    tenant: str
    type: str
    key: str | None
    occurred_at: datetime
    created_at: datetime


def list_deliveries(
    *,
    endpoint_id: str | None = None,
    event_id: str | None = None,
    state: str | None = None,
    before: int | None = None,
    limit: int = 50,
    tenant: Tenant = None,
    effects: Effects | None = None,
) -> DeliveryPage:
    """List deliveries, newest first. By state, or by tenant alone, a page searches 100,000 jobs at most.

    Args:
        endpoint_id, event_id: of this endpoint, of this event.
        before: only deliveries whose newest job has a smaller id: the next page.
        limit: at most so many.
        tenant: whose. Default: those of no tenant. `ANY_TENANT`: all.
        effects: the Effects to use; default the process's.

    Raises:
        EndpointNotFound, EventNotFound: the tenant has none of this id.
    """
    app = effects or default()
    owner = tenant_filter(tenant)
    filters = set_filters({"endpoint_id": endpoint_id, "event_id": event_id, "state": state, "tenant": owner})
    with app.store.read() as connection:
        if endpoint_id is not None and endpoint_rows.endpoint(app.store, connection, endpoint_id, owner) is None:
            raise EndpointNotFound(f"there is no endpoint {endpoint_id!r}")
        if event_id is not None and not table.event_exists(app.store, connection, event_id, owner):
            raise EventNotFound(f"there is no event {event_id!r}")
        rows, searched_to = table.deliveries(app.store, connection, filters, before=before, limit=limit + 1)
    deliveries = [
        DeliverySummary(
            event_id=row.event_id,
            endpoint_id=row.endpoint_id,
            event_type=row.type,
            state=row.state,
            status_code=row.status_code,
            tries=row.tries,
            job_id=row.job_id,
            created_at=moment(row.created_at),
        )
        for row in rows[:limit]
    ]
    return DeliveryPage(deliveries, deliveries[-1].job_id if len(rows) > limit else searched_to)


def list_events(
    *, before: str | None = None, limit: int = 50, tenant: Tenant = None, effects: Effects | None = None
) -> list[EventSummary]:
    """List events, newest first.

    Args:
        before: only events stored before this one: the next page.
        limit: at most so many.
        tenant: whose. Default: those of no tenant. `ANY_TENANT`: all.
        effects: the Effects to use; default the process's.
    """
    app = effects or default()
    owner = tenant_filter(tenant)
    with app.store.read() as connection:
        return [
            EventSummary(
                id=row.id,
                tenant=row.tenant,
                type=row.type,
                key=row.key,
                occurred_at=moment(row.occurred_at),
                created_at=moment(row.created_at),
            )
            for row in table.events(app.store, connection, owner, before=before, limit=limit)
        ]
