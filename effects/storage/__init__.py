"""Files of effects: report parts and artifacts, attachments. A local folder, or S3-compatible object storage."""

from effects.storage.base import Listed, Storage, Stored, Writer
from effects.storage.opening import open_storage

__all__ = ["Listed", "Storage", "Stored", "Writer", "open_storage"]
