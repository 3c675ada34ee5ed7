"""What every storage does."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager
from datetime import datetime
from typing import Protocol

import msgspec

PIECE_BYTES = 1024 * 1024


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

    def link(self, name: str, *, seconds: float) -> str | None:
        """A presigned URL to download it, under its writer's `filename`; None if the storage has no such URLs."""
        ...
