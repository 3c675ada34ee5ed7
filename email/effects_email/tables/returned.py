"""Messages that a report speaks of, with every recipient's digest."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqlalchemy import Connection, Row

from effects.extend import Sql, Store, as_json

_COLUMNS = "key, job_id, message_id, recipient, content, sealed"


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
