"""Endpoints and their secrets."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqlalchemy import Connection, Row

from effects.store.sql import Sql
from effects.store.store import Store, as_json

_NEW = {"id": "text", "tenant": "text", "url": "text", "patterns": "json", "description": "text"}


def _insert(sql: Sql) -> str:
    return f"""
    INSERT INTO {sql.webhook_endpoints} (id, tenant, url, patterns, description, created_at, updated_at)
    SELECT r.id, r.tenant, r.url, r.patterns, r.description, {sql.now}, {sql.now} FROM {sql.rows("rows", _NEW)} AS r"""


def _insert_secret(sql: Sql) -> str:
    return f"""
    INSERT INTO {sql.webhook_secrets} (id, endpoint_id, sealed, created_at)
    VALUES (:id, :endpoint_id, :sealed, {sql.now})"""


def _insert_limit(sql: Sql) -> str:
    return f"""
    INSERT INTO {sql.limits} (limit_key, max_in_flight, updated_at) VALUES (:limit_key, :max_in_flight, {sql.now})
    ON CONFLICT DO NOTHING"""


def insert_endpoint(store: Store, connection: Connection, row: dict[str, Any]) -> None:
    """Write an endpoint: id, tenant, url, patterns, description."""
    store.write(connection, _insert, rows=as_json([row]))


def insert_secret(store: Store, connection: Connection, *, secret_id: str, endpoint_id: str, sealed: bytes) -> None:
    """Write a sealed secret, good until it is given an end."""
    store.write(connection, _insert_secret, id=secret_id, endpoint_id=endpoint_id, sealed=sealed)


def insert_limit(store: Store, connection: Connection, limit_key: str, max_in_flight: int) -> None:
    """Cap what is in flight under this key; a row that is there stays as an operator left it."""
    store.write(connection, _insert_limit, limit_key=limit_key, max_in_flight=max_in_flight)


def _select(sql: Sql) -> str:
    return f"""
    SELECT id, tenant, url, {sql.json_text("patterns")} AS patterns, status, reason, description,
        {sql.epoch("created_at")} AS created_at FROM {sql.webhook_endpoints}"""


def _all(sql: Sql) -> str:
    return f"{_select(sql)} ORDER BY created_at, id"


def _of_tenant(sql: Sql) -> str:
    return f"{_select(sql)} WHERE tenant = :tenant ORDER BY created_at, id"


def _one(sql: Sql) -> str:
    return f"{_select(sql)} WHERE id = :id"


def endpoints(store: Store, connection: Connection, tenant: str | None) -> Sequence[Row[Any]]:
    """All endpoints, or a tenant's, oldest first."""
    if tenant is None:
        return store.all(connection, _all)
    return store.all(connection, _of_tenant, tenant=tenant)


def endpoint(store: Store, connection: Connection, endpoint_id: str) -> Row[Any] | None:
    return store.one(connection, _one, id=endpoint_id)


def _set_status(sql: Sql) -> str:
    return f"""
    UPDATE {sql.webhook_endpoints} SET status = :status, reason = :reason, updated_at = {sql.now} WHERE id = :id"""


def set_status(store: Store, connection: Connection, endpoint_id: str, status: str, reason: str | None) -> bool:
    """Whether there is such an endpoint; its status is now this one."""
    return store.write(connection, _set_status, id=endpoint_id, status=status, reason=reason) == 1
