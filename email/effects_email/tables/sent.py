"""Messages and their files: written at the call, loaded by the worker, looked up by people."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from functools import lru_cache
from typing import Any

import msgspec
from sqlalchemy import Connection, Row, Table
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.sql.dml import ReturningInsert

from effects.extend.actions import newest_job
from effects.extend.sql import Sql, Store, as_json
from effects.extend.text import whole_number


class SentRow(msgspec.Struct, frozen=True, kw_only=True):
    """One message to write."""

    key: str
    event_id: str | None = None
    recipient: str
    template: str
    template_version: str
    locale: str | None
    category: str | None
    transport: str
    message_id: str
    date: datetime
    content: bytes | None
    sealed: bytes | None
    digest: str
    outcome: str | None = None
    despite_suppression: str | None = None


class RecipientRow(msgspec.Struct, frozen=True, kw_only=True):
    """One recipient of a group message."""

    key: str
    number: int
    kind: str
    recipient: str
    outcome: str | None = None


# -- the call --------------------------------------------------------------------------------------------------------


def insert(store: Store, connection: Connection, rows: Iterable[tuple[int, SentRow]]) -> set[int]:
    """Insert messages, each with its job's id, whose key is free; the jobs of those. Contents are bound as bytes to
    skip text encoding.
    """
    statement = _insert(store.tables["sent_emails"], is_postgresql=store.is_postgresql)
    values = [{"job_id": job_id, **msgspec.structs.asdict(row)} for job_id, row in rows]
    return set(connection.execute(statement, values[0] if len(values) == 1 else values).scalars())


@lru_cache(8)
def _insert(table: Table, *, is_postgresql: bool) -> ReturningInsert[Any]:
    dialect = postgresql if is_postgresql else sqlite
    statement: ReturningInsert[Any] = dialect.insert(table).on_conflict_do_nothing().returning(table.c.job_id)
    return statement


def _insert_recipients(sql: Sql) -> str:
    return f"""
    INSERT INTO {sql.email_recipients} (key, number, kind, recipient, outcome, updated_at)
    SELECT r.key, r.number, r.kind, r.recipient, r.outcome, {sql.now} FROM {sql.rows("rows", RecipientRow)} AS r"""


def insert_recipients(store: Store, connection: Connection, rows: Sequence[RecipientRow]) -> None:
    if rows:
        store.write(connection, _insert_recipients, rows=as_json(rows))


def _holders(sql: Sql) -> str:
    return f"""
    SELECT key, digest, job_id, message_id, outcome FROM {sql.sent_emails} WHERE key {sql.any_of("keys")}"""


def holders(store: Store, connection: Connection, keys: Sequence[str]) -> Mapping[str, Row[Any]]:
    """The messages that hold these keys."""
    return {row.key: row for row in store.all(connection, _holders, keys=as_json(keys))}


def _has_keyed_digests(sql: Sql) -> str:
    return f"SELECT EXISTS (SELECT 1 FROM {sql.sent_emails} WHERE recipient >= 'hmac' AND recipient < 'hmad')"


def has_keyed_digests(store: Store, connection: Connection) -> bool:
    """Whether a message was written while there was a `digest` key."""
    return bool(store.value(connection, _has_keyed_digests))


def _has_none(sql: Sql) -> str:
    return f"""NOT EXISTS (SELECT 1 FROM {sql.sent_emails} WHERE key {sql.any_of("keys")})
        AND NOT EXISTS (SELECT 1 FROM {sql.email_suppressions} WHERE digest {sql.any_of("digests")})"""


def _has_none_without_key(sql: Sql) -> str:
    return f"""NOT EXISTS (SELECT 1 FROM {sql.sent_emails} WHERE recipient >= 'hmac' AND recipient < 'hmad')
        AND NOT EXISTS (SELECT 1 FROM {sql.email_suppressions} WHERE digest >= 'hmac' AND digest < 'hmad')
        AND NOT EXISTS (SELECT 1 FROM {sql.email_suppressions} WHERE digest {sql.any_of("digests")})"""


def _is_ordinary(sql: Sql) -> str:
    return f"SELECT {_has_none(sql)}"


def _is_ordinary_without_key(sql: Sql) -> str:
    return f"SELECT {_has_none_without_key(sql)}"


def insert_ordinary(sql: Sql) -> str:
    """Write the relation `i`, the fields of `SentRow` and the job of one message, if that is ordinary (`is_ordinary`)
    and its key is free.
    """
    return _insert_if(sql, _has_none(sql))


def insert_ordinary_without_key(sql: Sql) -> str:
    """As `insert_ordinary`, while there is no `digest` key."""
    return _insert_if(sql, _has_none_without_key(sql))


def _insert_if(sql: Sql, condition: str) -> str:
    names = ", ".join(["job_id", *SentRow.__struct_fields__])
    return f"INSERT INTO {sql.sent_emails} ({names}) SELECT {names} FROM i WHERE {condition} ON CONFLICT DO NOTHING"


def is_ordinary(store: Store, connection: Connection, looked_up: Mapping[str, str], *, keyed: bool) -> bool:
    """Whether none of these keys is taken, none of these addresses was ever suppressed, and nothing that is stored
    needs a `digest` key that is missing. One statement.

    Args:
        looked_up: `keys` and `digests`, each a JSON array of texts.
        keyed: there is a `digest` key.
    """
    return bool(store.value(connection, _is_ordinary if keyed else _is_ordinary_without_key, **looked_up))


def _domains(sql: Sql) -> str:
    return f"SELECT limit_key FROM {sql.limits} WHERE parent_key {sql.any_of('parents')}"


def limited_keys(store: Store, connection: Connection, parents: Sequence[str]) -> set[str]:
    """The limit keys that an operator put under these."""
    return {row.limit_key for row in store.all(connection, _domains, parents=as_json(parents))}


# -- sending ---------------------------------------------------------------------------------------------------------


def _load(sql: Sql) -> str:
    return f"""
    SELECT key, job_id, category, transport, state, outcome, content, sealed, bytes_sha256, despite_suppression,
        held_in, used_transport, {sql.seconds("first_released_at")} AS released_seconds
    FROM {sql.sent_emails} WHERE job_id {sql.any_of("ids", "int")}"""


def load(store: Store, connection: Connection, job_ids: Sequence[int]) -> Sequence[Row[Any]]:
    """What these jobs are to send."""
    return store.all(connection, _load, ids=as_json(job_ids))


def _recipients(sql: Sql) -> str:
    return f"""
    SELECT key, number, kind, recipient, outcome, code FROM {sql.email_recipients} WHERE key {sql.any_of("keys")}
    ORDER BY key, number"""


def recipients(store: Store, connection: Connection, keys: Sequence[str]) -> Mapping[str, list[Row[Any]]]:
    """The recipients of those of these messages that are to a group."""
    by_key: dict[str, list[Row[Any]]] = defaultdict(list)
    for row in store.all(connection, _recipients, keys=as_json(keys)):
        by_key[row.key].append(row)
    return by_key


def _unknown_of_jobs(sql: Sql) -> str:
    return f"""
    SELECT key, job_id, message_id FROM {sql.sent_emails}
    WHERE job_id {sql.any_of("ids", "int")} AND state = 'unknown' ORDER BY job_id"""


def unknown_of_jobs(store: Store, connection: Connection, job_ids: Sequence[int]) -> Sequence[Row[Any]]:
    """What these jobs may have sent."""
    return store.all(connection, _unknown_of_jobs, ids=as_json(job_ids))


def is_forgotten(digest: str) -> bool:
    """Whether this stands where a recipient's digest was; see `personal.forget`."""
    return digest.endswith("-forgotten")


# -- people ----------------------------------------------------------------------------------------------------------


def _shown(sql: Sql) -> str:
    return f"""
    SELECT key, job_id, recipient, template, template_version, locale, category, transport, message_id, state, outcome,
        {sql.epoch("date")} AS date, content, sealed, bytes_sha256, tries, reply_code, reply, provider_id,
        used_transport, {sql.epoch("created_at")} AS created_at, {sql.epoch("updated_at")} AS updated_at
    FROM {sql.sent_emails}"""


def _by_key(sql: Sql) -> str:
    return f"{_shown(sql)} WHERE key = :key"


def _by_message_id(sql: Sql) -> str:
    return f"{_shown(sql)} WHERE message_id = :key"


def _by_job(sql: Sql) -> str:
    return f"{_shown(sql)} WHERE job_id = :id"


def _oldest(sql: Sql) -> str:
    return f"{_shown(sql)} ORDER BY job_id"


def oldest(store: Store, connection: Connection) -> Sequence[Row[Any]]:
    """All of them, for tests."""
    return store.all(connection, _oldest)


def find(store: Store, connection: Connection, name: str) -> Row[Any] | None:
    """The message of this key, Message-ID or job."""
    row = store.row(connection, _by_key, key=name) or store.row(connection, _by_message_id, key=name.strip("<>"))
    if row is None and (job_id := whole_number(name)) is not None:
        row = find_by_job(store, connection, job_id)
    return row


def find_by_job(store: Store, connection: Connection, job_id: int) -> Row[Any] | None:
    """The message of this job, which may have been requeued since: a number may be the key of another one, too."""
    return store.row(connection, _by_job, id=newest_job(store, connection, job_id))


def _reopen(sql: Sql) -> str:
    return f"UPDATE {sql.email_recipients} SET outcome = NULL, code = NULL, updated_at = {sql.now} WHERE key = :key"


def reopen_recipients(store: Store, connection: Connection, key: str) -> None:
    """Every recipient of a group message is to be served once more."""
    store.write(connection, _reopen, key=key)


def _replace(sql: Sql) -> str:
    """Nothing of an earlier try is left to compare with."""
    content = f"{sql.bound('content', 'bytes')}, sealed = {sql.bound('sealed', 'bytes')}"
    date = sql.time(sql.number("date"))
    return f"""
    UPDATE {sql.sent_emails} SET content = {content}, template_version = :version, locale = :locale,
        message_id = :message_id, date = {date}, bytes_sha256 = NULL, first_released_at = NULL,
        used_transport = NULL, updated_at = {sql.now}
    WHERE key = :key"""


def replace(
    store: Store,
    connection: Connection,
    key: str,
    *,
    content: bytes | None,
    sealed: bytes | None,
    version: str,
    locale: str | None,
    message_id: str,
    date: float,
) -> None:
    """Put a newer rendering in the place of the old one."""
    store.write(
        connection, _replace, key=key, content=content, sealed=sealed, version=version, locale=locale,
        message_id=message_id, date=date,
    )  # fmt: skip


def insert_file(
    store: Store, connection: Connection, file_id: str, key: str, *, content: bytes | None, sealed: bytes | None
) -> None:
    """Write one; its message is written."""
    values = {"id": file_id, "key": key, "content": content, "sealed": sealed}
    connection.execute(store.tables["email_files"].insert(), values)


def _find_file(sql: Sql) -> str:
    return f"SELECT content, sealed FROM {sql.email_files} WHERE id = :id"


def _delete_file(sql: Sql) -> str:
    return f"DELETE FROM {sql.email_files} WHERE id = :id"


def delete_file(store: Store, connection: Connection, file_id: str) -> None:
    store.write(connection, _delete_file, id=file_id)


def find_file(store: Store, connection: Connection, file_id: str) -> Row[Any] | None:
    return store.row(connection, _find_file, id=file_id)
