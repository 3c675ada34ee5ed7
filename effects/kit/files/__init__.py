"""Files of effects: report parts and artifacts, attachments. A local folder, or S3-compatible object storage."""

from __future__ import annotations

from effects.kit.files.base import Storage, Stored, StoredObject, Writer
from effects.kit.files.local import LocalStorage
from effects.kit.files.names import Folder, check_url

__all__ = ["Storage", "Stored", "StoredObject", "Writer", "open_storage"]


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
    from effects.kit.files.objects import ObjectStorage  # noqa: PLC0415 - its client is an extra

    return ObjectStorage(place)
