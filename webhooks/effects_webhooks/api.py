"""What an app calls: send events to partners, in the app's own transaction."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from effects import ALONE, Effects
from effects.extend.actions import AuditAction, note
from effects.extend.arguments import arguments, build_each, each_of, optional, require
from effects.extend.jobs import app_of
from effects.extend.ledger import write_once
from effects.extend.sql import AnySession, in_async
from effects_webhooks.errors import EndpointInvalid, EventInvalid, no_endpoint
from effects_webhooks.request import WebhookEvent
from effects_webhooks.settings import state_of
from effects_webhooks.tables import endpoint_rows as endpoints
from effects_webhooks.tables import events as table
from effects_webhooks.tenants import Tenant, tenant_filter
from effects_webhooks.writing import (
    BATCH,
    FAN_OUT_TYPE,
    JOB_TYPE,
    EventWriter,
    NewEvent,
    Route,
    Routes,
    WebhookReceipt,
    draft_event,
    write_deliveries,
)

if TYPE_CHECKING:
    from effects.extend.sql import AnyAsyncSession


_TEST_TYPE = "webhook.test"
_SEND_TEST = AuditAction("endpoint", "send_test")


def deliver_webhook(
    event: WebhookEvent, *, session: AnySession | None = None, effects: Effects | None = None
) -> WebhookReceipt:
    """Store an event and one delivery for each active endpoint whose patterns fit.

    Args:
        session: a SQLAlchemy Session or Connection, a connection of sqlite3, psycopg or psycopg2, or Django's
            (docs/sessions.md). Never committed by us; rolled back, or rolled back to a savepoint, there was no event.
            Without one, our own transaction.
        effects: the Effects to use; default that of the session's engine, else the process's.

    Returns:
        The receipt. A crash before the commit leaves nothing; after it, every delivery is made at least
        once, with the same id and the same bytes on every try, or ends as a dead job.

    Raises:
        EventInvalid: the body has more than 256 KiB, or its type is not among the event types that the app declares.
        IdempotencyConflict: the event's key, or id, was used with another type or other data.
        StoreUnavailable: the database is unavailable (without `session`). With a key, calling again is safe.
    """
    require("event", event, arguments.instance_of(WebhookEvent), EventInvalid)
    return deliver_webhooks([event], session=session, effects=effects)[0]


def deliver_webhooks(
    events: Iterable[WebhookEvent], *, session: AnySession | None = None, effects: Effects | None = None
) -> list[WebhookReceipt]:
    """`deliver_webhook` for many, in three statements for each 500 events on PostgreSQL.

    Raises:
        As `deliver_webhook`. After an IdempotencyConflict nothing of this call is written: it was rolled
        back to a savepoint.
    """
    app = app_of(effects, session)
    now = datetime.now(UTC)
    events = list(each_of(events, WebhookEvent, "events", EventInvalid))
    drafts = build_each("events", events, lambda _, event: _draft(app, event, now))
    if not drafts:
        return []
    with app.writing(session, {app.job_types.get(name).queue for name in (JOB_TYPE, FAN_OUT_TYPE)}) as connection:
        routes = Routes(app, connection, {draft.row.tenant for draft in drafts})
        return write_once(app.keys, connection, drafts, EventWriter(app, connection, routes), batch=BATCH)


def _draft(app: Effects, event: WebhookEvent, now: datetime) -> NewEvent:
    state_of(app).event_types.check(event.type)
    return draft_event(app, event, now)


@arguments.checked(EventInvalid, endpoint_id=arguments.NAME, event_type=optional(arguments.NAME), **arguments.ACTING)
def send_test(
    endpoint_id: str,
    *,
    event_type: str | None = None,
    actor: str = "app",
    reason: str | None = None,
    tenant: Tenant = None,
    effects: Effects | None = None,
) -> WebhookReceipt:
    """Send a test event to one endpoint, ignoring its patterns. Delivered like any other.

    Args:
        endpoint_id: of the endpoint: `ep_…`.
        event_type: a declared type, whose example is sent as its data: for the partner it is an event as any other.
            Default: `webhook.test`, with the endpoint's id.
        actor, reason: who and why, for the audit log.
        tenant: the endpoint's tenant; endpoints of others are not found. Default: no tenant. `ANY_TENANT`: any.
        effects: the Effects to use; default the process's.

    Raises:
        EndpointNotFound: no endpoint has this id.
        EndpointInvalid: it is disabled.
        EventInvalid: the type is not declared, or has no example.
    """
    app = app_of(effects)
    now = datetime.now(UTC)
    data = {"endpoint_id": endpoint_id} if event_type is None else state_of(app).event_types.example(event_type)
    with app.writing(ALONE, {app.job_types.get(JOB_TYPE).queue}) as connection:
        endpoint = endpoints.endpoint(app.store, connection, endpoint_id, tenant_filter(tenant))
        if endpoint is None:
            raise no_endpoint(endpoint_id)
        if endpoint.status != "active":
            raise EndpointInvalid(f"{endpoint_id} is disabled; enable it first")
        event = WebhookEvent(event_type or _TEST_TYPE, data, tenant=endpoint.tenant or None)
        row = draft_event(app, event, now).row
        table.insert_events(app.store, connection, [row])
        deliveries = write_deliveries(app, connection, [(row, Route(endpoint_id, endpoint.ordering))])
        note(
            app.store, connection, _SEND_TEST, endpoint_id, actor=actor, reason=reason, detail={"event": row.id},
            tenant=endpoint.tenant or None,
        )  # fmt: skip
    return WebhookReceipt(event_id=row.id, deliveries=tuple(deliveries[row.id]))


async def deliver_webhook_async(
    event: WebhookEvent, *, session: AnyAsyncSession | None = None, effects: Effects | None = None
) -> WebhookReceipt:
    """Store an event and its deliveries in the caller's asynchronous transaction: `deliver_webhook`, awaited.

    Args:
        session: an AsyncSession or AsyncConnection, which is never committed by us. Without one, a transaction of our
            own, off the event loop's thread: cancelled after it has begun, it may have been committed.

    Raises:
        As `deliver_webhook`.
    """
    return await in_async(deliver_webhook, **locals())


async def deliver_webhooks_async(
    events: Iterable[WebhookEvent], *, session: AnyAsyncSession | None = None, effects: Effects | None = None
) -> list[WebhookReceipt]:
    """Store many events: `deliver_webhooks`, awaited. `session` is as for `deliver_webhook_async`.

    Raises:
        As `deliver_webhooks`.
    """
    return await in_async(deliver_webhooks, **locals())
