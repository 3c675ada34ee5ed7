"""Events, their deliveries, what a claimed batch of deliveries needs to be sent, and deletion of events by age."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, NamedTuple

import msgspec
from sqlalchemy import Connection, Row, literal_column
from sqlalchemy.dialects import postgresql, sqlite

from effects.extend.rows import Page
from effects.extend.sql import Sql, Store, as_json


class EventRow(msgspec.Struct, frozen=True, kw_only=True):
    """One event to write."""

    id: str
    tenant: str
    type: str
    key: str | None
    digest: str
    body: bytes
    ordering_key: str | None
    occurred_at: datetime


class DeliveryRow(msgspec.Struct, frozen=True):
    """The intent to send one event to one endpoint."""

    event_id: str
    endpoint_id: str
    digest: str


# -- enqueue -----------------------------------------------------------------------------------------------------


def _active(sql: Sql) -> str:
    return f"""
    SELECT id, tenant, ordering, {sql.json_text("patterns")} AS patterns FROM {sql.webhook_endpoints}
    WHERE status = 'active' AND tenant {sql.any_of("tenants")} ORDER BY id"""


def active_endpoints(store: Store, connection: Connection, tenants: set[str]) -> Sequence[Row[Any]]:
    """Id, tenant, ordering and patterns of every endpoint of these tenants that takes events."""
    return store.all(connection, _active, tenants=as_json(sorted(tenants)))


def insert_events(store: Store, connection: Connection, rows: Sequence[EventRow]) -> set[str]:
    """Insert events whose id and key are free, and return them. The bytes are bound as bytes: text would pass
    through an encoding on its way. Each is later than all endpoints that it may have found.
    """
    dialect = postgresql if store.is_postgresql else sqlite
    table = store.tables["webhook_events"]
    insert = dialect.insert(table).values(created_at=literal_column(store.sql.statement_now))
    statement = insert.on_conflict_do_nothing().returning(table.c.id)
    result = connection.execute(statement, [msgspec.structs.asdict(row) for row in rows])
    return {row.id for row in result}


def insert_deliveries(sql: Sql) -> str:
    """Write the relation `i`: the fields of `DeliveryRow`, and the job of each."""
    return f"""
    INSERT INTO {sql.delivered_webhooks} (event_id, endpoint_id, digest, job_id, created_at, updated_at)
    SELECT i.event_id, i.endpoint_id, i.digest, i.job_id, {sql.now}, {sql.now} FROM i"""


_HOLD = {"id": "text", "tenant": "text", "key": "text"}


def _holders(sql: Sql) -> str:
    columns, held = sql.rows("rows", _HOLD), "e.id, e.tenant, e.key, e.digest"
    return f"""
    SELECT {held} FROM {columns} AS r JOIN {sql.webhook_events} AS e ON e.tenant = r.tenant AND e.key = r.key
    UNION SELECT {held} FROM {columns} AS r JOIN {sql.webhook_events} AS e ON e.id = r.id"""


def holders(store: Store, connection: Connection, rows: Sequence[EventRow]) -> Sequence[Row[Any]]:
    """The stored events that hold these rows' keys or ids."""
    keys = [{"id": row.id, "tenant": row.tenant, "key": row.key} for row in rows]
    return store.all(connection, _holders, rows=as_json(keys))


def _deliveries(sql: Sql) -> str:
    return f"""
    SELECT event_id, endpoint_id, job_id FROM {sql.delivered_webhooks}
    WHERE event_id {sql.any_of("events")} ORDER BY event_id, endpoint_id"""


def deliveries(store: Store, connection: Connection, event_ids: Sequence[str]) -> Sequence[Row[Any]]:
    """Event, endpoint and newest job of every delivery of these events."""
    return store.all(connection, _deliveries, events=as_json(event_ids))


# -- sending ---------------------------------------------------------------------------------------------------


def _bodies(sql: Sql) -> str:
    return f"SELECT id, tenant, body FROM {sql.webhook_events} WHERE id {sql.any_of('ids')}"


def _addresses(sql: Sql) -> str:
    return f"""
    SELECT e.id, e.tenant, e.url, e.status, e.profile, {sql.json_text("e.overrides")} AS overrides, e.headers,
        h.failing_since IS NOT NULL AS failing
    FROM {sql.webhook_endpoints} AS e LEFT JOIN {sql.webhook_health} AS h ON h.endpoint_id = e.id
    WHERE e.id {sql.any_of("ids")}"""


def _secrets(sql: Sql) -> str:
    """Newest first: the order of the tokens in the header."""
    return f"""
    SELECT id, endpoint_id, sealed FROM {sql.webhook_secrets}
    WHERE endpoint_id {sql.any_of("ids")} AND (expires_at IS NULL OR expires_at > {sql.now})
    ORDER BY endpoint_id, number DESC"""


def bodies(store: Store, connection: Connection, event_ids: set[str]) -> Sequence[Row[Any]]:
    """Id, tenant and body."""
    return store.all(connection, _bodies, ids=as_json(sorted(event_ids)))


def addresses(store: Store, connection: Connection, endpoint_ids: set[str]) -> Sequence[Row[Any]]:
    """Id, tenant, URL, status, retry rules, sealed headers and whether it fails, as they are now."""
    return store.all(connection, _addresses, ids=as_json(sorted(endpoint_ids)))


def secrets(store: Store, connection: Connection, endpoint_ids: set[str]) -> Sequence[Row[Any]]:
    """The sealed secrets that sign now."""
    return store.all(connection, _secrets, ids=as_json(sorted(endpoint_ids)))


def _earlier(sql: Sql) -> str:
    """The attempts that were made; neither what waited nor what a lost worker left."""
    return f"""
    SELECT job_id, error_code FROM {sql.job_attempts}
    WHERE job_id {sql.any_of("ids", "int")} AND outcome IN ('failed', 'unknown', 'timed_out')"""


def earlier_codes(store: Store, connection: Connection, job_ids: Sequence[int]) -> Mapping[int, list[str]]:
    """The error codes of these jobs' earlier tries."""
    codes: dict[int, list[str]] = defaultdict(list)
    for row in store.all(connection, _earlier, ids=as_json(job_ids)) if job_ids else ():
        codes[row.job_id].append(row.error_code or "")
    return codes


# -- fan-out as a job ----------------------------------------------------------------------------------------------


def _event(sql: Sql) -> str:
    return f"SELECT id, tenant, type, digest, ordering_key FROM {sql.webhook_events} WHERE id = :id"


def _page(sql: Sql) -> str:
    """Endpoints that the event found when it was written, and that have no delivery of it yet."""
    return f"""
    SELECT e.id, e.tenant, e.ordering, {sql.json_text("e.patterns")} AS patterns, e.updated_at > e.created_at AS changed
    FROM {sql.webhook_endpoints} AS e
    WHERE e.status = 'active' AND e.tenant = :tenant AND e.id > :after
    AND e.created_at <= (SELECT created_at FROM {sql.webhook_events} WHERE id = :event_id)
    AND NOT EXISTS (SELECT 1 FROM {sql.delivered_webhooks} AS d WHERE d.event_id = :event_id AND d.endpoint_id = e.id)
    ORDER BY e.id LIMIT :size"""


def event(store: Store, connection: Connection, event_id: str) -> Row[Any] | None:
    return store.row(connection, _event, id=event_id)


def endpoints_after(store: Store, connection: Connection, event: Row[Any], after: str, size: int) -> Sequence[Row[Any]]:
    """A page of the event's tenant's endpoints behind the id `after`, and whether each was ever changed."""
    return store.all(connection, _page, tenant=event.tenant, event_id=event.id, after=after, size=size)


PRUNE_PAGE = 1000


class _PruneCursor(NamedTuple):
    """Where a walk by age continues."""

    created_at: float
    id: str


def prune_old_events(store: Store, cursor: _PruneCursor | None, *, keep_seconds: float, dry_run: bool) -> Page:
    """One page of events older than `keep_seconds`, oldest first; those without a delivery go.

    One whose `webhook.fan_out` waits, live or as an open dead letter, stays: the rest of its deliveries is to come.
    """
    start = cursor or _PruneCursor(0.0, "")
    with store.read() as connection:
        page = store.all(
            connection,
            _next_events if cursor else _oldest_events,
            keep=keep_seconds,
            created_at=start.created_at,
            id=start.id,
        )
        gone = [row.id for row in page if not row.needed]
        if gone:
            held = {row.event_id for row in store.all(connection, _held_by_fan_out, ids=as_json(gone))}
            gone = [event_id for event_id in gone if event_id not in held]
    taken = len(gone)
    if gone and not dry_run:
        with store.single() as connection:
            taken = store.write(connection, _delete_events, ids=as_json(gone))
    return Page(taken, _PruneCursor(page[-1].created_at, page[-1].id) if len(page) == PRUNE_PAGE else None)


def _is_delivered(sql: Sql) -> str:
    return sql.exists(f"FROM {sql.delivered_webhooks} AS d WHERE d.event_id = e.id")


def _held_by_fan_out(sql: Sql) -> str:
    """Once a page, and not in `_is_delivered`: no index knows the payload. A requeue leaves the old row where it is."""
    event = "payload ->> 'event_id'"
    own_fan_out = f"job_type = 'webhook.fan_out' AND {event} {sql.any_of('ids')}"
    return f"""
    SELECT {event} AS event_id FROM {sql.jobs} WHERE {own_fan_out}
    UNION SELECT {event} FROM {sql.job_history} WHERE status = 'dead' AND {own_fan_out}"""


def _old_events(sql: Sql, behind: str) -> str:
    return f"""
    SELECT e.id, {sql.epoch("e.created_at")} AS created_at, {_is_delivered(sql)} AS needed
    FROM {sql.webhook_events} AS e
    WHERE e.created_at <= {sql.after(f"-{sql.number('keep')}")} AND {behind}
    ORDER BY e.created_at, e.id LIMIT {PRUNE_PAGE}"""


def _oldest_events(sql: Sql) -> str:
    return _old_events(sql, f"{sql.number('created_at')} = 0 AND {sql.bound('id', 'text')} = ''")


def _next_events(sql: Sql) -> str:
    return _old_events(sql, f"(e.created_at, e.id) > ({sql.time(sql.number('created_at'))}, :id)")


def _delete_events(sql: Sql) -> str:
    return f"DELETE FROM {sql.webhook_events} AS e WHERE e.id {sql.any_of('ids')} AND NOT {_is_delivered(sql)}"
