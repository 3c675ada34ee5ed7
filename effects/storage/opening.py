"""From a setting to a storage."""

from __future__ import annotations

from effects.storage.base import Storage
from effects.storage.local import LocalStorage
from effects.storage.urls import Folder, check_url


def open_storage(url: str) -> Storage:
    """Open the storage of EFFECTS_STORAGE_URL. Accesses nothing yet; `Storage.check` does.

    Args:
        url: a folder as a plain path or `file:…`, relative to the working directory or absolute; or
            `s3://bucket/prefix?region=…&endpoint=https://…` for S3 and what speaks like it (extra
            `effects-toolkit[s3]`). Credentials of S3 come from the
            usual AWS_ variables or the machine's role, never from the URL.

    Raises:
        ConfigurationError: the URL is neither (the message names the wrong part), or the extra is not installed.
    """
    place = check_url(url)
    if isinstance(place, Folder):
        return LocalStorage(place.path.absolute(), url=url if url.startswith("file:") else f"file:{url}")
    from effects.storage.objects import ObjectStorage  # noqa: PLC0415 - its client is an extra

    return ObjectStorage(place)
