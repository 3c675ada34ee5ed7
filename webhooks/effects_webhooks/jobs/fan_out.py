"""The job type `webhook.fan_out`: makes the deliveries of an event that more than 100 unordered endpoints want."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
from sqlalchemy import Connection, Row

from effects import Attempt, Done, JobType, Outcome, enqueue
from effects_webhooks.routing import Target
from effects_webhooks.tables import events as table
from effects_webhooks.writing import BATCH, FAN_OUT_TYPE, write_deliveries

if TYPE_CHECKING:
    from effects import Effects


class FanOutPayload(msgspec.Struct, frozen=True):
    """The event, and the endpoint behind which this job continues."""

    event_id: str
    after: str = ""


class WebhookFanOut(JobType[FanOutPayload]):
    """Makes the deliveries of one event to at most 500 unordered endpoints, and a job for those behind them.

    Deliveries and the next job are written in the transaction that records this job as done: a crash leaves all of
    it or nothing, and no endpoint gets two deliveries. Endpoints that were added after the event get none; ordered
    ones had theirs from the transaction of the event.
    """

    name = FAN_OUT_TYPE
    payload = FanOutPayload
    queue = "webhooks"

    def __init__(self, app: Effects) -> None:
        self._app = app

    async def perform(self, payload: FanOutPayload, attempt: Attempt) -> Outcome:
        return Done(apply=lambda connection: self._write(connection, payload))

    def _write(self, connection: Connection, payload: FanOutPayload) -> None:
        app = self._app
        event = table.event(app.store, connection, payload.event_id)
        if event is None:  # pruned meanwhile
            return
        page = table.endpoints_after(app.store, connection, event, payload.after, BATCH)
        routes = [Target(row).route for row in page if _is_left(row, event)]
        write_deliveries(app, connection, [(event, route) for route in routes])
        if len(page) == BATCH:
            enqueue(FAN_OUT_TYPE, FanOutPayload(payload.event_id, page[-1].id), session=connection, effects=app)


def _is_left(endpoint: Row[Any], event: Row[Any]) -> bool:
    """Whether an endpoint without a delivery wants the event and was left to this job.

    An ordered one was not, unless it was changed since: it may have been unordered then. If it never was changed, the
    transaction that added it had not committed when the event was written.
    """
    target = Target(endpoint)
    is_ordered = target.route.group_key(event.ordering_key) is not None
    return target.wants(event.type) and (endpoint.changed or not is_ordered)
