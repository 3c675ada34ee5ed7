"""Endpoints and their secrets."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqlalchemy import Connection, Row

from effects.extend import Sql, Store, as_json

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


def without_query(url: str) -> str:
    """An endpoint's URL as many people may see it: partners put tokens into the query."""
    address, mark, _ = url.partition("?")
    return f"{address}?…" if mark else address
