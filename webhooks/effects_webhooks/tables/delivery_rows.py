"""Deliveries and events as people look at them: lists, newest first, a page at a time, and what a replay concerns.

Each shape of filter has its own statement and index.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

from sqlalchemy import Connection, Row

from effects.extend.sql import Sql, Statement, Store, and_each, set_filters
from effects_webhooks.tables.endpoint_rows import owned

RETRYING = "retrying"  # as a state to filter by
SPAN = 100_000  # job ids that a page searches where no index serves its filters
RECENT = 10_000  # an endpoint's newest deliveries, which are counted
STANDINGS = ("failing", "waiting", "delivered", "given_up")


def deliveries(
    store: Store, connection: Connection, filters: Mapping[str, object], *, before: int | None, limit: int
) -> tuple[Sequence[Row[Any]], int | None]:
    """A page of deliveries by their newest jobs, and where older ones remain to be searched.

    Args:
        filters: any of `endpoint_id`, `event_id`, `state` (`retrying` too), `standing` and `tenant`.
    """
    upper = before - 1 if before is not None else int(store.value(connection, _newest) or 0)
    lower = upper + 1 - SPAN if _is_windowed(filters) else 0
    rows = store.all(connection, _deliveries(frozenset(filters)), upper=upper, lower=lower, limit=limit, **filters)
    older = lower > 0 and len(rows) < limit and store.row(connection, _older, lower=lower) is not None
    return rows, lower if older else None


def _is_windowed(filters: Mapping[str, object]) -> bool:
    """An event's deliveries are few; an endpoint's are in the order of the list."""
    return "event_id" not in filters and (
        not filters.keys().isdisjoint(("state", "standing")) or ("tenant" in filters and "endpoint_id" not in filters)
    )


def events(
    store: Store, connection: Connection, tenant: str | None, *, before: str | None, limit: int
) -> Sequence[Row[Any]]:
    """A page of events; of every tenant if it is None, of none if it is empty."""
    filters = set_filters({"tenant": tenant, "before": before})
    return store.all(connection, _events(frozenset(filters)), limit=limit, **filters)


def event_exists(store: Store, connection: Connection, event_id: str, tenant: str | None) -> bool:
    """Whether the tenant has this event; any tenant if it is None."""
    filters = set_filters({"id": event_id, "tenant": tenant})
    return store.row(connection, _event(frozenset(filters)), **filters) is not None


def event(store: Store, connection: Connection, event_id: str, tenant: str | None) -> Row[Any] | None:
    """The tenant's event with its body; any tenant's if it is None."""
    filters = set_filters({"id": event_id, "tenant": tenant})
    return store.row(connection, _whole_event(frozenset(filters)), **filters)


def delivery(
    store: Store, connection: Connection, event_id: str, endpoint_id: str, tenant: str | None
) -> Row[Any] | None:
    """The delivery of an event to an endpoint of the tenant; of any tenant if it is None."""
    filters = set_filters({"event_id": event_id, "endpoint_id": endpoint_id, "tenant": tenant})
    return store.row(connection, _delivery(frozenset(filters)), **filters)


# -- the statements --------------------------------------------------------------------------------------


def _retries(sql: Sql, rows: str) -> str:
    """Whether its job waits for another try. What has ended has a state that says so, and its job is not looked for."""
    job = f"SELECT j.status FROM {sql.jobs} AS j WHERE j.id = {rows}.job_id"
    return f"({rows}.tries > 0 AND {rows}.state IN ('intended', 'unknown') AND COALESCE(({job}) = 'failed', false))"


def _standing(sql: Sql, rows: str) -> str:
    """Each delivery has one: it is tried again, was not tried yet, has arrived, or is not tried again by itself."""
    tried = "j.status = 'failed' OR j.attempts > 1"
    live = f"""
        SELECT CASE WHEN {tried} THEN 'failing' ELSE 'waiting' END FROM {sql.jobs} AS j WHERE j.id = {rows}.job_id"""
    return f"""
        CASE WHEN {rows}.state = 'done' THEN 'delivered' WHEN {rows}.state IN ('refused', 'abandoned') THEN 'given_up'
        ELSE COALESCE(({live}), 'given_up') END"""


def _recent(sql: Sql) -> str:
    """Asked row by row, by the key: a join could read all live jobs."""
    due = f"SELECT j.run_at FROM {sql.jobs} AS j WHERE j.id = d.job_id AND j.status <> 'running'"
    return f"""
    WITH recent AS MATERIALIZED (
        SELECT {_standing(sql, "d")} AS standing, d.job_id, d.updated_at,
            CASE WHEN d.state NOT IN ('done', 'refused', 'abandoned') THEN ({due}) END AS due_at
        FROM (SELECT state, job_id, updated_at FROM {sql.delivered_webhooks} WHERE endpoint_id = :endpoint_id
              ORDER BY job_id DESC LIMIT {RECENT}) AS d
    )
    SELECT standing, count(*) AS deliveries, {sql.epoch("min(due_at)")} AS due_at,
        (SELECT r.job_id FROM recent AS r WHERE r.standing = recent.standing
         ORDER BY r.updated_at DESC, r.job_id DESC LIMIT 1) AS last_job,
        (SELECT r.job_id FROM recent AS r WHERE r.standing = recent.standing AND r.due_at IS NOT NULL
         ORDER BY r.due_at, r.job_id LIMIT 1) AS next_job
    FROM recent GROUP BY standing ORDER BY standing"""


def standings(store: Store, connection: Connection, endpoint_id: str) -> Sequence[Row[Any]]:
    """Of the endpoint's newest deliveries, by standing: how many; the job that was settled last; which is due next."""
    return store.all(connection, _recent, endpoint_id=endpoint_id)


def _delivery_columns(sql: Sql, rows: str) -> str:
    return f"""{rows}.event_id, {rows}.endpoint_id, {rows}.state, {rows}.status_code, {rows}.tries, {rows}.job_id,
            {_retries(sql, rows)} AS retries,
            {sql.epoch(f"{rows}.created_at")} AS created_at,
            (SELECT {sql.epoch("j.run_at")} FROM {sql.jobs} AS j
             WHERE j.id = {rows}.job_id AND j.status <> 'running') AS due_at,
            (SELECT m.type FROM {sql.webhook_events} AS m WHERE m.id = {rows}.event_id) AS type,
            (SELECT m.key FROM {sql.webhook_events} AS m WHERE m.id = {rows}.event_id) AS event_key"""


def _event_columns(sql: Sql) -> str:
    return f"""m.id, m.tenant, m.type, m.key, {sql.epoch("m.occurred_at")} AS occurred_at,
            {sql.epoch("m.created_at")} AS created_at"""


@cache
def _deliveries(names: frozenset[str]) -> Statement:
    def build(sql: Sql) -> str:
        by_filter = {
            "endpoint_id": "d.endpoint_id = :endpoint_id",
            "event_id": "d.event_id = :event_id",
            "standing": f"{_standing(sql, 'd')} = :standing",
            "state": f"(d.state = :state OR (:state = '{RETRYING}' AND {_retries(sql, 'd')}))",
        }
        conditions = and_each(by_filter, names)
        if "tenant" in names and "endpoint_id" not in names:
            endpoints = f"SELECT e.id FROM {sql.webhook_endpoints} AS e WHERE e.tenant = :tenant"
            conditions += f" AND d.endpoint_id {sql.among(f'({endpoints}) AS own')}"
        return f"""
        SELECT {_delivery_columns(sql, "page")}
        FROM (
            SELECT d.* FROM {sql.delivered_webhooks} AS d WHERE d.job_id >= :lower AND d.job_id <= :upper{conditions}
            ORDER BY d.job_id DESC LIMIT :limit) AS page
        ORDER BY page.job_id DESC"""

    return build


def _newest(sql: Sql) -> str:
    return f"SELECT max(job_id) FROM {sql.delivered_webhooks}"


def _older(sql: Sql) -> str:
    return f"SELECT 1 FROM {sql.delivered_webhooks} WHERE job_id < :lower LIMIT 1"


@cache
def _events(names: frozenset[str]) -> Statement:
    def build(sql: Sql) -> str:
        own = " AND m.tenant = :tenant" if "tenant" in names else ""
        cursor = f"SELECT m.created_at, m.id FROM {sql.webhook_events} AS m WHERE m.id = :before{own}"
        behind = f" AND (m.created_at, m.id) < ({cursor})" if "before" in names else ""
        return f"""
        SELECT {_event_columns(sql)}
        FROM {sql.webhook_events} AS m WHERE true{own}{behind}
        ORDER BY m.created_at DESC, m.id DESC LIMIT :limit"""

    return build


@cache
def _event(names: frozenset[str]) -> Statement:
    def build(sql: Sql) -> str:
        own = " AND tenant = :tenant" if "tenant" in names else ""
        return f"SELECT id FROM {sql.webhook_events} WHERE id = :id{own}"

    return build


@cache
def _whole_event(names: frozenset[str]) -> Statement:
    def build(sql: Sql) -> str:
        own = " AND m.tenant = :tenant" if "tenant" in names else ""
        return f"SELECT {_event_columns(sql)}, m.body FROM {sql.webhook_events} AS m WHERE m.id = :id{own}"

    return build


@cache
def _delivery(names: frozenset[str]) -> Statement:
    def build(sql: Sql) -> str:
        endpoints = f"SELECT 1 FROM {sql.webhook_endpoints} AS e WHERE e.id = d.endpoint_id AND e.tenant = :tenant"
        own = f" AND EXISTS ({endpoints})" if "tenant" in names else ""
        return f"""
        SELECT {_delivery_columns(sql, "d")}
        FROM {sql.delivered_webhooks} AS d WHERE d.event_id = :event_id AND d.endpoint_id = :endpoint_id{own}"""

    return build


def _owned(sql: Sql) -> str:
    """The deliveries whose event and endpoint are the tenant's."""
    return f"""
    {sql.delivered_webhooks} AS d JOIN {sql.webhook_events} AS m ON m.id = d.event_id AND {owned("m")}
    JOIN {sql.webhook_endpoints} AS e ON e.id = d.endpoint_id AND {owned("e")}"""


def _newest_job_of(sql: Sql) -> str:
    return f"SELECT d.job_id, m.tenant FROM {_owned(sql)} WHERE d.event_id = :event_id AND d.endpoint_id = :endpoint_id"


def _jobs_of_event(sql: Sql) -> str:
    return f"""
    SELECT d.event_id, d.endpoint_id, d.job_id, m.tenant FROM {_owned(sql)}
    WHERE d.event_id = :event_id ORDER BY d.endpoint_id"""


def _failed_jobs(sql: Sql) -> str:
    """The ledger names the newest job of each delivery: one that was requeued is no longer it."""
    until = "double precision" if sql.postgresql else "REAL"
    since, end = sql.time("CAST(:since AS double precision)"), sql.time(f"CAST(:until AS {until})")
    return f"""
    SELECT h.id AS job_id, d.event_id, m.tenant FROM {_owned(sql)}
    JOIN {sql.job_history} AS h ON h.id = d.job_id
    WHERE d.endpoint_id = :endpoint_id AND h.status IN ('dead', 'cancelled') AND h.finished_at >= {since}
    AND (CAST(:until AS {until}) IS NULL OR h.finished_at <= {end}) AND d.state <> 'done'
    AND h.id > :after AND h.id <= :newest ORDER BY h.id LIMIT :size"""


@cache
def _count_failed(windows: tuple[int, ...]) -> Statement:
    """As many as `RECENT` of each window, by hours."""

    def build(sql: Sql) -> str:
        counts = ", ".join(
            f"count(CASE WHEN finished_at >= {sql.after(str(-hours * 3600))} THEN 1 END) AS last_{hours}"
            for hours in windows
        )
        return f"""
        SELECT {counts} FROM (
            SELECT h.finished_at FROM {_owned(sql)} JOIN {sql.job_history} AS h ON h.id = d.job_id
            WHERE d.endpoint_id = :endpoint_id AND h.status IN ('dead', 'cancelled') AND d.state <> 'done'
            ORDER BY d.job_id DESC LIMIT {RECENT}) AS failed"""

    return build


def count_failed(store: Store, connection: Connection, endpoint_id: str, windows: Sequence[int]) -> dict[int, int]:
    """How many deliveries a recovery of the last so many hours concerns; at most `RECENT` are counted."""
    row = store.row(connection, _count_failed(tuple(windows)), endpoint_id=endpoint_id, tenant=None)
    assert row is not None
    return {hours: int(getattr(row, f"last_{hours}")) for hours in windows}


def _newest_of_endpoint(sql: Sql) -> str:
    return f"SELECT max(job_id) FROM {sql.delivered_webhooks} WHERE endpoint_id = :endpoint_id"


def _retrying(sql: Sql) -> str:
    return f"""
    SELECT count(*) AS n FROM {_owned(sql)} JOIN {sql.jobs} AS j ON j.id = d.job_id
    WHERE d.endpoint_id = :endpoint_id AND j.limit_key = :limit_key AND j.status = 'failed'"""


def newest_job_of(
    store: Store, connection: Connection, event_id: str, endpoint_id: str, tenant: str | None
) -> Row[Any] | None:
    """The newest job of one delivery of the tenant. For `tenant` here and below None means any, "" means no tenant."""
    return store.row(connection, _newest_job_of, event_id=event_id, endpoint_id=endpoint_id, tenant=tenant)


def jobs_of_event(store: Store, connection: Connection, event_id: str, tenant: str | None) -> Sequence[Row[Any]]:
    """Every delivery of an event of the tenant with its newest job."""
    return store.all(connection, _jobs_of_event, event_id=event_id, tenant=tenant)


def failed_jobs(
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
        connection, _failed_jobs, endpoint_id=endpoint_id, tenant=tenant, since=since, until=until, after=after,
        newest=newest, size=size,
    )  # fmt: skip


def newest_job_of_endpoint(store: Store, connection: Connection, endpoint_id: str) -> int:
    """The newest job of all deliveries to an endpoint; 0 if it has none."""
    return int(store.value(connection, _newest_of_endpoint, endpoint_id=endpoint_id) or 0)


def count_retrying(store: Store, connection: Connection, endpoint_id: str, limit_key: str, tenant: str | None) -> int:
    """How many of the endpoint's deliveries wait for their next try."""
    row = store.row(connection, _retrying, endpoint_id=endpoint_id, limit_key=limit_key, tenant=tenant)
    return int(row.n) if row is not None else 0
