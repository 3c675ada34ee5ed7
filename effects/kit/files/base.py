"""What every storage does, its errors, and whether one can be used, found out by using it."""

from __future__ import annotations

import errno
import secrets
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol

import msgspec

from effects.errors import DeliveryError
from effects.model.outcome import Refused, Retry

_PERMISSION = "permission denied: let this user read and write the folder"
# An operator must act; anything else (EIO, ESTALE, a mount that is gone) may pass.
_REFUSALS = {
    errno.ENOSPC: ("storage_full", "no space is left: make room"),
    errno.EDQUOT: ("storage_full", "the quota is used up: raise it or make room"),
    errno.EFBIG: ("storage_full", "a file may not become so large here: raise the limit (ulimit -f)"),
    errno.EACCES: ("storage_permission", _PERMISSION),
    errno.EPERM: ("storage_permission", _PERMISSION),
    errno.EROFS: ("storage_permission", "the file system is read-only"),
    errno.ENOTDIR: ("storage_name", "a file is where a folder should be"),
    errno.EEXIST: ("storage_name", "a file is where a folder should be"),
    errno.EISDIR: ("storage_name", "a folder is where a file should be"),
    errno.ENAMETOOLONG: ("storage_name", "the path is too long for this file system"),
}


@dataclass(eq=False)
class StorageUnavailable(Retry):
    """The storage of files cannot be reached now."""

    code: str = "storage_unavailable"


@dataclass(eq=False)
class StorageRefused(Refused):
    """The storage will not take or give this file: permission, space, or no such bucket."""

    code: str = "storage_refused"


@dataclass(eq=False)
class StorageFull(StorageRefused):
    """The storage has no room for this file now. A handler that can wait may answer `Snooze` instead.

    Args:
        cure: what makes room.
    """

    code: str = "storage_full"
    cure: str = "no space is left: make room"


@dataclass(eq=False)
class ObjectMissing(Refused):
    """The storage holds no file of this name."""

    code: str = "storage_missing"


@contextmanager
def named_errors(name: str) -> Iterator[None]:
    """Errors of the operating system inside the block, as ours, about the object or folder `name`."""
    try:
        yield
    except FileNotFoundError as error:
        raise ObjectMissing(f"the storage holds no file {name!r}", code="storage_missing") from error
    except OSError as error:
        raise fate(error, name) from error


def fate(error: OSError, name: str) -> DeliveryError:
    """Return `StorageRefused` if an operator must act, else `StorageUnavailable`."""
    if error.errno in _REFUSALS:
        code, cure = _REFUSALS[error.errno]
        text = f"{name!r} cannot be kept or read: {cure}"
        return StorageFull(text, cure=cure) if code == "storage_full" else StorageRefused(text, code=code)
    symbol = errno.errorcode.get(error.errno or 0, "an error without a number")
    return StorageUnavailable(f"the storage failed on {name!r} with {symbol}", code="storage_unavailable")


PIECE_BYTES = 1024 * 1024
FOLDER = "effects-probe/"  # a killed probe leaves its object here, until pruning finds it


class Stored(msgspec.Struct, frozen=True):
    """A complete stored object; durable unless its writer was opened with `durable=False`.

    `boot`: the `boot_id` of the machine that holds it in memory until the disk has it: a power cut of that machine may
    destroy it. None where it is durable, or where that is not known.
    """

    name: str
    size_bytes: int
    sha256: str
    boot: str | None = None


class StoredObject(msgspec.Struct, frozen=True):
    """An object as a listing shows it."""

    name: str
    size_bytes: int
    modified_at: datetime


class Writer(Protocol):
    """Writer of one object, which appears under its name at `finish` and not before."""

    def write(self, data: bytes | memoryview) -> None:
        """Append. The caller may change the memory afterwards."""
        ...

    def append(self, name: str) -> int:
        """Append another object of the same storage as it is; how many bytes it has. Quicker than reading it.

        Raises:
            ObjectMissing: no object has this name.
        """
        ...

    def finish(self) -> Stored:
        """Make it durable if it is to be, and visible under its name in one step; replaces what had the name."""
        ...


class Storage(Protocol):
    """Objects by name (`reports/…/part-0001.csv`), written once, in one piece as others see it.

    What goes wrong raises `StorageUnavailable` (try again later) or `StorageRefused` (permission, no space, no bucket).
    """

    url: str  # without credentials

    def writer(self, name: str, *, filename: str | None = None, durable: bool = True) -> AbstractContextManager[Writer]:
        """Leaving the block without `finish` deletes what was written.

        Args:
            filename: what a browser saves it as that follows a `link`.
            durable: False if a power cut may destroy the object, or bytes of it, because its reader checks its
                SHA-256 and can have it produced again. Saves syncing files that are soon deleted.
        """
        ...

    def read(self, name: str, start: int = 0, stop: int | None = None) -> Iterator[bytes]:
        """The bytes from `start` to before `stop`, in pieces of at most 1 MiB.

        Raises:
            ObjectMissing: no object has this name.
        """
        ...

    def size(self, name: str) -> int | None:
        """Bytes; None where there is no such object."""
        ...

    def delete(self, names: Iterable[str]) -> None:
        """Delete; what is not there is not missed."""
        ...

    def list(self, prefix: str) -> Iterator[StoredObject]:
        """List the objects whose names start with a prefix, in order of their names.

        What a killed writer left behind shows too, where it shows at all, under a name that ends in `.unfinished`;
        `delete` takes it. A live writer's shows as well: only an old one may go. What others have put there is left
        out: links, and names that no object can have.
        """
        ...

    def check(self) -> None:
        """Write, read and delete a probe object; raises what is wrong, with what to do."""
        ...

    def has_room(self, size_bytes: int) -> bool:
        """Whether a copy of so much that it holds fits beside it. True where it does not tell."""
        ...

    def link(self, name: str, *, seconds: float) -> str | None:
        """A presigned URL to download it, under its writer's `filename`; None if the storage has no such URLs."""
        ...


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
