"""Operating system errors about files, classified by what to do about them."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager

from effects.errors import DeliveryError
from effects.storage.errors import ObjectMissing, StorageRefused, StorageUnavailable

_PERMISSION = "permission denied: let this user read and write the folder"

# Waiting does not help with these; anything else (EIO, ESTALE, a mount that is gone) may pass.
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
        return StorageRefused(f"{name!r} cannot be kept or read: {cure}", code=code)
    symbol = errno.errorcode.get(error.errno or 0, "an error without a number")
    return StorageUnavailable(f"the storage failed on {name!r} with {symbol}", code="storage_unavailable")
