"""Files that were attached as bytes: kept with their message, sealed where there is a key, until it is forgotten."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from typing import Any

from sqlalchemy import Connection, Row

from effects import Effects
from effects.extend import SealedColumn
from effects_email.errors import AttachmentMissing
from effects_email.tables import files as table


def write(app: Effects, connection: Connection, key: str, files: Mapping[str, bytes]) -> None:
    """Write the files of a message.

    Args:
        key: of the message, which is written.
        files: by their sha256.
    """
    for sha256, data in files.items():
        file_id = _id(key, sha256)
        sealed = app.keys.seal(data, **_context(file_id)) if app.keys.ids else None
        table.insert(app.store, connection, file_id, key, content=None if sealed else data, sealed=sealed)


def read(app: Effects, key: str, sha256: str) -> bytes:
    """A file of a message.

    Raises:
        AttachmentMissing: it is not there, or its key is not at hand.
    """
    with app.store.read() as connection:
        return _read(app, connection, _id(key, sha256))


def replace(app: Effects, connection: Connection, key: str, sha256: str, change: Callable[[bytes], bytes]) -> bytes:
    """Change a file of a message, which has another hash then.

    Returns:
        Its bytes.

    Raises:
        AttachmentMissing: as `read`.
    """
    changed = change(_read(app, connection, _id(key, sha256)))
    table.delete(app.store, connection, _id(key, sha256))
    write(app, connection, key, {hashlib.sha256(changed).hexdigest(): changed})
    return changed


def _read(app: Effects, connection: Connection, file_id: str) -> bytes:
    row = table.find(app.store, connection, file_id)
    if row is None:
        raise AttachmentMissing("an attachment is no longer stored", code="attachment_missing")
    return bytes(row.content) if row.sealed is None else app.keys.open(bytes(row.sealed), **_context(file_id))


def sealed_columns() -> list[SealedColumn]:
    """What `effects keys` counts and rotates."""
    return [SealedColumn(table="email_files", column="sealed", id_column="id", columns=(), context=_context_of)]


def _id(key: str, sha256: str) -> str:
    return f"{sha256}:{key}"


def _context_of(row: Row[Any]) -> dict[str, str]:
    return _context(row.id)


def _context(file_id: str) -> dict[str, str]:
    return {"table": "email_files", "row": file_id, "field": "content"}
