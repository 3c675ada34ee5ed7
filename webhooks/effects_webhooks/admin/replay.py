"""Sending again: one delivery, one event, or everything of an endpoint that failed since a time.

A replay is a new job for the same delivery: the same `webhook-id`, the same bytes, a fresh signature and fresh
retry classes. Because of those bytes and that id an effect that may have happened needs no further word: the policy of
`webhook.deliver` is `repeat`. Actor, reason and tenant are in the audit log. What waits already is left to its
own schedule.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import Any

import msgspec
from sqlalchemy import Row
from sqlalchemy.exc import DBAPIError

from effects import Effects, JobNotFound, JobStateError
from effects.extend import app_of, arguments, optional, requeue
from effects_webhooks.errors import EndpointInvalid, EndpointNotFound, EventInvalid, EventNotFound, no_endpoint
from effects_webhooks.routing import limit_key
from effects_webhooks.tables import endpoint_rows as endpoints
from effects_webhooks.tables import replay as table
from effects_webhooks.tenants import Tenant, tenant_filter

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
        row = table.delivery(app.store, connection, event_id, endpoint_id, owner)
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
        rows = table.of_event(app.store, connection, event_id, owner)
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
        newest = table.newest_job(app.store, connection, endpoint_id)  # replays have later ones
    replayed, after = Replayed(retrying=retrying), 0
    end = until.timestamp() if until else None
    while limit is None or len(replayed.jobs) < limit:
        with app.store.read() as connection:
            page = table.failed(
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
