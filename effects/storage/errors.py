"""What goes wrong with files, by its fate: each is an outcome, so a handler need not catch it.

Retry
└─ StorageUnavailable   files cannot be reached now
Refused
├─ StorageRefused       files cannot be kept: permission, space, no such bucket
└─ ObjectMissing        there is no file of this name
"""

from __future__ import annotations

from dataclasses import dataclass

from effects.model.outcome import Refused, Retry


@dataclass(eq=False)
class StorageUnavailable(Retry):
    """The storage of files cannot be reached now."""

    code: str = "storage_unavailable"


@dataclass(eq=False)
class StorageRefused(Refused):
    """The storage will not take or give this file: permission, space, or no such bucket."""

    code: str = "storage_refused"


@dataclass(eq=False)
class ObjectMissing(Refused):
    """The storage holds no file of this name."""

    code: str = "storage_missing"
