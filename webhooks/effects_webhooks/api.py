"""What an app calls: send events to partners, in the app's own transaction."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from itertools import compress
from typing import Any

import msgspec
from sqlalchemy import Connection, Row

from effects import Effects, NewJob, default, enqueue_many
from effects.extend import NO_DIGEST, AnySession, IdempotentWriter, KeyHolder, app_of, each_of, write_once
from effects_webhooks.errors import EndpointInvalid, EndpointNotFound, EventInvalid
from effects_webhooks.identifiers import new_id
from effects_webhooks.request import WebhookEvent
from effects_webhooks.routing import Route, Routes
from effects_webhooks.tables import endpoint_rows as endpoints
from effects_webhooks.tables import events as table
from effects_webhooks.tables.events import EventRow
from effects_webhooks.tenants import Tenant, tenant_filter
from effects_webhooks.writing import BATCH, JOB_TYPE, Delivery, write_deliveries

FAN_OUT_TYPE = "webhook.fan_out"
TEST_TYPE = "webhook.test"
FAN_OUT_ABOVE = 100  # endpoints: from there on a job makes the deliveries, not the caller's transaction


class WebhookReceipt(msgspec.Struct, frozen=True, kw_only=True):
    """What `deliver_webhook` gives back. It becomes true when the caller's transaction commits.

    `event_id` is the `webhook-id` that partners see. `existing`: the key (or the id) was already used, and
    the rest is the first event's. `deliveries` is empty where no endpoint wants the event; it is stored all the same.
    Where more than 100 want it, `deliveries` is empty too, and the job `fan_out_job_id` makes them.
    """

    event_id: str
    deliveries: tuple[Delivery, ...] = ()
    existing: bool = False
    fan_out_job_id: int | None = None

    @property
    def job_ids(self) -> tuple[int, ...]:
        return tuple(delivery.job_id for delivery in self.deliveries)


def deliver_webhook(
    event: WebhookEvent, *, session: AnySession | None = None, effects: Effects | None = None
) -> WebhookReceipt:
    """Store an event and one delivery for each active endpoint whose patterns fit.

    Args:
        session: a SQLAlchemy Session or Connection, which is never committed by us: rolled back, or rolled
            back to a savepoint, there was no event. Without one, a transaction of our own.
        effects: the Effects to use; default the process's.

    Returns:
        The receipt. A crash before the commit leaves nothing; after it, every delivery is made at least
        once, with the same id and the same bytes on every try, or ends as a dead job.

    Raises:
        EventInvalid: the body has more than 256 KiB.
        IdempotencyConflict: the event's key, or id, was used with another type or other data.
        StoreUnavailable: the database is unavailable (without `session`). With a key, calling again is safe.
    """
    return deliver_webhooks([event], session=session, effects=effects)[0]


def deliver_webhooks(
    events: Iterable[WebhookEvent], *, session: AnySession | None = None, effects: Effects | None = None
) -> list[WebhookReceipt]:
    """`deliver_webhook` for many, in four statements for each 500 events.

    Raises:
        As `deliver_webhook`. After an IdempotencyConflict nothing of this call is written: it was rolled
        back to a savepoint.
    """
    app = app_of(effects, session)
    now = datetime.now(UTC)
    drafts = [_draft_event(app, event, now) for event in each_of(events, WebhookEvent, "events", EventInvalid)]
    if not drafts:
        return []
    with app.writing(session, {app.job_types.get(name).queue for name in (JOB_TYPE, FAN_OUT_TYPE)}) as connection:
        routes = Routes(app, connection, {draft.row.tenant for draft in drafts})
        return write_once(app.keys, connection, drafts, _EventWriter(app, connection, routes), batch=BATCH)


def send_test(endpoint_id: str, *, tenant: Tenant = None, effects: Effects | None = None) -> WebhookReceipt:
    """Send an event `webhook.test` to one endpoint, ignoring its patterns. Delivered like any other.

    Args:
        tenant: the endpoint's tenant; endpoints of others are not found. Default: no tenant. `ANY_TENANT`: any.

    Raises:
        EndpointNotFound: no endpoint has this id.
        EndpointInvalid: it is disabled.
    """
    app = effects or default()
    now = datetime.now(UTC)
    with app.writing(None, {app.job_types.get(JOB_TYPE).queue}) as connection:
        endpoint = endpoints.endpoint(app.store, connection, endpoint_id, tenant_filter(tenant))
        if endpoint is None:
            raise EndpointNotFound(f"there is no endpoint {endpoint_id!r}")
        if endpoint.status != "active":
            raise EndpointInvalid(f"{endpoint_id} is disabled; enable it first")
        event = WebhookEvent(TEST_TYPE, {"endpoint_id": endpoint_id}, tenant=endpoint.tenant or None)
        row = _draft_event(app, event, now).row
        table.insert_events(app.store, connection, [row])
        deliveries = write_deliveries(app, connection, [(row, Route(endpoint_id, endpoint.ordering))])
    return WebhookReceipt(event_id=row.id, deliveries=tuple(deliveries[row.id]))


class _NewEvent(msgspec.Struct, frozen=True):
    """A row to write, and the text that its digest is taken over."""

    row: EventRow
    canonical: str


def _draft_event(app: Effects, event: WebhookEvent, now: datetime) -> _NewEvent:
    occurred_at = event.occurred_at or now
    canonical = event.canonical()
    row = EventRow(
        id=event.id or new_id("msg"),
        tenant=event.tenant or "",
        type=event.type,
        key=event.key,
        digest=app.keys.digest(canonical),
        body=event.body(occurred_at),
        ordering_key=event.ordering_key,
        occurred_at=occurred_at,
    )
    return _NewEvent(row, canonical)


class _EventWriter(IdempotentWriter[_NewEvent, WebhookReceipt]):
    def __init__(self, app: Effects, connection: Connection, routes: Routes) -> None:
        self._app = app
        self._connection = connection
        self._routes = routes

    def insert(self, requests: Sequence[_NewEvent]) -> list[WebhookReceipt | None]:
        written = table.insert_events(self._app.store, self._connection, [request.row for request in requests])
        own = []
        for request in requests:  # of two requests with one id, the first was written
            own.append(request.row.id in written)
            written.discard(request.row.id)
        events = [request.row for request in compress(requests, own)]
        receipts = iter(_fan_out(self._app, self._connection, self._routes, events))
        return [next(receipts) if is_own else None for is_own in own]

    def holders(self, requests: Sequence[_NewEvent]) -> list[KeyHolder[WebhookReceipt] | None]:
        rows = table.holders(self._app.store, self._connection, [request.row for request in requests])
        by_key = {(row.tenant, row.key): row for row in rows if row.key is not None}
        by_id = {row.id: row for row in rows}
        events = [
            by_key.get((request.row.tenant, request.row.key)) or by_id.get(request.row.id) for request in requests
        ]
        deliveries: dict[str, list[Delivery]] = defaultdict(list)
        event_ids = sorted({event.id for event in events if event is not None})
        for row in table.deliveries(self._app.store, self._connection, event_ids):
            deliveries[row.event_id].append(Delivery(row.endpoint_id, row.job_id))
        return [
            None if event is None else _holder(request.row, event, deliveries[event.id])
            for request, event in zip(requests, events, strict=True)
        ]

    def content(self, request: _NewEvent) -> str:
        return request.canonical


def _holder(row: EventRow, event: Row[Any], deliveries: Sequence[Delivery]) -> KeyHolder[WebhookReceipt]:
    by_key = row.key is not None and event.key == row.key
    is_same_owner = event.tenant == row.tenant and (by_key or row.key is None)
    return KeyHolder(
        receipt=WebhookReceipt(event_id=event.id, deliveries=tuple(deliveries), existing=True),
        digest=event.digest if is_same_owner else NO_DIGEST,
        key=f"{JOB_TYPE}: " + (f"the idempotency key {row.key!r}" if by_key else f"the id {row.id!r}"),
        owner=f"event {event.id}",
    )


def _fan_out(app: Effects, connection: Connection, routes: Routes, events: Sequence[EventRow]) -> list[WebhookReceipt]:
    """A ledger row and a job for each event and endpoint; for an event that many want, the job that makes them."""
    routes_by_event = {event.id: routes.of(event) for event in events}
    large = [event for event in events if len(routes_by_event[event.id]) > FAN_OUT_ABOVE]
    pairs = [(event, route) for event in events if event not in large for route in routes_by_event[event.id]]
    deliveries = write_deliveries(app, connection, pairs)
    makers = _make_later(app, connection, large)
    return [
        WebhookReceipt(
            event_id=event.id, deliveries=tuple(deliveries.get(event.id, ())), fan_out_job_id=makers.get(event.id)
        )
        for event in events
    ]


def _make_later(app: Effects, connection: Connection, events: Sequence[EventRow]) -> dict[str, int]:
    """The job of each event that makes its deliveries."""
    jobs = [NewJob(job_type=FAN_OUT_TYPE, payload={"event_id": event.id}) for event in events]
    receipts = enqueue_many(jobs, session=connection, effects=app)
    return {event.id: receipt.job_id for event, receipt in zip(events, receipts, strict=True)}
