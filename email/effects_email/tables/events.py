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


def _lock(sql: Sql) -> str:
    return f"LOCK TABLE {sql.email_events} IN SHARE MODE"


def await_writers(store: Store, connection: Connection) -> None:
    """Wait for events that are being written; others wait for this transaction. SQLite's writer is alone anyway.

    So an event is seen by whoever records that a message may have been sent, or is taken in after that is committed.
    """
    if store.is_postgresql:
        store.write(connection, _lock)


def _evidence(sql: Sql) -> str:
    return f"""
    SELECT reference, provider, kind, recipient FROM {sql.email_events}
    WHERE reference {sql.any_of("references")} AND kind <> 'failed' ORDER BY id"""


def evidence(store: Store, connection: Connection, references: Sequence[str]) -> Sequence[Row[Any]]:
    """The events of these messages other than failures, in order of arrival."""
    return store.all(connection, _evidence, references=as_json(references))


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


def _unknown_groups(sql: Sql) -> str:
    """From the unresolved jobs on, which are few: recipients of groups have no index."""
    addressed = f"FROM {sql.email_recipients} AS r WHERE r.key = s.key AND r.recipient {sql.any_of('digests')}"
    return f"""
    SELECT s.message_id, s.job_id FROM {sql.unresolved} AS u JOIN {sql.sent_emails} AS s ON s.job_id = u.job_id
    WHERE u.unknown AND s.state = 'unknown' AND {sql.exists(addressed)}
    ORDER BY s.job_id DESC LIMIT {UNKNOWN_MAX}"""


def unknown_messages(store: Store, connection: Connection, digests: Sequence[str]) -> Sequence[Row[Any]]:
    """Message-ID and newest job of what may have reached this recipient: the newest 100 to whom it names first, and of
    groups the newest 100 that wait for a person.
    """
    statements = (_unknown, _unknown_groups)
    return [row for statement in statements for row in store.all(connection, statement, digests=as_json(digests))]
