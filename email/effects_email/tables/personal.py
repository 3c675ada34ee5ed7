"""What is kept about one address, in all tables of this package; found and blanked by its digests.

Recipients of group messages beside the first, and events, are found by reading their table: that is asked rarely.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqlalchemy import Connection, Row

from effects.extend import Sql, Store, as_json


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
