"""What object storage answers, as errors by fate. Its own text holds addresses and account names, and is not kept."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

from obstore.exceptions import BaseError, PermissionDeniedError, UnauthenticatedError

from effects.errors import DeliveryError
from effects.storage.errors import ObjectMissing, StorageRefused, StorageUnavailable

_STATUS = re.compile(r"status code: (\d{3})")
_CODE = re.compile(r"<Code>([A-Za-z]{1,64})</Code>")
_THROTTLED = {408, 425, 429}


@contextmanager
def object_errors(name: str) -> Iterator[None]:
    """Errors of the client inside the block, as ours, about the object `name`."""
    try:
        yield
    except (BaseError, OSError) as error:
        raise object_fate(error, name) from error


def object_fate(error: BaseException, name: str) -> DeliveryError:
    """Classify by the response's code and status; without a response the storage is unavailable."""
    text = str(error)
    code, status = _CODE.search(text), _STATUS.search(text)
    detail = f" ({code[1]})" if code else f" (status {status[1]})" if status else ""
    if code and code[1] == "NoSuchBucket":
        return StorageRefused(
            "the bucket does not exist: create it, or correct EFFECTS_STORAGE_URL", code="storage_bucket"
        )
    if isinstance(error, FileNotFoundError):
        return ObjectMissing(f"the storage holds no file {name!r}", code="storage_missing")
    if isinstance(error, PermissionDeniedError | UnauthenticatedError):
        return StorageRefused(
            f"the storage denies access to {name!r}{detail}: check the credentials and their permissions "
            "(get, put, delete, list, abort multipart uploads)",
            code="storage_permission",
        )
    if status and 400 <= int(status[1]) < 500 and int(status[1]) not in _THROTTLED:
        return StorageRefused(f"the storage refused {name!r}{detail}", code="storage_refused")
    return StorageUnavailable(f"the storage failed on {name!r}{detail or ': no answer'}", code="storage_unavailable")
