"""The health of endpoints: since when each fails, and which notices were sent."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
from sqlalchemy import Connection, Row

from effects.extend import Sql, Store, as_json

GONE_SECONDS = 600.0  # a second 410 so much later confirms the first


class EndpointFailures(msgspec.Struct):
    """The results of one batch of settlements for an endpoint."""

    endpoint_id: str
    messages: int = 0  # whose first try failed
    gone_event: str | None = None  # an event that was answered 410
    disable_requested: bool = False  # to send nothing more


def _fail(sql: Sql) -> str:
    """In the order of the ids: two workers never wait for each other crosswise. An endpoint that is gone has no row."""
    table = sql.webhook_health
    return f"""
    INSERT INTO {table} (endpoint_id, failing_since, failed_messages, gone_at, gone_event, updated_at)
    SELECT r.endpoint_id, {sql.now}, r.messages, CASE WHEN r.gone_event IS NULL THEN NULL ELSE {sql.now} END,
        r.gone_event, {sql.now}
    FROM {sql.rows("rows", EndpointFailures)} AS r JOIN {sql.webhook_endpoints} AS e ON e.id = r.endpoint_id
    WHERE true ORDER BY r.endpoint_id
    ON CONFLICT (endpoint_id) DO UPDATE SET failing_since = COALESCE({table}.failing_since, {sql.now}),
        failed_messages = {table}.failed_messages + excluded.failed_messages,
        gone_at = COALESCE({table}.gone_at, excluded.gone_at),
        gone_event = COALESCE({table}.gone_event, excluded.gone_event), updated_at = {sql.now}
    RETURNING endpoint_id, {sql.seconds("failing_since")} AS failing_seconds,
        {sql.epoch("failing_since")} AS failing_since, failed_messages, noticed, gone_event,
        {sql.seconds("gone_at")} AS gone_seconds"""


def _succeed(sql: Sql) -> str:
    return f"""
    UPDATE {sql.webhook_health} SET failing_since = NULL, failed_messages = 0, noticed = 0, gone_at = NULL,
        gone_event = NULL, updated_at = {sql.now}
    WHERE endpoint_id {sql.any_of("ids")} AND failing_since IS NOT NULL"""


def _notice(sql: Sql) -> str:
    return f"UPDATE {sql.webhook_health} SET noticed = :hours WHERE endpoint_id = :id"


def _disable(sql: Sql) -> str:
    return f"""
    UPDATE {sql.webhook_endpoints} SET status = 'disabled', reason = :reason, updated_at = {sql.now}
    WHERE id = :id AND status = 'active'"""


def _forget(sql: Sql) -> str:
    return f"DELETE FROM {sql.webhook_health} WHERE endpoint_id = :id"


def fail(store: Store, connection: Connection, failures: Sequence[EndpointFailures]) -> Sequence[Row[Any]]:
    """Record failures; return the current health of each of these endpoints."""
    return store.all(connection, _fail, rows=as_json(failures))


def succeed(store: Store, connection: Connection, endpoint_ids: set[str]) -> None:
    """Clear the failures of endpoints that work. Writes only rows that have failures."""
    store.write(connection, _succeed, ids=as_json(sorted(endpoint_ids)))


def notice(store: Store, connection: Connection, endpoint_id: str, hours: int) -> None:
    """Record that a notice was sent after so many hours of failing."""
    store.write(connection, _notice, id=endpoint_id, hours=hours)


def disable(store: Store, connection: Connection, endpoint_id: str, reason: str) -> bool:
    """Whether it was active until now."""
    return store.write(connection, _disable, id=endpoint_id, reason=reason) == 1


def forget(store: Store, connection: Connection, endpoint_id: str) -> None:
    store.write(connection, _forget, id=endpoint_id)
