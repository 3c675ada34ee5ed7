"""Events, their deliveries, and what a claimed batch of deliveries needs to be sent."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

import msgspec
from sqlalchemy import Connection, Row
from sqlalchemy.dialects import postgresql, sqlite

from effects.store.sql import Sql
from effects.store.store import Store, as_json


class EventRow(msgspec.Struct, frozen=True, kw_only=True):
    """One event to write."""

    id: str
    tenant: str
    type: str
    key: str | None
    digest: str
    body: bytes
    occurred_at: datetime


class DeliveryRow(msgspec.Struct, frozen=True):
    """The intent to send one event to one endpoint."""

    event_id: str
    endpoint_id: str
    digest: str
    job_id: int


# -- enqueue -----------------------------------------------------------------------------------------------------


def _active(sql: Sql) -> str:
    return f"""
    SELECT id, tenant, {sql.json_text("patterns")} AS patterns FROM {sql.webhook_endpoints}
    WHERE status = 'active' AND tenant {sql.any_of("tenants")} ORDER BY id"""


def active_endpoints(store: Store, connection: Connection, tenants: set[str]) -> Sequence[Row[Any]]:
    """Id, tenant and patterns of every endpoint of these tenants that takes events."""
    return store.all(connection, _active, tenants=as_json(sorted(tenants)))


def insert_events(store: Store, connection: Connection, rows: Sequence[EventRow]) -> set[str]:
    """Write the events whose id and key are free, and say which. The bytes are bound as bytes: text would pass
    through an encoding on its way.
    """
    dialect = postgresql if store.is_postgresql else sqlite
    table = store.tables["webhook_events"]
    statement = dialect.insert(table).on_conflict_do_nothing().returning(table.c.id)
    found = connection.execute(statement, [msgspec.structs.asdict(row) for row in rows])
    return {row.id for row in found}


_DELIVERY = {"event_id": "text", "endpoint_id": "text", "digest": "text", "job_id": "int"}


def _insert_deliveries(sql: Sql) -> str:
    return f"""
    INSERT INTO {sql.delivered_webhooks} (event_id, endpoint_id, digest, job_id, created_at, updated_at)
    SELECT r.event_id, r.endpoint_id, r.digest, r.job_id, {sql.now}, {sql.now}
    FROM {sql.rows("rows", _DELIVERY)} AS r"""


def insert_deliveries(store: Store, connection: Connection, rows: Sequence[DeliveryRow]) -> None:
    store.write(connection, _insert_deliveries, rows=as_json(rows))


_HOLD = {"id": "text", "tenant": "text", "key": "text"}


def _holders(sql: Sql) -> str:
    wanted, held = sql.rows("rows", _HOLD), "e.id, e.tenant, e.key, e.digest"
    return f"""
    SELECT {held} FROM {wanted} AS r JOIN {sql.webhook_events} AS e ON e.tenant = r.tenant AND e.key = r.key
    UNION SELECT {held} FROM {wanted} AS r JOIN {sql.webhook_events} AS e ON e.id = r.id"""


def holders(store: Store, connection: Connection, rows: Sequence[EventRow]) -> Sequence[Row[Any]]:
    """The stored events that hold these rows' keys or ids."""
    wanted = [{"id": row.id, "tenant": row.tenant, "key": row.key} for row in rows]
    return store.all(connection, _holders, rows=as_json(wanted))


def _deliveries(sql: Sql) -> str:
    return f"""
    SELECT event_id, endpoint_id, job_id FROM {sql.delivered_webhooks}
    WHERE event_id {sql.any_of("events")} ORDER BY event_id, endpoint_id"""


def deliveries(store: Store, connection: Connection, event_ids: Sequence[str]) -> Sequence[Row[Any]]:
    """Event, endpoint and newest job of every delivery of these events."""
    return store.all(connection, _deliveries, events=as_json(event_ids))


# -- sending ---------------------------------------------------------------------------------------------------


def _bodies(sql: Sql) -> str:
    return f"SELECT id, body FROM {sql.webhook_events} WHERE id {sql.any_of('ids')}"


def _addresses(sql: Sql) -> str:
    return f"SELECT id, url, status FROM {sql.webhook_endpoints} WHERE id {sql.any_of('ids')}"


def _secrets(sql: Sql) -> str:
    """Newest first: the order of the tokens in the header."""
    return f"""
    SELECT id, endpoint_id, sealed FROM {sql.webhook_secrets}
    WHERE endpoint_id {sql.any_of("ids")} AND (expires_at IS NULL OR expires_at > {sql.now})
    ORDER BY created_at DESC, id DESC"""


def bodies(store: Store, connection: Connection, event_ids: set[str]) -> Mapping[str, bytes]:
    found = store.all(connection, _bodies, ids=as_json(sorted(event_ids)))
    return {row.id: bytes(row.body) for row in found}


def addresses(store: Store, connection: Connection, endpoint_ids: set[str]) -> Sequence[Row[Any]]:
    """Id, URL and status, as they are now."""
    return store.all(connection, _addresses, ids=as_json(sorted(endpoint_ids)))


def secrets(store: Store, connection: Connection, endpoint_ids: set[str]) -> Sequence[Row[Any]]:
    """The sealed secrets that sign now."""
    return store.all(connection, _secrets, ids=as_json(sorted(endpoint_ids)))
