"""Messages, newest first, a page at a time. Each shape of filter has its own statement and index."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

from sqlalchemy import Connection, Row

from effects.extend import Sql, Statement, Store, and_each

SPAN = 10_000  # messages that a page searches by status, which no index serves


def messages(
    store: Store, connection: Connection, filters: Mapping[str, object], *, limit: int
) -> tuple[Sequence[Row[Any]], str | None]:
    """A page of messages, and the key of the last one that was searched, where older ones remain to be.

    Args:
        filters: any of `key`, `state`, `before` (the key of a message) and the bounds of a `Window`.
    """
    rows = store.all(connection, _page(frozenset(filters)), limit=limit, **filters)
    if not _is_windowed(filters) or len(rows) == limit:
        return rows, None
    chosen = {name: value for name, value in filters.items() if name != "state"}
    last: str | None = store.value(connection, _last_searched(frozenset(chosen)), **chosen)
    return rows, last


def messages_to(
    store: Store, connection: Connection, digests: Sequence[str], filters: Mapping[str, object], *, limit: int
) -> Sequence[Row[Any]]:
    """A page of the messages to any of these recipients: asked one by one, each by its index."""
    build = _page(frozenset({*filters, "digest"}))
    rows = [row for digest in digests for row in store.all(connection, build, limit=limit, digest=digest, **filters)]
    return sorted(rows, key=lambda row: (row.created_at, row.job_id), reverse=True)[:limit]


def exists(store: Store, connection: Connection, key: str) -> bool:
    """Whether there is a message of this key."""
    return store.row(connection, _exists, key=key) is not None


def _is_windowed(filters: Mapping[str, object] | frozenset[str]) -> bool:
    """The messages of a recipient or a key are few."""
    return "state" in filters and "digest" not in filters and "key" not in filters


# -- the statements --------------------------------------------------------------------------------------

_COLUMNS = "key, job_id, message_id, state, outcome, template, transport, tries, reply_code"


@cache
def _page(names: frozenset[str]) -> Statement:
    def build(sql: Sql) -> str:
        chosen = f"SELECT {_COLUMNS}, created_at {_chosen(sql, names)}"
        if _is_windowed(names):
            chosen = f"SELECT * FROM ({chosen} {_newest_first('e')} LIMIT {SPAN}) AS searched WHERE state = :state"
        elif "state" in names:
            chosen += " AND state = :state"
        order = _newest_first("searched" if _is_windowed(names) else "e")
        return f"""
        SELECT {_COLUMNS}, {sql.epoch("created_at")} AS created_at
        FROM ({chosen} {order} LIMIT :limit) AS page {_newest_first("page")}"""

    return build


@cache
def _last_searched(names: frozenset[str]) -> Statement:
    def build(sql: Sql) -> str:
        return f"SELECT key {_chosen(sql, names)} {_newest_first('e')} LIMIT 1 OFFSET {SPAN - 1}"

    return build


def _chosen(sql: Sql, names: frozenset[str]) -> str:
    """FROM and WHERE of what an index finds: all filters but the status."""
    cursor = f"SELECT b.created_at, b.job_id FROM {sql.sent_emails} AS b WHERE b.key = :before"
    by_filter = {
        "digest": "e.recipient = :digest",
        "key": "e.key = :key",
        "before": f"(e.created_at, e.job_id) < ({cursor})",
        **sql.bounds("e.created_at"),
    }
    return f"FROM {sql.sent_emails} AS e WHERE true{and_each(by_filter, names)}"


def _newest_first(row: str) -> str:
    return f"ORDER BY {row}.created_at DESC, {row}.job_id DESC"


def _exists(sql: Sql) -> str:
    return f"SELECT 1 FROM {sql.sent_emails} WHERE key = :key"
