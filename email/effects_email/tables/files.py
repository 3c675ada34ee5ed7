"""Files that were attached as bytes."""

from __future__ import annotations

from typing import Any

from sqlalchemy import Connection, Row

from effects.extend import Sql, Store


def insert(
    store: Store, connection: Connection, file_id: str, key: str, *, content: bytes | None, sealed: bytes | None
) -> None:
    """Write one; its message is written."""
    values = {"id": file_id, "key": key, "content": content, "sealed": sealed}
    connection.execute(store.tables["email_files"].insert(), values)


def _find(sql: Sql) -> str:
    return f"SELECT content, sealed FROM {sql.email_files} WHERE id = :id"


def _delete(sql: Sql) -> str:
    return f"DELETE FROM {sql.email_files} WHERE id = :id"


def delete(store: Store, connection: Connection, file_id: str) -> None:
    store.write(connection, _delete, id=file_id)


def find(store: Store, connection: Connection, file_id: str) -> Row[Any] | None:
    return store.row(connection, _find, id=file_id)
