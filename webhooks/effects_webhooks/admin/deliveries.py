"""Deliveries and events: listed, shown, cancelled, sent again: one, an event, or all that failed since a time.

A replay is a new job for the same delivery: the same `webhook-id`, the same bytes, a fresh signature and fresh
retry classes. Because of those bytes and that id an effect that may have happened needs no further word: the policy of
`webhook.deliver` is `repeat`. Actor, reason and tenant are in the audit log. What waits already is left to its
own schedule.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any

import msgspec
from sqlalchemy import Row
from sqlalchemy.exc import DBAPIError

from effects import CancelResult, Effects, JobNotFound, JobStateError, cancel
from effects.extend.actions import requeue
from effects.extend.arguments import arguments, optional
from effects.extend.jobs import app_of
from effects.extend.ledger import LEDGER_STATES
from effects.extend.rows import record
from effects.extend.sql import AnySession, set_filters
from effects.extend.text import moment_or_none
from effects_webhooks.errors import EndpointInvalid, EndpointNotFound, EventInvalid, EventNotFound, no_endpoint
from effects_webhooks.tables import delivery_rows as table
from effects_webhooks.tables import endpoint_rows as endpoints
from effects_webhooks.tenants import Tenant, tenant_filter
from effects_webhooks.writing import JOB_TYPE, delivery_key, limit_key

PAGE = 200


class Replayed(msgspec.Struct):
    """What became of a replay. `skipped` has each delivery that was left as it is, and why.

    `retrying` counts those of a recovered endpoint that have not ended, and are tried again by themselves.
    """

    jobs: list[int] = []
    skipped: list[tuple[str, str]] = []
    retrying: int = 0


@arguments.checked(
    EventInvalid, event_id=arguments.NAME, endpoint_id=arguments.NAME, confirm_done=arguments.flag, **arguments.ACTING
)
def replay_delivery(
    event_id: str,
    endpoint_id: str,
    *,
    actor: str,
    reason: str | None = None,
    confirm_done: bool = False,
    tenant: Tenant = None,
    effects: Effects | None = None,
) -> int:
    """Send one ended delivery again.

    Args:
        event_id: of the event: `msg_…`.
        endpoint_id: of the endpoint: `ep_…`.
        confirm_done: even one that was answered 2xx.
        tenant: the tenant of event and endpoint; others are not found. Default: no tenant. `ANY_TENANT`: any.
        actor: who acts, for the audit log: `cli:ann`.
        reason: why, for the audit log.
        effects: the Effects to use; default the process's.

    Returns:
        The new job's id. A crash before the commit leaves nothing.

    Raises:
        EventNotFound: there is no such delivery.
        EndpointNotFound, EndpointInvalid: the endpoint is gone, or disabled: it would end cancelled.
        JobStateError: it still waits, or is done without confirmation; the message tells which.
    """
    app = app_of(effects)
    owner = tenant_filter(tenant)
    with app.store.read() as connection:
        row = table.newest_job_of(app.store, connection, event_id, endpoint_id, owner)
    if row is None:
        raise EventNotFound(f"there is no delivery {event_id}:{endpoint_id}")
    _check_active(app, endpoint_id, owner)
    return _requeue(app, row, actor, reason, confirm_done)


@arguments.checked(EventInvalid, event_id=arguments.NAME, confirm_done=arguments.flag, **arguments.ACTING)
def replay_event(
    event_id: str,
    *,
    actor: str,
    reason: str | None = None,
    confirm_done: bool = False,
    tenant: Tenant = None,
    effects: Effects | None = None,
) -> Replayed:
    """Send every ended delivery of an event again, each in its own transaction.

    Deliveries that wait, those to a disabled endpoint and, without `confirm_done`, those that are done are skipped and
    named. Run it again after a crash: what has been requeued waits, and is skipped. `confirm_done` and `tenant` are
    those of `replay_delivery`.

    Args:
        event_id: of the event: `msg_…`.
        actor: who acts, for the audit log: `cli:ann`.
        reason: why, for the audit log.
        effects: the Effects to use; default the process's.

    Raises:
        EventNotFound: there is no such event, or no endpoint wanted it.
    """
    app = app_of(effects)
    owner = tenant_filter(tenant)
    with app.store.read() as connection:
        rows = table.jobs_of_event(app.store, connection, event_id, owner)
    if not rows:
        raise EventNotFound(f"there is no delivery of an event {event_id}")
    replayed = Replayed()
    for row in rows:
        name = f"{row.event_id}:{row.endpoint_id}"
        try:
            _check_active(app, row.endpoint_id, owner)
        except (EndpointInvalid, EndpointNotFound) as error:
            replayed.skipped.append((name, str(error)))
        else:
            _try(app, replayed, row, name, actor, reason, confirm_done)
    return replayed


@arguments.checked(
    EndpointInvalid,
    endpoint_id=arguments.NAME,
    since=arguments.aware,
    until=optional(arguments.aware),
    limit=optional(arguments.whole(1, 2**63 - 1)),
    **arguments.ACTING,
)
def recover(
    endpoint_id: str,
    *,
    since: datetime,
    until: datetime | None = None,
    actor: str,
    reason: str | None = None,
    limit: int | None = None,
    tenant: Tenant = None,
    effects: Effects | None = None,
    progress: Callable[[int], None] = lambda done: None,
) -> Replayed:
    """Send again what ended for this endpoint without a success, since a time: dead, unknown and cancelled ones.

    Oldest first, 200 a page, each in its own transaction. Resumable: a delivery that was requeued is no longer one
    that has ended, so that running it again after a crash (or after `limit`) continues where it stopped. One that fails
    again meanwhile is left to the next call.

    Args:
        endpoint_id: of the endpoint: `ep_…`.
        since, until: when the delivery ended (aware datetimes).
        limit: at most so many; default all.
        tenant: the endpoint's tenant; endpoints of others are not found. Default: no tenant. `ANY_TENANT`: any.
        progress: called with the count of requeued ones.
        actor: who acts, for the audit log: `cli:ann`.
        reason: why, for the audit log.
        effects: the Effects to use; default the process's.

    Raises:
        EndpointNotFound: no endpoint has this id.
        EndpointInvalid: it is disabled (enable it first), or a time has no zone.
    """
    app = app_of(effects)
    owner = tenant_filter(tenant)
    _check_active(app, endpoint_id, owner)
    with app.store.read() as connection:
        retrying = table.count_retrying(app.store, connection, endpoint_id, limit_key(endpoint_id), owner)
        newest = table.newest_job_of_endpoint(app.store, connection, endpoint_id)  # replays have later ones
    replayed, after = Replayed(retrying=retrying), 0
    end = until.timestamp() if until else None
    while limit is None or len(replayed.jobs) < limit:
        with app.store.read() as connection:
            page = table.failed_jobs(
                app.store, connection, endpoint_id, owner, since=since.timestamp(), until=end, after=after,
                newest=newest, size=PAGE,
            )  # fmt: skip
        for row in page:
            if limit is not None and len(replayed.jobs) >= limit:
                return replayed
            _try(app, replayed, row, f"{row.event_id}:{endpoint_id}", actor, reason, False)
            progress(len(replayed.jobs))
        if len(page) < PAGE:
            break
        after = page[-1].job_id
    return replayed


def _check_active(app: Effects, endpoint_id: str, owner: str | None) -> None:
    with app.store.read() as connection:
        row = endpoints.endpoint(app.store, connection, endpoint_id, owner)
    if row is None:
        raise no_endpoint(endpoint_id)
    if row.status != "active":
        raise EndpointInvalid(f"{endpoint_id} is disabled; enable it first, or its deliveries end cancelled again")


def _try(
    app: Effects, replayed: Replayed, row: Row[Any], name: str, actor: str, reason: str | None, confirm_done: bool
) -> None:
    try:
        replayed.jobs.append(_requeue(app, row, actor, reason, confirm_done))
    except (JobNotFound, JobStateError) as error:
        replayed.skipped.append((name, str(error)))
    except DBAPIError:  # about its row: all others are translated
        replayed.skipped.append((name, f"job {row.job_id}: the database refuses it"))


def _requeue(app: Effects, row: Row[Any], actor: str, reason: str | None, confirm_done: bool) -> int:
    requeued = requeue(
        app.store, app.job_types, row.job_id, confirm_done=confirm_done, actor=actor, reason=reason or "replay",
        tenant=row.tenant or None,
    )  # fmt: skip
    app.notifier.send({requeued.queue})
    return requeued.job_id


@arguments.checked(EventInvalid, event_id=arguments.NAME, endpoint_id=arguments.NAME, **arguments.ACTING)
def cancel_delivery(
    event_id: str,
    endpoint_id: str,
    *,
    actor: str,
    reason: str | None = None,
    tenant: Tenant = None,
    session: AnySession | None = None,
    effects: Effects | None = None,
) -> CancelResult:
    """Withdraw the delivery of one event to one endpoint; see `effects.cancel`.

    A delivery that a worker has claimed may be under way to the partner: it is `released`, not prevented.

    Args:
        event_id: of the event: `msg_…`.
        endpoint_id: of the endpoint: `ep_…`.
        actor, reason, session: as for `effects.cancel`.
        tenant: the tenant of event and endpoint; others are not found. Default: no tenant. `ANY_TENANT`: any.

    Returns:
        What it came to; true with the commit. A crash before that leaves nothing; calling again is safe.

    Raises:
        EventNotFound: there is no such delivery. For an event that more than 100 unordered endpoints want, a job makes
            theirs.
        StoreUnavailable: the database is unavailable (without `session`).
    """
    app = app_of(effects, session)
    owner = tenant_filter(tenant)
    key = delivery_key(event_id, endpoint_id)
    with app.writing(session) as connection:
        if table.newest_job_of(app.store, connection, event_id, endpoint_id, owner) is None:
            raise EventNotFound(f"there is no delivery {key}")
        return cancel(key=key, job_type=JOB_TYPE, actor=actor, reason=reason, session=connection, effects=app)


_STATES = (*LEDGER_STATES, table.RETRYING)


class DeliverySummary(msgspec.Struct, frozen=True, kw_only=True):
    """A delivery: one event to one endpoint. The event's type is None once the event was deleted.

    `state`: intended, released, done, refused, unknown or abandoned. `retrying`: it failed and is going to be tried
    again. `status_code`: of the newest answer. `job_id`: the newest job. `due_at`: when that is due, while it waits.
    `event_key`: as its sender named the event.
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
    due_at: datetime | None
    event_key: str | None


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
    standing=optional(arguments.one_of(table.STANDINGS)),
    before=optional(arguments.whole(0, 2**63 - 1)),
    limit=arguments.whole(1, arguments.LIST_MAX),
)
def list_deliveries(
    *,
    endpoint_id: str | None = None,
    event_id: str | None = None,
    state: str | None = None,
    standing: str | None = None,
    before: int | None = None,
    limit: int = 50,
    tenant: Tenant = None,
    effects: Effects | None = None,
) -> DeliveryPage:
    """List deliveries, newest first. By state, or by tenant alone, a page searches 100,000 jobs at most.

    Args:
        endpoint_id, event_id: of this endpoint, of this event.
        state: as in DeliverySummary; or `retrying`.
        standing: `failing` (it is tried again), `waiting` (it was not tried yet), `delivered`, or `given_up`.
        before: only deliveries whose newest job has a smaller id: the next page.
        limit: at most so many.
        tenant: whose. Default: those of no tenant. `ANY_TENANT`: all.
        effects: the Effects to use; default the process's.

    Raises:
        EndpointNotFound, EventNotFound: the tenant has none of this id.
    """
    app = app_of(effects)
    owner = tenant_filter(tenant)
    filters = set_filters(
        {"endpoint_id": endpoint_id, "event_id": event_id, "state": state, "standing": standing, "tenant": owner}
    )
    with app.store.read() as connection:
        if endpoint_id is not None and endpoints.endpoint(app.store, connection, endpoint_id, owner) is None:
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
    return record(DeliverySummary, row, event_type=row.type, retrying=bool(row.retries))


def _event_summary(row: Row[Any]) -> EventSummary:
    return record(EventSummary, row)


class Traffic(msgspec.Struct, frozen=True):
    """What an endpoint's newest deliveries have come to; all of one snapshot.

    Args:
        counts: by standing; together at most `delivery_rows.RECENT`.
        last_jobs: those settled last, of what was tried; the newest attempt is one of theirs.
        next_at, next_job: what is due next, and when by its own time.
    """

    counts: Mapping[str, int]
    last_jobs: Sequence[int]
    next_at: datetime | None
    next_job: int | None

    @property
    def waiting(self) -> int:
        """What goes out by itself."""
        return self.counts["failing"] + self.counts["waiting"]


def read_traffic(app: Effects, endpoint_id: str) -> Traffic:
    with app.store.read() as connection:
        rows = table.standings(app.store, connection, endpoint_id)
    due = min(((row.due_at, row.next_job) for row in rows if row.next_job is not None), default=(None, None))
    return Traffic(
        {name: next((row.deliveries for row in rows if row.standing == name), 0) for name in table.STANDINGS},
        [row.last_job for row in rows if row.standing != "waiting"],
        moment_or_none(due[0]), due[1],
    )  # fmt: skip
