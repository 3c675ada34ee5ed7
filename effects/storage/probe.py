"""Whether a storage can be used, found out by using it."""

from __future__ import annotations

import secrets

from effects.errors import StorageRefused
from effects.storage.base import Storage

FOLDER = "effects-probe/"  # a killed probe leaves its object here, until pruning finds it


def probe(storage: Storage) -> None:
    """Write, read, list and delete a small object of a name that nobody else has.

    Raises:
        StorageUnavailable, StorageRefused: what is wrong, with what to do.
    """
    name, said = f"{FOLDER}{secrets.token_hex(16)}", secrets.token_bytes(64)
    try:
        with storage.writer(name) as writer:
            writer.write(said)
            writer.finish()
        if b"".join(storage.read(name)) != said or [one.name for one in storage.list(name)] != [name]:
            raise StorageRefused(
                f"{storage.url} does not give back what was just written: use one that does",
                code="storage_inconsistent",
            )
    finally:
        storage.delete([name])
