"""Writing events, idempotently, and their deliveries: who wants an event, and for each a ledger row and a job."""

from __future__ import annotations

import os
import time
from collections import defaultdict
from collections.abc import Sequence
from datetime import datetime
from itertools import compress
from typing import Any, Protocol

import msgspec
from sqlalchemy import Connection, Row

from effects import Effects, NewJob, enqueue_many
from effects.extend.jobs import insert_intended
from effects.extend.ledger import NO_DIGEST, IdempotentWriter, KeyHolder
from effects_webhooks.request import WebhookEvent, matches, patterns_of
from effects_webhooks.settings import state_of
from effects_webhooks.tables import events as table
from effects_webhooks.tables.events import DeliveryRow, EventRow

_LIMIT = "webhook:"


def limit_key(endpoint_id: str) -> str:
    """The key under which an endpoint's deliveries share their cap and their pauses."""
    return f"{_LIMIT}{endpoint_id}"


def endpoint_of(limit_key: str) -> str | None:
    """The endpoint of a limit key; None for a key of something else."""
    return limit_key.removeprefix(_LIMIT) if limit_key.startswith(_LIMIT) else None


class Route(msgspec.Struct, frozen=True):
    """An endpoint that wants an event, and the order in which it takes them."""

    endpoint_id: str
    ordering: str = "none"

    def group_key(self, ordering_key: str | None) -> str | None:
        """The group whose deliveries run one after the other, or None."""
        if self.ordering == "endpoint":
            return f"webhook:{self.endpoint_id}"
        return f"webhook:{self.endpoint_id}:{ordering_key}" if self.ordering == "key" and ordering_key else None


class Target:
    """An active endpoint, from its row: id, ordering, patterns."""

    def __init__(self, row: Row[Any]) -> None:
        self.route = Route(row.id, row.ordering)
        self._patterns = patterns_of(row.patterns)

    def wants(self, event_type: str) -> bool:
        return any(matches(pattern, event_type) for pattern in self._patterns)


class Routes:
    """The active endpoints of some tenants, read once."""

    def __init__(self, app: Effects, connection: Connection, tenants: set[str]) -> None:
        self._by_tenant: dict[str, list[Target]] = defaultdict(list)
        for row in table.active_endpoints(app.store, connection, tenants):
            self._by_tenant[row.tenant].append(Target(row))

    def of(self, event: EventRow) -> list[Route]:
        """The endpoints that want this event."""
        return [target.route for target in self._by_tenant.get(event.tenant, ()) if target.wants(event.type)]


_ALPHABET = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"  # Crockford's base 32, as a ULID has it
_LENGTH = 26


def new_id(prefix: str) -> str:
    """`msg_01JD…`: 48 bits of milliseconds, 80 random ones. The order is a convenience; nothing relies on it."""
    number = (time.time_ns() // 1_000_000) << 80 | int.from_bytes(os.urandom(10), "big")
    digits = [_ALPHABET[number >> shift & 31] for shift in range(5 * (_LENGTH - 1), -1, -5)]
    return f"{prefix}_{''.join(digits)}"


JOB_TYPE = "webhook.deliver"
FAN_OUT_TYPE = "webhook.fan_out"
FAN_OUT_ABOVE = 100  # unordered endpoints: from there on a job makes their deliveries, not the caller's transaction
BATCH = 500  # events, written by one statement


class Delivery(msgspec.Struct, frozen=True):
    """One endpoint's share of an event, and the job that carries it out."""

    endpoint_id: str
    job_id: int


class WebhookReceipt(msgspec.Struct, frozen=True, kw_only=True):
    """What `deliver_webhook` gives back. It becomes true when the caller's transaction commits.

    `event_id` is the `webhook-id` that partners see. `deliveries` is empty where no endpoint wants the event; it is
    stored all the same. Where more than 100 unordered endpoints want it, `deliveries` has the ordered ones only, and
    the job `fan_out_job_id` makes the others. `existing`: the key (or the id) was already used; `deliveries` are those
    that the first event has by now, and its fan-out job is not named.
    """

    event_id: str
    deliveries: tuple[Delivery, ...] = ()
    existing: bool = False
    fan_out_job_id: int | None = None

    @property
    def unwanted(self) -> bool:
        """Whether no endpoint takes the event: it is stored and not sent. `effects why EVENT` tells why."""
        return not self.deliveries and self.fan_out_job_id is None

    @property
    def job_ids(self) -> tuple[int, ...]:
        return tuple(delivery.job_id for delivery in self.deliveries)


def delivery_key(event_id: str, endpoint_id: str) -> str:
    """The key of a delivery, by which `effects.status`, `cancel`, `reschedule` and `wait` know it.

    Args:
        event_id: of the event: `msg_…`.
        endpoint_id: of the endpoint: `ep_…`.
    """
    return f"{event_id}:{endpoint_id}"


class Sendable(Protocol):
    """As much of an event as its deliveries need."""

    @property
    def id(self) -> str: ...
    @property
    def digest(self) -> str: ...
    @property
    def ordering_key(self) -> str | None: ...


def write_deliveries(
    app: Effects, connection: Connection, pairs: Sequence[tuple[Sendable, Route]]
) -> dict[str, list[Delivery]]:
    """Write a ledger row and a job for each pair; gives the deliveries of each event."""
    jobs = [_job(event, route) for event, route in pairs]
    intents = [DeliveryRow(event.id, route.endpoint_id, event.digest) for event, route in pairs]
    deliveries: dict[str, list[Delivery]] = defaultdict(list)
    job_ids = insert_intended(app, connection, jobs, intents, table.insert_deliveries)
    for intent, job_id in zip(intents, job_ids, strict=True):
        deliveries[intent.event_id].append(Delivery(intent.endpoint_id, job_id))
    return deliveries


def _job(event: Sendable, route: Route) -> NewJob:
    return NewJob(
        job_type=JOB_TYPE,
        payload={"event_id": event.id, "endpoint_id": route.endpoint_id},
        key=delivery_key(event.id, route.endpoint_id),
        group_key=route.group_key(event.ordering_key),
    )


# -- events ----------------------------------------------------------------------------------------------


class NewEvent(msgspec.Struct, frozen=True):
    """A row to write, and the text that its digest is taken over."""

    row: EventRow
    canonical: str


def draft_event(app: Effects, event: WebhookEvent, now: datetime) -> NewEvent:
    """The row of an event that the app wants sent; it occurred now unless it says otherwise."""
    occurred_at = event.occurred_at or now
    canonical = event.canonical()
    row = EventRow(
        id=event.id or new_id("msg"),
        tenant=event.tenant or "",
        type=event.type,
        key=event.key,
        digest=app.keys.digest(canonical),
        body=event.body(occurred_at, big_integers=state_of(app).event_types.big_integers(event.type)),
        ordering_key=event.ordering_key,
        occurred_at=occurred_at,
    )
    return NewEvent(row, canonical)


class EventWriter(IdempotentWriter[NewEvent, WebhookReceipt]):
    """Writes events with their deliveries; one whose key or id is taken is the event that holds it."""

    def __init__(self, app: Effects, connection: Connection, routes: Routes) -> None:
        self._app = app
        self._connection = connection
        self._routes = routes

    def insert(self, requests: Sequence[NewEvent]) -> list[WebhookReceipt | None]:
        written = table.insert_events(self._app.store, self._connection, [request.row for request in requests])
        own = []
        for request in requests:  # of two requests with one id, the first was written
            own.append(request.row.id in written)
            written.discard(request.row.id)
        events = [request.row for request in compress(requests, own)]
        receipts = iter(_fan_out(self._app, self._connection, self._routes, events))
        return [next(receipts) if is_own else None for is_own in own]

    def holders(self, requests: Sequence[NewEvent]) -> list[KeyHolder[WebhookReceipt] | None]:
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

    def content(self, request: NewEvent) -> str:
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
    """A ledger row and a job for each event and endpoint; for an event that many want, a job that makes the rest."""
    pairs: list[tuple[Sendable, Route]] = []
    large: list[EventRow] = []
    for event in events:
        takers = routes.of(event)
        at_once = _at_once(event, takers)
        pairs += [(event, route) for route in at_once]
        if len(at_once) < len(takers):
            large.append(event)
    deliveries = write_deliveries(app, connection, pairs)
    makers = _make_later(app, connection, large)
    return [
        WebhookReceipt(
            event_id=event.id, deliveries=tuple(deliveries.get(event.id, ())), fan_out_job_id=makers.get(event.id)
        )
        for event in events
    ]


def _at_once(event: EventRow, takers: list[Route]) -> list[Route]:
    """The takers whose deliveries are written with the event: all, or of very many the ordered ones.

    Order is that in which the caller's transactions take the lock of a group; a job would come to it at any time.
    """
    ordered = [route for route in takers if route.group_key(event.ordering_key) is not None]
    return ordered if len(takers) - len(ordered) > FAN_OUT_ABOVE else takers


def _make_later(app: Effects, connection: Connection, events: Sequence[EventRow]) -> dict[str, int]:
    """The job of each event that makes its unordered deliveries."""
    jobs = [NewJob(job_type=FAN_OUT_TYPE, payload={"event_id": event.id}) for event in events]
    receipts = enqueue_many(jobs, session=connection, effects=app)
    return {event.id: receipt.job_id for event, receipt in zip(events, receipts, strict=True)}
