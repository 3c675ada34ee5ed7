"""Deleting events that no delivery needs any more."""

from __future__ import annotations

from typing import NamedTuple

from effects.extend import Page, Sql, Store, as_json

PAGE = 1000


class Cursor(NamedTuple):
    """Where a walk by age continues."""

    created_at: str
    id: str


def prune_page(store: Store, cursor: Cursor | None, *, keep_seconds: float, dry_run: bool) -> Page:
    """One page of events older than `keep_seconds`, oldest first; those without a delivery go.

    One whose `webhook.fan_out` waits, live or as an open dead letter, stays: the rest of its deliveries is to come.
    """
    start = cursor or Cursor("", "")
    with store.read() as connection:
        page = store.all(
            connection, _next if cursor else _first, keep=keep_seconds, created_at=start.created_at, id=start.id
        )
        gone = [row.id for row in page if not row.needed]
        if gone:
            held = {row.event_id for row in store.all(connection, _held, ids=as_json(gone))}
            gone = [event_id for event_id in gone if event_id not in held]
    taken = len(gone)
    if gone and not dry_run:
        with store.single() as connection:
            taken = store.write(connection, _delete, ids=as_json(gone))
    return Page(taken, Cursor(page[-1].created_at, page[-1].id) if len(page) == PAGE else None)


def _needed(sql: Sql) -> str:
    return sql.exists(f"FROM {sql.delivered_webhooks} AS d WHERE d.event_id = e.id")


def _held(sql: Sql) -> str:
    """Once a page, and not in `_needed`: no index knows the payload. A requeue leaves the old row where it is."""
    event = "payload ->> 'event_id'"
    own_fan_out = f"job_type = 'webhook.fan_out' AND {event} {sql.any_of('ids')}"
    return f"""
    SELECT {event} AS event_id FROM {sql.jobs} WHERE {own_fan_out}
    UNION SELECT {event} FROM {sql.job_history} WHERE status = 'dead' AND {own_fan_out}"""


def _page(sql: Sql, behind: str) -> str:
    return f"""
    SELECT e.id, CAST(e.created_at AS text) AS created_at, {_needed(sql)} AS needed FROM {sql.webhook_events} AS e
    WHERE e.created_at <= {sql.after(f"-{sql.number('keep')}")} AND {behind} ORDER BY e.created_at, e.id LIMIT {PAGE}"""


def _first(sql: Sql) -> str:
    return _page(sql, "CAST(:created_at AS text) = CAST(:id AS text)")  # both are empty


def _next(sql: Sql) -> str:
    time = "timestamptz" if sql.postgresql else "INTEGER"
    return _page(sql, f"(e.created_at, e.id) > (CAST(:created_at AS {time}), :id)")


def _delete(sql: Sql) -> str:
    return f"DELETE FROM {sql.webhook_events} AS e WHERE e.id {sql.any_of('ids')} AND NOT {_needed(sql)}"
