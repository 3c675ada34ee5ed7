"""What an app calls: tell partners about an event, in the app's own transaction."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import msgspec
from sqlalchemy import Connection, Row

from effects.api import enqueue_many
from effects.app import AnySession, Effects, default
from effects.errors import IdempotencyConflict
from effects.job import NewJob
from effects_webhooks.deliveries import BATCH, JOB_TYPE, Delivery, write_deliveries
from effects_webhooks.errors import EndpointInvalid, EndpointNotFound
from effects_webhooks.event import WebhookEvent
from effects_webhooks.identifiers import new_id
from effects_webhooks.routing import Route, Routes
from effects_webhooks.tables import endpoints
from effects_webhooks.tables import events as table
from effects_webhooks.tables.events import EventRow

FAN_OUT_TYPE = "webhook.fan_out"
TEST_TYPE = "webhook.test"
FAN_OUT_ABOVE = 100  # endpoints: from there on a job makes the deliveries, not the caller's transaction


class WebhookReceipt(msgspec.Struct, frozen=True, kw_only=True):
    """What `deliver_webhook` gives back. It becomes true when the caller's transaction commits.

    `event_id` is the `webhook-id` that partners see. `existing` says that the key (or the id) was known, and
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
        StoreUnavailable: the database is away (without `session`). With a key, calling again is safe.
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
    app = effects or default()
    now = datetime.now(UTC)
    drafts = [_draft(app, event, now) for event in events]
    if not drafts:
        return []
    with app.writing(session, {app.job_types.get(name).queue for name in (JOB_TYPE, FAN_OUT_TYPE)}) as connection:
        if len(drafts) == 1:
            return _write(app, connection, drafts)
        with connection.begin_nested():
            return _write(app, connection, drafts)


def send_test(endpoint_id: str, *, effects: Effects | None = None) -> WebhookReceipt:
    """Send an event `webhook.test` to one endpoint, whatever its patterns. Delivered and tried again like any other.

    Raises:
        EndpointNotFound: there is none of this id.
        EndpointInvalid: it is disabled.
    """
    app = effects or default()
    now = datetime.now(UTC)
    with app.writing(None, {app.job_types.get(JOB_TYPE).queue}) as connection:
        found = endpoints.endpoint(app.store, connection, endpoint_id)
        if found is None:
            raise EndpointNotFound(f"there is no endpoint {endpoint_id!r}")
        if found.status != "active":
            raise EndpointInvalid(f"{endpoint_id} is disabled; enable it first")
        event = WebhookEvent(TEST_TYPE, {"endpoint_id": endpoint_id}, tenant=found.tenant or None)
        row = _draft(app, event, now).row
        table.insert_events(app.store, connection, [row])
        made = write_deliveries(app, connection, [(row, Route(endpoint_id, found.ordering))])
    return WebhookReceipt(event_id=row.id, deliveries=tuple(made[row.id]))


class _Draft(msgspec.Struct, frozen=True):
    """A row to write, and the text that its digest is taken over."""

    row: EventRow
    canonical: str


def _draft(app: Effects, event: WebhookEvent, now: datetime) -> _Draft:
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
    return _Draft(row, canonical)


def _write(app: Effects, connection: Connection, drafts: Sequence[_Draft]) -> list[WebhookReceipt]:
    routes = Routes(app, connection, {draft.row.tenant for draft in drafts})
    receipts: list[WebhookReceipt] = []
    for start in range(0, len(drafts), BATCH):
        batch = drafts[start : start + BATCH]
        written = table.insert_events(app.store, connection, [draft.row for draft in batch])
        first = {}
        for number, draft in enumerate(batch):  # of two drafts with one id, the first was written
            if draft.row.id in written:
                written.discard(draft.row.id)
                first[number] = draft.row
        made = _fan_out(app, connection, routes, list(first.values()))
        missing = {number: draft for number, draft in enumerate(batch) if number not in first}
        found = _first_receipts(app, connection, missing) if missing else {}
        receipts += [found[number] if number in found else made[first[number].id] for number in range(len(batch))]
    return receipts


def _fan_out(
    app: Effects, connection: Connection, routes: Routes, events: Sequence[EventRow]
) -> dict[str, WebhookReceipt]:
    """A ledger row and a job for each event and endpoint; for an event that many want, the job that makes them."""
    wanted = {event.id: routes.of(event) for event in events}
    large = [event for event in events if len(wanted[event.id]) > FAN_OUT_ABOVE]
    pairs = [(event, route) for event in events if event not in large for route in wanted[event.id]]
    deliveries = write_deliveries(app, connection, pairs)
    makers = _make_later(app, connection, large)
    return {
        event.id: WebhookReceipt(
            event_id=event.id, deliveries=tuple(deliveries.get(event.id, ())), fan_out_job_id=makers.get(event.id)
        )
        for event in events
    }


def _make_later(app: Effects, connection: Connection, events: Sequence[EventRow]) -> dict[str, int]:
    """The job of each event that makes its deliveries."""
    jobs = [NewJob(job_type=FAN_OUT_TYPE, payload={"event_id": event.id}) for event in events]
    receipts = enqueue_many(jobs, session=connection, effects=app)
    return {event.id: receipt.job_id for event, receipt in zip(events, receipts, strict=True)}


def _first_receipts(app: Effects, connection: Connection, missing: Mapping[int, _Draft]) -> dict[int, WebhookReceipt]:
    """The receipts of the events that hold these drafts' keys or ids already."""
    stored = table.holders(app.store, connection, [draft.row for draft in missing.values()])
    by_key = {(row.tenant, row.key): row for row in stored if row.key is not None}
    by_id = {row.id: row for row in stored}
    holders = {}
    for number, draft in missing.items():
        holder = by_key.get((draft.row.tenant, draft.row.key)) or by_id[draft.row.id]
        _check_same(app, draft, holder)
        holders[number] = holder.id
    deliveries: dict[str, list[Delivery]] = defaultdict(list)
    for row in table.deliveries(app.store, connection, sorted(set(holders.values()))):
        deliveries[row.event_id].append(Delivery(row.endpoint_id, row.job_id))
    return {
        number: WebhookReceipt(event_id=event_id, deliveries=tuple(deliveries[event_id]), existing=True)
        for number, event_id in holders.items()
    }


def _check_same(app: Effects, draft: _Draft, holder: Row[Any]) -> None:
    """Raise IdempotencyConflict where the holder is another event."""
    row = draft.row
    by_key = row.key is not None and holder.key == row.key
    same_owner = holder.tenant == row.tenant and (by_key or row.key is None)
    if not same_owner or holder.digest != app.keys.digest(draft.canonical, like=holder.digest):
        what = f"the idempotency key {row.key!r}" if by_key else f"the id {row.id!r}"
        raise IdempotencyConflict(
            f"{JOB_TYPE}: {what} belongs to event {holder.id}, which is another one; use another for another event"
        )
