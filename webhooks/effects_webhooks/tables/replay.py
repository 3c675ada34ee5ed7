"""Which deliveries a replay concerns."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqlalchemy import Connection, Row

from effects.store.sql import Sql
from effects.store.store import Store


def _delivery(sql: Sql) -> str:
    return f"""
    SELECT job_id FROM {sql.delivered_webhooks} WHERE event_id = :event_id AND endpoint_id = :endpoint_id"""


def _of_event(sql: Sql) -> str:
    return f"""
    SELECT event_id, endpoint_id, job_id FROM {sql.delivered_webhooks}
    WHERE event_id = :event_id ORDER BY endpoint_id"""


def _failed(sql: Sql) -> str:
    """The ledger names the newest job of each delivery: one that was requeued is no longer it."""
    until = "double precision" if sql.postgresql else "REAL"
    since, end = sql.time("CAST(:since AS double precision)"), sql.time(f"CAST(:until AS {until})")
    return f"""
    SELECT h.id AS job_id, d.event_id FROM {sql.job_history} AS h
    JOIN {sql.delivered_webhooks} AS d ON d.job_id = h.id AND d.endpoint_id = :endpoint_id
    WHERE h.status IN ('dead', 'cancelled') AND h.finished_at >= {since}
    AND (CAST(:until AS {until}) IS NULL OR h.finished_at <= {end}) AND d.state <> 'done' AND h.id > :after
    ORDER BY h.id LIMIT :size"""


def delivery(store: Store, connection: Connection, event_id: str, endpoint_id: str) -> Row[Any] | None:
    """The newest job of one delivery."""
    return store.one(connection, _delivery, event_id=event_id, endpoint_id=endpoint_id)


def of_event(store: Store, connection: Connection, event_id: str) -> Sequence[Row[Any]]:
    """Every delivery of an event with its newest job."""
    return store.all(connection, _of_event, event_id=event_id)


def failed(
    store: Store,
    connection: Connection,
    endpoint_id: str,
    *,
    since: float,
    until: float | None,
    after: int,
    size: int,
) -> Sequence[Row[Any]]:
    """A page of the endpoint's deliveries that ended without a success, by job id."""
    return store.all(connection, _failed, endpoint_id=endpoint_id, since=since, until=until, after=after, size=size)
