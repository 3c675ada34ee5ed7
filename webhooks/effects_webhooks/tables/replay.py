"""Which deliveries a replay concerns."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqlalchemy import Connection, Row

from effects.extend import Sql, Store
from effects_webhooks.tables.endpoint_rows import owned


def _owned(sql: Sql) -> str:
    """The deliveries whose event and endpoint are the tenant's."""
    return f"""
    {sql.delivered_webhooks} AS d JOIN {sql.webhook_events} AS m ON m.id = d.event_id AND {owned("m")}
    JOIN {sql.webhook_endpoints} AS e ON e.id = d.endpoint_id AND {owned("e")}"""


def _delivery(sql: Sql) -> str:
    return f"SELECT d.job_id, m.tenant FROM {_owned(sql)} WHERE d.event_id = :event_id AND d.endpoint_id = :endpoint_id"


def _of_event(sql: Sql) -> str:
    return f"""
    SELECT d.event_id, d.endpoint_id, d.job_id, m.tenant FROM {_owned(sql)}
    WHERE d.event_id = :event_id ORDER BY d.endpoint_id"""


def _failed(sql: Sql) -> str:
    """The ledger names the newest job of each delivery: one that was requeued is no longer it."""
    until = "double precision" if sql.postgresql else "REAL"
    since, end = sql.time("CAST(:since AS double precision)"), sql.time(f"CAST(:until AS {until})")
    return f"""
    SELECT h.id AS job_id, d.event_id, m.tenant FROM {_owned(sql)}
    JOIN {sql.job_history} AS h ON h.id = d.job_id
    WHERE d.endpoint_id = :endpoint_id AND h.status IN ('dead', 'cancelled') AND h.finished_at >= {since}
    AND (CAST(:until AS {until}) IS NULL OR h.finished_at <= {end}) AND d.state <> 'done'
    AND h.id > :after AND h.id <= :newest ORDER BY h.id LIMIT :size"""


def _newest(sql: Sql) -> str:
    return f"SELECT max(job_id) FROM {sql.delivered_webhooks} WHERE endpoint_id = :endpoint_id"


def _retrying(sql: Sql) -> str:
    return f"""
    SELECT count(*) AS n FROM {_owned(sql)} JOIN {sql.jobs} AS j ON j.id = d.job_id
    WHERE d.endpoint_id = :endpoint_id AND j.limit_key = :limit_key AND j.status = 'failed'"""


def delivery(
    store: Store, connection: Connection, event_id: str, endpoint_id: str, tenant: str | None
) -> Row[Any] | None:
    """The newest job of one delivery of the tenant. For `tenant` here and below None means any, "" means no tenant."""
    return store.row(connection, _delivery, event_id=event_id, endpoint_id=endpoint_id, tenant=tenant)


def of_event(store: Store, connection: Connection, event_id: str, tenant: str | None) -> Sequence[Row[Any]]:
    """Every delivery of an event of the tenant with its newest job."""
    return store.all(connection, _of_event, event_id=event_id, tenant=tenant)


def failed(
    store: Store,
    connection: Connection,
    endpoint_id: str,
    tenant: str | None,
    *,
    since: float,
    until: float | None,
    after: int,
    newest: int,
    size: int,
) -> Sequence[Row[Any]]:
    """A page of the endpoint's deliveries that ended without a success, by job id, up to `newest`."""
    return store.all(
        connection, _failed, endpoint_id=endpoint_id, tenant=tenant, since=since, until=until, after=after,
        newest=newest, size=size,
    )  # fmt: skip


def newest_job(store: Store, connection: Connection, endpoint_id: str) -> int:
    """The newest job of all deliveries to an endpoint; 0 if it has none."""
    return int(store.value(connection, _newest, endpoint_id=endpoint_id) or 0)


def count_retrying(store: Store, connection: Connection, endpoint_id: str, limit_key: str, tenant: str | None) -> int:
    """How many of the endpoint's deliveries wait for their next try."""
    row = store.row(connection, _retrying, endpoint_id=endpoint_id, limit_key=limit_key, tenant=tenant)
    return int(row.n) if row is not None else 0
