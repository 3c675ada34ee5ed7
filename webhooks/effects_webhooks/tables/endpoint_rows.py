"""Endpoints, their secrets, and their health: since when each fails, and which notices were sent."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
from sqlalchemy import Connection, Row

from effects.extend.sql import Sql, Store, as_json
from effects_webhooks.echoes import shortened

_NEW = {
    "id": "text", "tenant": "text", "url": "text", "patterns": "json", "description": "text", "profile": "text",
    "overrides": "json", "ordering": "text", "key": "text",
}  # fmt: skip


def _insert(sql: Sql) -> str:
    named = ", ".join(_NEW)
    return f"""
    INSERT INTO {sql.webhook_endpoints} ({named}, headers, created_at, updated_at)
    SELECT {named}, {sql.bound("headers", "bytes")}, {sql.now}, {sql.now} FROM {sql.rows("rows", _NEW)} AS r
    WHERE true ON CONFLICT (tenant, key) WHERE key IS NOT NULL DO NOTHING"""


def owned(owner: str) -> str:
    """The condition that a row belongs to `:tenant`, or that the caller may touch every tenant's (NULL)."""
    return f"(CAST(:tenant AS text) IS NULL OR {owner}.tenant = CAST(:tenant AS text))"


def _insert_secret(sql: Sql) -> str:
    """The next number of its endpoint, whose row the caller has locked or has just written."""
    return f"""
    INSERT INTO {sql.webhook_secrets} (id, endpoint_id, number, sealed, created_at)
    SELECT CAST(:id AS text), CAST(:endpoint_id AS text), COALESCE(max(s.number), 0) + 1,
        {sql.bound("sealed", "bytes")}, {sql.now}
    FROM {sql.webhook_secrets} AS s WHERE s.endpoint_id = :endpoint_id"""


def insert_endpoint(store: Store, connection: Connection, row: dict[str, Any]) -> bool:
    """Write an endpoint: id, tenant, url, patterns, description, profile, overrides, ordering, key and sealed headers.

    Returns:
        Whether it was written; an endpoint of the tenant has its key otherwise.
    """
    columns = {name: value for name, value in row.items() if name != "headers" and value is not None}
    return store.write(connection, _insert, rows=as_json([columns]), headers=row["headers"]) == 1


def insert_secret(store: Store, connection: Connection, *, secret_id: str, endpoint_id: str, sealed: bytes) -> None:
    """Write a sealed secret, the newest of its endpoint, good until it is given an end."""
    store.write(connection, _insert_secret, id=secret_id, endpoint_id=endpoint_id, sealed=sealed)


def _select(sql: Sql) -> str:
    return f"""
    SELECT e.id, e.tenant, e.url, {sql.json_text("e.patterns")} AS patterns, e.status, e.reason, e.description,
        e.key, e.profile, {sql.json_text("e.overrides")} AS overrides, e.ordering, e.headers IS NOT NULL AS has_headers,
        {sql.epoch("e.created_at")} AS created_at, {sql.epoch("h.failing_since")} AS failing_since,
        h.failed_messages FROM {sql.webhook_endpoints} AS e
    LEFT JOIN {sql.webhook_health} AS h ON h.endpoint_id = e.id"""


def _all(sql: Sql) -> str:
    return f"{_select(sql)} ORDER BY e.created_at, e.id"


def _of_tenant(sql: Sql) -> str:
    return f"{_select(sql)} WHERE e.tenant = :tenant ORDER BY e.created_at, e.id"


def _by_id(sql: Sql) -> str:
    return f"{_select(sql)} WHERE e.id = :id AND {owned('e')}"


def _failing(sql: Sql) -> str:
    return f"""
    {_select(sql)} WHERE e.status = 'active' AND h.failing_since IS NOT NULL
    ORDER BY h.failing_since, e.id LIMIT :limit"""


def failing_endpoints(store: Store, connection: Connection, limit: int) -> Sequence[Row[Any]]:
    """Those that have not succeeded since they failed, that for the longest first."""
    return store.all(connection, _failing, limit=limit)


def _failing_counts(sql: Sql) -> str:
    return f"""
    SELECT count(*) AS endpoints, count(h.failing_since) AS failing, {sql.epoch("min(h.failing_since)")} AS since,
        COALESCE(sum(h.failed_messages), 0) AS messages
    FROM {sql.webhook_endpoints} AS e
    LEFT JOIN {sql.webhook_health} AS h ON h.endpoint_id = e.id AND h.failing_since IS NOT NULL
    WHERE e.status = 'active'"""


def _last_tried(sql: Sql) -> str:
    """Among the newest 1,000 deliveries of each, that which was settled last."""
    newest = f"""
        SELECT r.job_id FROM (
            SELECT d.job_id, d.updated_at, d.tries FROM {sql.delivered_webhooks} AS d
            WHERE d.endpoint_id = h.endpoint_id ORDER BY d.job_id DESC LIMIT 1000) AS r
        WHERE r.tries > 0 ORDER BY r.updated_at DESC, r.job_id DESC LIMIT 1"""
    return f"""
    SELECT h.endpoint_id, ({newest}) AS job_id FROM {sql.webhook_health} AS h
    WHERE h.endpoint_id {sql.any_of("ids")} ORDER BY h.endpoint_id"""


def failing_counts(store: Store, connection: Connection) -> Row[Any]:
    """How many active endpoints there are, how many fail, since when, and how many messages failed since."""
    row = store.row(connection, _failing_counts)
    assert row is not None
    return row


def last_tried(store: Store, connection: Connection, endpoint_ids: Sequence[str]) -> dict[str, int]:
    """The job of each of these failing endpoints that was settled last."""
    rows = store.all(connection, _last_tried, ids=as_json(list(endpoint_ids)))
    return {row.endpoint_id: row.job_id for row in rows if row.job_id is not None}


def _lock_key(sql: Sql) -> str:
    return f"""
    SELECT e.id, e.url, {sql.json_text("e.patterns")} AS patterns, e.profile, e.ordering, e.headers,
        {sql.json_text("e.overrides")} AS overrides
    FROM {sql.webhook_endpoints} AS e WHERE e.tenant = :tenant AND e.key = :key {sql.lock(skip=False)}"""


def lock_key(store: Store, connection: Connection, tenant: str, key: str) -> Row[Any] | None:
    """The settings of the tenant's endpoint of this key, locked until the transaction ends."""
    return store.row(connection, _lock_key, tenant=tenant, key=key)


def _same_url(sql: Sql) -> str:
    return f"""
    SELECT id FROM {sql.webhook_endpoints} WHERE tenant = :tenant AND url = :url AND id <> :id
    ORDER BY created_at, id LIMIT 10"""


def same_url(store: Store, connection: Connection, tenant: str, url: str, endpoint_id: str) -> list[str]:
    """The ids of the tenant's other endpoints of this URL; at most ten."""
    return [row.id for row in store.all(connection, _same_url, tenant=tenant, url=url, id=endpoint_id)]


def endpoints(store: Store, connection: Connection, tenant: str | None) -> Sequence[Row[Any]]:
    """All endpoints, or a tenant's, oldest first."""
    if tenant is None:
        return store.all(connection, _all)
    return store.all(connection, _of_tenant, tenant=tenant)


def _named(sql: Sql) -> str:
    parts = " OR ".join(sql.contains(f"e.{column}", "question") for column in ("description", "key"))
    return f"""
    SELECT e.id, e.description, e.key, e.url FROM {sql.webhook_endpoints} AS e
    WHERE e.id = :question OR {parts} ORDER BY e.created_at, e.id LIMIT 10"""


def find_named(store: Store, connection: Connection, question: str) -> Sequence[Row[Any]]:
    """Endpoints by their id, or a part of their description or key, ignoring case; at most ten."""
    return store.all(connection, _named, question=question)


def _names(sql: Sql) -> str:
    return f"""
    SELECT e.id, e.description, e.key, e.url FROM {sql.webhook_endpoints} AS e
    WHERE e.id {sql.any_of("ids")} ORDER BY e.id"""


def names(store: Store, connection: Connection, endpoint_ids: set[str]) -> dict[str, str]:
    """What people call these endpoints, by their ids."""
    return {row.id: name_of(row) for row in store.all(connection, _names, ids=as_json(sorted(endpoint_ids)))}


def name_of(row: Row[Any]) -> str:
    """What people call an endpoint."""
    return row.description or row.key or shortened(row.url)


def endpoint(store: Store, connection: Connection, endpoint_id: str, tenant: str | None) -> Row[Any] | None:
    """The endpoint, if it is the tenant's. For `tenant` here and below None means any, "" means no tenant."""
    return store.row(connection, _by_id, id=endpoint_id, tenant=tenant)


_CHANGE = {"id": "text", "url": "text", "patterns": "json", "profile": "text", "overrides": "json", "ordering": "text"}


def _change(sql: Sql) -> str:
    """What is NULL stays; so do the headers, unless they are to be replaced."""
    table = sql.webhook_endpoints
    kept = ", ".join(f"{name} = COALESCE(r.{name}, {table}.{name})" for name in _CHANGE if name != "id")
    return f"""
    UPDATE {table} SET {kept}, updated_at = {sql.now},
        headers = CASE WHEN CAST(:replace AS integer) = 1 THEN {sql.bound("headers", "bytes")} ELSE {table}.headers END
    FROM {sql.rows("rows", _CHANGE)} AS r WHERE {table}.id = r.id AND {owned(table)}"""


def change(
    store: Store,
    connection: Connection,
    row: dict[str, Any],
    tenant: str | None,
    *,
    replace_headers: bool,
    headers: bytes | None,
) -> bool:
    """Whether the tenant has such an endpoint; what `row` has (beside its id) is changed."""
    columns = {name: value for name, value in row.items() if value is not None}  # a JSON null is no NULL on SQLite
    changed = store.write(
        connection, _change, rows=as_json([columns]), tenant=tenant, replace=int(replace_headers), headers=headers
    )
    return changed == 1


def _set_status(sql: Sql) -> str:
    return f"""
    UPDATE {sql.webhook_endpoints} AS e SET status = :status, reason = :reason, updated_at = {sql.now}
    WHERE e.id = :id AND {owned("e")}"""


def set_status(
    store: Store, connection: Connection, endpoint_id: str, tenant: str | None, status: str, reason: str | None
) -> bool:
    """Whether the tenant has such an endpoint; its status is now this one."""
    return store.write(connection, _set_status, id=endpoint_id, tenant=tenant, status=status, reason=reason) == 1


# -- secrets -----------------------------------------------------------------------------------------------------


def _lock(sql: Sql) -> str:
    return f"SELECT e.id FROM {sql.webhook_endpoints} AS e WHERE e.id = :id AND {owned('e')} {sql.lock(skip=False)}"


def _secrets(sql: Sql) -> str:
    return f"""
    SELECT s.id, {sql.epoch("s.created_at")} AS created_at, {sql.epoch("s.expires_at")} AS expires_at,
        (s.expires_at <= {sql.now}) IS TRUE AS expired
    FROM {sql.webhook_secrets} AS s JOIN {sql.webhook_endpoints} AS e ON e.id = s.endpoint_id
    WHERE s.endpoint_id = :id AND {owned("e")} ORDER BY s.number DESC"""


def _expire_all(sql: Sql) -> str:
    """One that ends sooner already keeps its end."""
    end = sql.after(sql.number("overlap"))
    return f"""
    UPDATE {sql.webhook_secrets} SET expires_at = {end}
    WHERE endpoint_id = :id AND (expires_at IS NULL OR expires_at > {end})"""


def _expire_one(sql: Sql) -> str:
    return f"""
    UPDATE {sql.webhook_secrets} SET expires_at = {sql.now}
    WHERE id = :id AND (expires_at IS NULL OR expires_at > {sql.now})"""


def _delete_expired(sql: Sql) -> str:
    return f"DELETE FROM {sql.webhook_secrets} WHERE endpoint_id = :id AND expires_at <= {sql.now}"


def _owner(sql: Sql) -> str:
    return f"""
    SELECT s.endpoint_id FROM {sql.webhook_secrets} AS s JOIN {sql.webhook_endpoints} AS e ON e.id = s.endpoint_id
    WHERE s.id = :id AND {owned("e")}"""


def lock(store: Store, connection: Connection, endpoint_id: str, tenant: str | None) -> bool:
    """Whether the tenant has such an endpoint; two changes of its secrets wait for each other here."""
    return store.row(connection, _lock, id=endpoint_id, tenant=tenant) is not None


def secrets(store: Store, connection: Connection, endpoint_id: str, tenant: str | None) -> Sequence[Row[Any]]:
    """Id, times and whether it has ended of each secret, newest first; never the value."""
    return store.all(connection, _secrets, id=endpoint_id, tenant=tenant)


def secret_owner(store: Store, connection: Connection, secret_id: str, tenant: str | None) -> str | None:
    """The endpoint of this secret, if it is the tenant's."""
    owner: str | None = store.value(connection, _owner, id=secret_id, tenant=tenant)
    return owner


def expire_secrets(store: Store, connection: Connection, endpoint_id: str, overlap_seconds: float) -> None:
    """The endpoint's secrets end so many seconds from now, or sooner; those that have ended are deleted."""
    store.write(connection, _delete_expired, id=endpoint_id)
    store.write(connection, _expire_all, id=endpoint_id, overlap=overlap_seconds)


def expire_secret(store: Store, connection: Connection, secret_id: str) -> bool:
    """Whether it was good until now."""
    return store.write(connection, _expire_one, id=secret_id) == 1


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
