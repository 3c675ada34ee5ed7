"""Writing deliveries: a ledger row and a job for each event and endpoint."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Protocol

import msgspec
from sqlalchemy import Connection

from effects import Effects, NewJob
from effects.extend import insert_reserved, reserve_jobs
from effects_webhooks.routing import Route
from effects_webhooks.tables import events as table
from effects_webhooks.tables.events import DeliveryRow

JOB_TYPE = "webhook.deliver"
BATCH = 500  # events, and deliveries, written by one statement


class Delivery(msgspec.Struct, frozen=True):
    """One endpoint's share of an event, and the job that carries it out."""

    endpoint_id: str
    job_id: int


def delivery_key(event_id: str, endpoint_id: str) -> str:
    """The key of a delivery, by which `effects.status`, `cancel`, `reschedule` and `wait` know it."""
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
    jobs = reserve_jobs(app, connection, [_job(event, route) for event, route in pairs])
    intents = [
        DeliveryRow(event.id, route.endpoint_id, event.digest, job.id)
        for (event, route), job in zip(pairs, jobs, strict=True)
    ]
    deliveries: dict[str, list[Delivery]] = defaultdict(list)
    for intent in intents:
        deliveries[intent.event_id].append(Delivery(intent.endpoint_id, intent.job_id))
    for start in range(0, len(pairs), BATCH):
        table.insert_deliveries(app.store, connection, intents[start : start + BATCH])
        insert_reserved(app, connection, jobs[start : start + BATCH])
    return deliveries


def _job(event: Sendable, route: Route) -> NewJob:
    return NewJob(
        job_type=JOB_TYPE,
        payload={"event_id": event.id, "endpoint_id": route.endpoint_id},
        key=delivery_key(event.id, route.endpoint_id),
        group_key=route.group_key(event.ordering_key),
    )
