"""Writing deliveries: a ledger row and a job for each event and endpoint."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Protocol

import msgspec
from sqlalchemy import Connection

from effects.api import insert_known
from effects.app import Effects
from effects.job import NewJob
from effects.store.enqueue import reserve_ids
from effects_webhooks.routing import Route
from effects_webhooks.tables import events as table
from effects_webhooks.tables.events import DeliveryRow

JOB_TYPE = "webhook.deliver"
BATCH = 500  # events, and deliveries, written by one statement


class Delivery(msgspec.Struct, frozen=True):
    """One endpoint's share of an event, and the job that carries it out."""

    endpoint_id: str
    job_id: int


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
    groups = {group for event, route in pairs if (group := route.group_key(event.ordering_key)) is not None}
    ids = reserve_ids(app.store, connection, len(pairs), groups)
    deliveries: dict[str, list[Delivery]] = defaultdict(list)
    for (event, route), job_id in zip(pairs, ids, strict=True):
        deliveries[event.id].append(Delivery(route.endpoint_id, job_id))
    for start in range(0, len(pairs), BATCH):
        some, some_ids = pairs[start : start + BATCH], ids[start : start + BATCH]
        intents = [
            DeliveryRow(event.id, route.endpoint_id, event.digest, job_id)
            for (event, route), job_id in zip(some, some_ids, strict=True)
        ]
        table.insert_deliveries(app.store, connection, intents)
        insert_known(app, connection, [_job(event, route) for event, route in some], some_ids)
    return deliveries


def _job(event: Sendable, route: Route) -> NewJob:
    return NewJob(
        job_type=JOB_TYPE,
        payload={"event_id": event.id, "endpoint_id": route.endpoint_id},
        key=f"{event.id}:{route.endpoint_id}",
        group_key=route.group_key(event.ordering_key),
    )
