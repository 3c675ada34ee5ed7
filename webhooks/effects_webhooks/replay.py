"""Sending again: one delivery, one event, or everything of an endpoint that failed since a time.

A replay is a new job for the same delivery: the same `webhook-id`, the same bytes, a fresh signature and fresh
budgets. Who asked for it, and why, is in `effects_job_actions`. What waits already is left to its own schedule.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime

import msgspec

from effects.app import Effects, default
from effects.errors import JobNotFound
from effects.store import actions
from effects_webhooks.deliveries import JOB_TYPE
from effects_webhooks.errors import EndpointInvalid, EndpointNotFound, EventNotFound
from effects_webhooks.tables import endpoints
from effects_webhooks.tables import replay as table

PAGE = 200


class Replayed(msgspec.Struct):
    """What became of a replay. `skipped` has each delivery that was left as it is, and why."""

    jobs: list[int] = []
    skipped: list[tuple[str, str]] = []


def replay_delivery(
    event_id: str,
    endpoint_id: str,
    *,
    actor: str,
    reason: str | None = None,
    again: bool = False,
    effects: Effects | None = None,
) -> int:
    """Send one ended delivery again.

    Args:
        again: even one that was answered 2xx.

    Returns:
        The new job's id. A crash before the commit leaves nothing.

    Raises:
        EventNotFound: there is no such delivery.
        JobNotFound: it still waits, or is done and `again` was not given; says which.
    """
    app = effects or default()
    with app.store.read() as connection:
        row = table.delivery(app.store, connection, event_id, endpoint_id)
    if row is None:
        raise EventNotFound(f"there is no delivery {event_id}:{endpoint_id}")
    return _requeue(app, row.job_id, actor, reason, again)


def replay_event(
    event_id: str, *, actor: str, reason: str | None = None, again: bool = False, effects: Effects | None = None
) -> Replayed:
    """Send every ended delivery of an event again, each in its own transaction.

    Deliveries that wait, and without `again` those that are done, are skipped and named. Run it again after a
    crash: what has been requeued waits, and is skipped.

    Raises:
        EventNotFound: there is no such event, or no endpoint wanted it.
    """
    app = effects or default()
    with app.store.read() as connection:
        rows = table.of_event(app.store, connection, event_id)
    if not rows:
        raise EventNotFound(f"there is no delivery of an event {event_id}")
    replayed = Replayed()
    for row in rows:
        _try(app, replayed, row.job_id, f"{row.event_id}:{row.endpoint_id}", actor, reason, again)
    return replayed


def recover(
    endpoint_id: str,
    *,
    since: datetime,
    until: datetime | None = None,
    actor: str,
    reason: str | None = None,
    limit: int | None = None,
    effects: Effects | None = None,
    progress: Callable[[int], None] = lambda done: None,
) -> Replayed:
    """Send again what ended for this endpoint without a success, since a time: dead, unknown and cancelled ones.

    Oldest first, 200 a page, each in its own transaction. Resumable: a delivery that was requeued is no longer one
    that has ended, so that running it again after a crash (or after `limit`) goes on where it stopped.

    Args:
        since, until: when the delivery ended (aware datetimes).
        limit: at most so many; default all.
        progress: called with the count of requeued ones.

    Raises:
        EndpointNotFound: there is none of this id.
        EndpointInvalid: it is disabled (enable it first), or a time has no zone.
    """
    app = effects or default()
    if since.tzinfo is None or (until is not None and until.tzinfo is None):
        raise EndpointInvalid("since and until need a time zone")
    _check_active(app, endpoint_id)
    replayed, after = Replayed(), 0
    end = until.timestamp() if until else None
    while limit is None or len(replayed.jobs) < limit:
        with app.store.read() as connection:
            page = table.failed(
                app.store, connection, endpoint_id, since=since.timestamp(), until=end, after=after, size=PAGE
            )
        for row in page:
            if limit is not None and len(replayed.jobs) >= limit:
                return replayed
            _try(app, replayed, row.job_id, f"{row.event_id}:{endpoint_id}", actor, reason, False)
            progress(len(replayed.jobs))
        if len(page) < PAGE:
            break
        after = page[-1].job_id
    return replayed


def _check_active(app: Effects, endpoint_id: str) -> None:
    with app.store.read() as connection:
        row = endpoints.endpoint(app.store, connection, endpoint_id)
    if row is None:
        raise EndpointNotFound(f"there is no endpoint {endpoint_id!r}")
    if row.status != "active":
        raise EndpointInvalid(f"{endpoint_id} is disabled; enable it first, or its deliveries end cancelled again")


def _try(app: Effects, replayed: Replayed, job_id: int, name: str, actor: str, reason: str | None, again: bool) -> None:
    try:
        replayed.jobs.append(_requeue(app, job_id, actor, reason, again))
    except JobNotFound as error:
        replayed.skipped.append((name, str(error)))


def _requeue(app: Effects, job_id: int, actor: str, reason: str | None, again: bool) -> int:
    made = actions.requeue(app.store, app.ledgers, job_id, actor=actor, reason=reason or "replay", again=again)
    app.hints.send({app.job_types.get(JOB_TYPE).queue})
    return made.job_id
