"""Whether a storage can be used, found out by using it."""

from __future__ import annotations

import secrets

from effects.storage.base import Storage
from effects.storage.errors import StorageRefused

FOLDER = "effects-probe/"  # a killed probe leaves its object here, until pruning finds it


def probe(storage: Storage) -> None:
    """Write, read, list and delete a small object with a unique name.

    Raises:
        StorageUnavailable, StorageRefused: what is wrong, with what to do.
    """
    name, said = f"{FOLDER}{secrets.token_hex(16)}", secrets.token_bytes(64)
    try:
        with storage.writer(name) as writer:
            writer.write(said)
            writer.finish()
        if b"".join(storage.read(name)) != said or [entry.name for entry in storage.list(name)] != [name]:
            raise StorageRefused(
                f"{storage.url} does not give back what was just written: use one that does",
                code="storage_inconsistent",
            )
    finally:
        storage.delete([name])
