"""What was sent to whom: deliveries and events, one or a list."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import msgspec
from sqlalchemy import Row

from effects import Effects
from effects.extend import LEDGER_STATES, app_of, arguments, moment, optional, set_filters
from effects_webhooks.errors import EventInvalid, EventNotFound, no_endpoint
from effects_webhooks.tables import delivery_lists as table
from effects_webhooks.tables import endpoint_rows
from effects_webhooks.tenants import Tenant, tenant_filter

_STATES = (*LEDGER_STATES, "retrying")


class DeliverySummary(msgspec.Struct, frozen=True, kw_only=True):
    """A delivery: one event to one endpoint. The event's type is None once the event was deleted.

    `state`: intended, released, done, refused, unknown or abandoned. `retrying`: it failed and is going to be tried
    again. `status_code`: of the newest answer. `job_id`: the newest job.
    """

    event_id: str
    endpoint_id: str
    event_type: str | None
    state: str
    retrying: bool
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


class EventDetail(EventSummary, frozen=True, kw_only=True):
    """An event with the bytes that its endpoints receive."""

    body: bytes

    def __repr__(self) -> str:
        return f"EventDetail(id={self.id!r})"


@arguments.checked(EventInvalid, event_id=arguments.NAME)
def get_event(event_id: str, *, tenant: Tenant = None, effects: Effects | None = None) -> EventDetail:
    """Read an event.

    Args:
        event_id: of the event.
        tenant: whose. Default: those of no tenant. `ANY_TENANT`: all.
        effects: the Effects to use; default the process's.

    Raises:
        EventNotFound: the tenant has none of this id, or it was deleted at the end of its retention.
    """
    app = app_of(effects)
    owner = tenant_filter(tenant)
    with app.store.read() as connection:
        row = table.event(app.store, connection, event_id, owner)
    if row is None:
        raise EventNotFound(f"there is no event {event_id!r}")
    return EventDetail(**msgspec.structs.asdict(_event_summary(row)), body=bytes(row.body))


@arguments.checked(EventInvalid, event_id=arguments.NAME, endpoint_id=arguments.NAME)
def get_delivery(
    event_id: str, endpoint_id: str, *, tenant: Tenant = None, effects: Effects | None = None
) -> DeliverySummary:
    """Read the delivery of an event to an endpoint.

    Args:
        event_id, endpoint_id: of the event and of the endpoint.
        tenant: the endpoint's. Default: no tenant. `ANY_TENANT`: any.
        effects: the Effects to use; default the process's.

    Raises:
        EventNotFound: this event was not sent to an endpoint of the tenant with this id.
    """
    app = app_of(effects)
    owner = tenant_filter(tenant)
    with app.store.read() as connection:
        row = table.delivery(app.store, connection, event_id, endpoint_id, owner)
    if row is None:
        raise EventNotFound(f"there is no delivery of {event_id!r} to {endpoint_id!r}")
    return _delivery_summary(row)


@arguments.checked(
    EventInvalid,
    **dict.fromkeys(("endpoint_id", "event_id"), optional(arguments.NAME)),
    state=optional(arguments.one_of(_STATES)),
    before=optional(arguments.whole(0, 2**63 - 1)),
    limit=arguments.whole(1, arguments.LIST_MAX),
)
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
        state: as in DeliverySummary; or `retrying`.
        before: only deliveries whose newest job has a smaller id: the next page.
        limit: at most so many.
        tenant: whose. Default: those of no tenant. `ANY_TENANT`: all.
        effects: the Effects to use; default the process's.

    Raises:
        EndpointNotFound, EventNotFound: the tenant has none of this id.
    """
    app = app_of(effects)
    owner = tenant_filter(tenant)
    filters = set_filters({"endpoint_id": endpoint_id, "event_id": event_id, "state": state, "tenant": owner})
    with app.store.read() as connection:
        if endpoint_id is not None and endpoint_rows.endpoint(app.store, connection, endpoint_id, owner) is None:
            raise no_endpoint(endpoint_id)
        if event_id is not None and not table.event_exists(app.store, connection, event_id, owner):
            raise EventNotFound(f"there is no event {event_id!r}")
        rows, searched_to = table.deliveries(app.store, connection, filters, before=before, limit=limit + 1)
    deliveries = [_delivery_summary(row) for row in rows[:limit]]
    return DeliveryPage(deliveries, deliveries[-1].job_id if len(rows) > limit else searched_to)


@arguments.checked(EventInvalid, before=optional(arguments.NAME), limit=arguments.whole(1, arguments.LIST_MAX))
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
    app = app_of(effects)
    owner = tenant_filter(tenant)
    with app.store.read() as connection:
        rows = table.events(app.store, connection, owner, before=before, limit=limit)
    return [_event_summary(row) for row in rows]


def _delivery_summary(row: Row[Any]) -> DeliverySummary:
    return DeliverySummary(
        event_id=row.event_id,
        endpoint_id=row.endpoint_id,
        event_type=row.type,
        state=row.state,
        retrying=bool(row.retries),
        status_code=row.status_code,
        tries=row.tries,
        job_id=row.job_id,
        created_at=moment(row.created_at),
    )


def _event_summary(row: Row[Any]) -> EventSummary:
    return EventSummary(
        id=row.id,
        tenant=row.tenant,
        type=row.type,
        key=row.key,
        occurred_at=moment(row.occurred_at),
        created_at=moment(row.created_at),
    )
