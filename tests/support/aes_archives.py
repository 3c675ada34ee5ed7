"""Archives with a password, opened by a reader that is not ours."""

from __future__ import annotations

import io

import pyzipper


def opened(data: bytes, password: str) -> dict[str, bytes]:
    """Name → bytes of what is in the archive.

    Raises:
        RuntimeError: the password is wrong, or there is none.
    """
    with pyzipper.AESZipFile(io.BytesIO(data)) as archive:
        archive.setpassword(password.encode() or None)
        return {entry.filename: archive.read(entry) for entry in archive.infolist()}
