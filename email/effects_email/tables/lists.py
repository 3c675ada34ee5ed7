"""What people look up and change: lists of messages, attempts of one, versions of a template; all about one address.

Each shape of a list's filter has its own statement and index. What is kept about an address is found and blanked by its
digests; recipients of group messages beside the first, and events, are found by reading their table: that is asked
rarely.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import cache
from typing import Any

import msgspec
from sqlalchemy import Connection, Row

from effects.extend.sql import Sql, Statement, Store, and_each, as_json
from effects.extend.text import moment

SPAN = 10_000  # messages that a page searches by status, which no index serves
_COLUMNS = "key, job_id, message_id, state, outcome, template, transport, tries, reply_code"
TRIES_MAX = 100
VERSIONS_SPAN = 5_000  # messages that are looked at: no index knows templates


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


class EmailTry(msgspec.Struct, frozen=True):
    """One attempt to send. `transport` is None where it ended without a word of one, as when its worker was lost."""

    attempt: int
    transport: str | None
    outcome: str
    code: str | None
    ended: datetime


def read_tries(store: Store, connection: Connection, job_id: int) -> tuple[EmailTry, ...]:
    """Those of a message's job, the newest first, a hundred at most."""
    return tuple(
        EmailTry(row.attempt, _transport(row.detail), row.outcome, row.error_code, moment(row.ended))
        for row in store.all(connection, _tries, id=job_id)
    )


def _transport(detail: str | None) -> str | None:
    return msgspec.json.decode(detail).get("transport") if detail else None


def _tries(sql: Sql) -> str:
    return f"""
    SELECT attempt, outcome, error_code, {sql.json_text("detail")} AS detail, {sql.epoch("finished_at")} AS ended
    FROM {sql.job_attempts} WHERE job_id = :id ORDER BY lease_token DESC LIMIT {TRIES_MAX}"""


def read_versions(store: Store, connection: Connection, template: str) -> Sequence[Row[Any]]:
    """Version, locale, messages, first and last time; the newest version first, of the newest 5,000 messages."""
    return store.all(connection, _versions, template=template)


def _versions(sql: Sql) -> str:
    return f"""
    SELECT template_version AS version, locale, count(*) AS messages, min(created) AS first_at, max(created) AS last_at
    FROM (
        SELECT template, template_version, locale, {sql.epoch("e.created_at")} AS created
        FROM {sql.sent_emails} AS e ORDER BY e.created_at DESC, e.job_id DESC LIMIT {VERSIONS_SPAN}) AS newest
    WHERE template = :template GROUP BY template_version, locale ORDER BY last_at DESC"""


def _keys(sql: Sql) -> str:
    digests = sql.any_of("digests")
    return f"""
    SELECT key, created_at, job_id FROM {sql.sent_emails} WHERE recipient {digests}
    UNION
    SELECT key, created_at, job_id FROM {sql.sent_emails}
    WHERE key IN (SELECT key FROM {sql.email_recipients} WHERE recipient {digests})
    ORDER BY created_at, job_id"""


def keys(store: Store, connection: Connection, digests: Sequence[str]) -> list[str]:
    """The messages to an address, oldest first."""
    return [row.key for row in store.all(connection, _keys, digests=as_json(digests))]


def _places(sql: Sql) -> str:
    return f"""
    SELECT number, kind, outcome, code, own, NOT own AND recipient NOT LIKE '%-forgotten' AS others
    FROM (SELECT number, kind, outcome, code, recipient, recipient {sql.any_of("digests")} AS own
        FROM {sql.email_recipients} WHERE key = :key) AS places ORDER BY number"""


def places(store: Store, connection: Connection, key: str, digests: Sequence[str]) -> Sequence[Row[Any]]:
    """The recipients of a message to a group: `own` at this address, `others` at ones that are not forgotten. Empty for
    any other message.
    """
    return store.all(connection, _places, key=key, digests=as_json(digests))


def _lock(sql: Sql) -> str:
    live = sql.exists(f"FROM {sql.jobs} AS j WHERE j.id = l.job_id")
    return f"""
    SELECT l.key, l.content, l.sealed, {live} AS live FROM {sql.sent_emails} AS l WHERE l.key = :key
    {sql.lock(skip=False, of="l")}"""


def lock(store: Store, connection: Connection, key: str) -> Row[Any] | None:
    """Content of a message and whether it has a live job, until the end of the transaction."""
    return store.row(connection, _lock, key=key)


def _blank(sql: Sql) -> str:
    return f"""
    UPDATE {sql.sent_emails} SET content = NULL, sealed = NULL, reply = NULL, recipient = :gone WHERE key = :key"""


def _blank_places(sql: Sql) -> str:
    return f"UPDATE {sql.email_recipients} SET recipient = :gone WHERE key = :key"


def _delete_files(sql: Sql) -> str:
    return f"DELETE FROM {sql.email_files} WHERE key = :key"


def blank(store: Store, connection: Connection, key: str, *, gone: str) -> int:
    """Delete a message's words and files; its row stays, with its state, and no recipient.

    Returns:
        How many files were deleted.
    """
    store.write(connection, _blank, key=key, gone=gone)
    store.write(connection, _blank_places, key=key, gone=gone)
    return store.write(connection, _delete_files, key=key)


def _replace(sql: Sql) -> str:
    content = f"{sql.bound('content', 'bytes')}, sealed = {sql.bound('sealed', 'bytes')}"
    return f"UPDATE {sql.sent_emails} SET content = {content} WHERE key = :key"


def _unname_first(sql: Sql) -> str:
    return f"UPDATE {sql.sent_emails} SET recipient = :gone WHERE key = :key AND recipient {sql.any_of('digests')}"


def _unname_place(sql: Sql) -> str:
    return f"UPDATE {sql.email_recipients} SET recipient = :gone WHERE key = :key AND recipient {sql.any_of('digests')}"


def unname(
    store: Store,
    connection: Connection,
    key: str,
    digests: Sequence[str],
    *,
    gone: str,
    content: bytes | None,
    sealed: bytes | None,
) -> None:
    """Take an address out of a message to a group, whose content is replaced."""
    store.write(connection, _replace, key=key, content=content, sealed=sealed)
    for statement in (_unname_first, _unname_place):
        store.write(connection, statement, key=key, gone=gone, digests=as_json(digests))


def _blank_events(sql: Sql) -> str:
    """Not to NULL: that would be an event about no one by name, which speaks for every recipient of its message."""
    return f"UPDATE {sql.email_events} SET recipient = :gone WHERE recipient {sql.any_of('digests')}"


def _blank_suppressions(sql: Sql) -> str:
    return f"""
    UPDATE {sql.email_suppressions} SET address = NULL, sealed = NULL WHERE digest {sql.any_of("digests")}"""


def blank_address(store: Store, connection: Connection, digests: Sequence[str], *, gone: str) -> tuple[int, int]:
    """Take the address out of events and suppressions, which go on.

    Returns:
        How many events and suppressions had it.
    """
    events = store.write(connection, _blank_events, digests=as_json(digests), gone=gone)
    return events, store.write(connection, _blank_suppressions, digests=as_json(digests))


def _events(sql: Sql) -> str:
    return f"""
    SELECT provider, kind, code, reference, {sql.epoch("at")} AS at, {sql.epoch("created_at")} AS created_at
    FROM {sql.email_events} WHERE recipient {sql.any_of("digests")} ORDER BY id"""


def events(store: Store, connection: Connection, digests: Sequence[str]) -> Sequence[Row[Any]]:
    """The providers' events that name an address."""
    return store.all(connection, _events, digests=as_json(digests))


def _soft_failures(sql: Sql) -> str:
    return f"""
    SELECT day, sum(failures) AS failures FROM {sql.email_soft_failures}
    WHERE digest {sql.any_of("digests")} GROUP BY day ORDER BY day"""


def failures(store: Store, connection: Connection, digests: Sequence[str]) -> Sequence[Row[Any]]:
    """Soft failures of an address by day since 1970."""
    return store.all(connection, _soft_failures, digests=as_json(digests))
