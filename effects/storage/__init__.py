"""Files of effects: report parts and artifacts, attachments. A local folder, or S3-compatible object storage."""

from effects.storage.base import Storage, Stored, StoredObject, Writer
from effects.storage.opening import open_storage

__all__ = ["Storage", "Stored", "StoredObject", "Writer", "open_storage"]
