"""Providers' events about messages."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
from sqlalchemy import Connection, Row

from effects.extend import Sql, Store, as_json, columns_of

UNKNOWN_MAX = 100


class ProviderEventRow(msgspec.Struct, frozen=True, kw_only=True):
    """One event to write. `at`: seconds since 1970."""

    provider: str
    provider_event_id: str
    kind: str
    code: str | None
    reference: str | None
    provider_id: str | None
    recipient: str | None
    at: float | None


def _insert(sql: Sql) -> str:
    named = ", ".join(name for name in columns_of(ProviderEventRow) if name != "at")
    return f"""
    INSERT INTO {sql.email_events} ({named}, at, created_at)
    SELECT {named}, {sql.time("r.at")}, {sql.now} FROM {sql.rows("rows", ProviderEventRow)} AS r WHERE true
    ON CONFLICT (provider, provider_event_id) DO NOTHING"""


def insert(store: Store, connection: Connection, row: ProviderEventRow) -> bool:
    """Whether it is new. A repeat that comes meanwhile waits for this transaction."""
    return store.write(connection, _insert, rows=as_json([row])) == 1


def _references(sql: Sql) -> str:
    return f"""
    SELECT DISTINCT reference FROM {sql.email_events}
    WHERE reference {sql.any_of("references")} AND kind <> 'failed'"""


def referenced(store: Store, connection: Connection, references: Sequence[str]) -> set[str]:
    """Which of these messages have an event other than a failure."""
    return {row.reference for row in store.all(connection, _references, references=as_json(references))}


def _of(sql: Sql) -> str:
    return f"""
    SELECT provider, kind, code, {sql.epoch("at")} AS at, {sql.epoch("created_at")} AS created_at
    FROM {sql.email_events} WHERE reference = :reference ORDER BY id LIMIT :size"""


def of(store: Store, connection: Connection, reference: str, size: int) -> Sequence[Row[Any]]:
    """The events of one message, in order of arrival."""
    return store.all(connection, _of, reference=reference, size=size)


def _kinds(sql: Sql) -> str:
    return f"SELECT DISTINCT reference, kind FROM {sql.email_events} WHERE reference {sql.any_of('references')}"


def kinds(store: Store, connection: Connection, references: Sequence[str]) -> Sequence[Row[Any]]:
    """Which kinds of events each of these messages has."""
    return store.all(connection, _kinds, references=as_json(references))


def _unknown(sql: Sql) -> str:
    return f"""
    SELECT message_id, job_id FROM {sql.sent_emails}
    WHERE recipient {sql.any_of("digests")} AND state = 'unknown'
    ORDER BY created_at DESC, job_id DESC LIMIT {UNKNOWN_MAX}"""


def unknown_messages(store: Store, connection: Connection, digests: Sequence[str]) -> Sequence[Row[Any]]:
    """Message-ID and newest job of what may have reached this recipient; the newest 100."""
    return store.all(connection, _unknown, digests=as_json(digests))
