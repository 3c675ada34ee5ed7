"""Providers' events about messages, and the reports that come back: which are being read, and of which message."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import msgspec
from sqlalchemy import Connection, Row

from effects.extend.sql import Sql, Store, as_json, columns_of
from effects.extend.text import moment

UNKNOWN_MAX = 100
READINGS_MAX = 2  # of a message; then it is set aside, and read as often if a person puts it back
_COLUMNS = "key, job_id, message_id, recipient, content, sealed"


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
    ON CONFLICT (provider, provider_event_id) DO NOTHING RETURNING provider_event_id"""


def insert(store: Store, connection: Connection, rows: Sequence[ProviderEventRow]) -> set[str]:
    """The ids of those that are new, all of one provider. A repeat that comes meanwhile waits for this transaction."""
    if not rows:
        return set()
    return {row.provider_event_id for row in store.all(connection, _insert, rows=as_json(rows))}


def _remember(sql: Sql) -> str:
    return f"""
    INSERT INTO {sql.email_signed_requests} (token, body, created_at) VALUES (:token, :body, {sql.now})
    ON CONFLICT (token) DO NOTHING"""


def _remembered(sql: Sql) -> str:
    return f"SELECT body FROM {sql.email_signed_requests} WHERE token = :token"


def remember_request(store: Store, connection: Connection, *, token: str, body: str) -> bool:
    """Bind a token to the body that came with it; False if it is bound to another. Of two at a time one waits."""
    if store.write(connection, _remember, token=token, body=body) == 1:
        return True
    return bool(store.value(connection, _remembered, token=token) == body)


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
    ORDER BY created_at DESC, job_id DESC LIMIT :size"""


def _unknown_groups(sql: Sql) -> str:
    """From the unresolved jobs on, which are few: recipients of groups have no index."""
    addressed = f"FROM {sql.email_recipients} AS r WHERE r.key = s.key AND r.recipient {sql.any_of('digests')}"
    return f"""
    SELECT s.message_id, s.job_id FROM {sql.unresolved} AS u JOIN {sql.sent_emails} AS s ON s.job_id = u.job_id
    WHERE u.unknown AND s.state = 'unknown' AND {sql.exists(addressed)}
    ORDER BY s.job_id DESC LIMIT :size"""


def unknown_messages(store: Store, connection: Connection, digests: Sequence[str]) -> Sequence[Row[Any]]:
    """Message-ID and newest job of what may have reached these recipients: the newest that name them first, and of
    groups the newest that wait for a person; of either 100 for each recipient on average.
    """
    values = {"digests": as_json(digests), "size": UNKNOWN_MAX * len(digests)}
    statements = (_unknown, _unknown_groups)
    return [row for statement in statements for row in store.all(connection, statement, **values)]


def _by_job(sql: Sql) -> str:
    return f"SELECT {_COLUMNS} FROM {sql.sent_emails} WHERE job_id {sql.any_of('ids', 'int')} ORDER BY job_id"


def by_job(store: Store, connection: Connection, job_ids: Sequence[int]) -> Sequence[Row[Any]]:
    """The messages of these jobs, where they have no newer one."""
    return store.all(connection, _by_job, ids=as_json(job_ids))


def _by_message_id(sql: Sql) -> str:
    return f"SELECT {_COLUMNS} FROM {sql.sent_emails} WHERE message_id {sql.any_of('ids')}"


def by_message_id(store: Store, connection: Connection, message_ids: Sequence[str]) -> Sequence[Row[Any]]:
    """The messages with these Message-IDs."""
    return store.all(connection, _by_message_id, ids=as_json(message_ids))


def _recipients(sql: Sql) -> str:
    return f"SELECT number, recipient FROM {sql.email_recipients} WHERE key = :key ORDER BY number"


def recipients(store: Store, connection: Connection, key: str) -> dict[int, str]:
    """Number → digest, of the recipients of a message to a group; none of another."""
    return {row.number: row.recipient for row in store.all(connection, _recipients, key=key)}


def _begin(sql: Sql) -> str:
    table = sql.email_reports_read
    return f"""
    INSERT INTO {table} (digest) VALUES (:digest)
    ON CONFLICT (digest) DO UPDATE SET attempts = {table}.attempts + 1, updated_at = {sql.now} RETURNING attempts"""


def begin_reading(store: Store, connection: Connection, digest: str) -> int:
    """Note that a message is going to be read; how many attempts there were with this one."""
    row = store.row(connection, _begin, digest=digest)
    assert row is not None
    return int(row.attempts)


def _end(sql: Sql) -> str:
    return f"DELETE FROM {sql.email_reports_read} WHERE digest = :digest"


def end_reading(store: Store, connection: Connection, digest: str) -> None:
    """It was read."""
    store.write(connection, _end, digest=digest)


def _unopened(sql: Sql) -> str:
    table = sql.email_reports_read
    return f"""
    INSERT INTO {table} (digest, reason) VALUES (:mailbox, :reason) ON CONFLICT (digest) DO UPDATE
    SET attempts = {table}.attempts + 1, reason = excluded.reason, updated_at = {sql.now}"""


def note_unopened(store: Store, connection: Connection, mailbox: str, reason: str) -> None:
    """Note that a mailbox with bounces cannot be opened; `end_reading` ends it."""
    store.write(connection, _unopened, mailbox=mailbox, reason=reason)


def _left(sql: Sql) -> str:
    return f"""
    SELECT digest, attempts, reason, {sql.epoch("updated_at")} AS updated_at FROM {sql.email_reports_read}
    WHERE reason IS NOT NULL OR attempts > {READINGS_MAX} ORDER BY digest"""


class UnreadReports(NamedTuple):
    """How many messages are not read again; mailboxes that cannot be opened, by name, why, and when last."""

    set_aside: int
    mailboxes: Mapping[str, tuple[str, dt.datetime]]


def read_unread(store: Store, connection: Connection) -> UnreadReports:
    """What bounces could not be read."""
    rows = store.all(connection, _left)
    mailboxes = {row.digest: (row.reason, moment(row.updated_at)) for row in rows if row.reason is not None}
    return UnreadReports(len(rows) - len(mailboxes), mailboxes)
