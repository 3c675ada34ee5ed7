"""What providers said of messages."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
from sqlalchemy import Connection, Row

from effects.store.sql import Sql
from effects.store.store import Store, as_json

UNKNOWN_MAX = 100


class EventRow(msgspec.Struct, frozen=True, kw_only=True):
    """One event to write. `at`: seconds since 1970."""

    provider: str
    event_id: str
    kind: str
    code: str | None
    reference: str | None
    provider_id: str | None
    recipient: str | None
    at: float | None


_EVENT = {
    "provider": "text", "event_id": "text", "kind": "text", "code": "text", "reference": "text",
    "provider_id": "text", "recipient": "text", "at": "num",
}  # fmt: skip


def _insert(sql: Sql) -> str:
    named = ", ".join(name for name in _EVENT if name != "at")
    return f"""
    INSERT INTO {sql.email_events} ({named}, at, created_at)
    SELECT {named}, {sql.time("r.at")}, {sql.now} FROM {sql.rows("rows", _EVENT)} AS r WHERE true
    ON CONFLICT (provider, event_id) DO NOTHING"""


def insert(store: Store, connection: Connection, row: EventRow) -> bool:
    """Whether it is new. A repeat that comes meanwhile waits for this transaction."""
    return store.write(connection, _insert, rows=as_json([row])) == 1


def _references(sql: Sql) -> str:
    return f"""
    SELECT DISTINCT reference FROM {sql.email_events}
    WHERE reference {sql.any_of("references")} AND kind <> 'failed'"""


def referenced(store: Store, connection: Connection, references: Sequence[str]) -> set[str]:
    """Which of these messages an event speaks of, other than to say that they failed."""
    return {row.reference for row in store.all(connection, _references, references=as_json(references))}


def _of(sql: Sql) -> str:
    return f"""
    SELECT provider, kind, code, {sql.epoch("at")} AS at, {sql.epoch("created_at")} AS created_at
    FROM {sql.email_events} WHERE reference = :reference ORDER BY id LIMIT :size"""


def of(store: Store, connection: Connection, reference: str, size: int) -> Sequence[Row[Any]]:
    """What was said of one message, in the order in which we heard of it."""
    return store.all(connection, _of, reference=reference, size=size)


def _unknown(sql: Sql) -> str:
    return f"""
    SELECT message_id, job_id FROM {sql.sent_emails}
    WHERE recipient {sql.any_of("digests")} AND state = 'unknown' ORDER BY created_at DESC LIMIT {UNKNOWN_MAX}"""


def unknown_messages(store: Store, connection: Connection, digests: Sequence[str]) -> Sequence[Row[Any]]:
    """Message-ID and newest job of what may have reached this recipient; the newest 100."""
    return store.all(connection, _unknown, digests=as_json(digests))
