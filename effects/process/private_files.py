"""Files that may hold personal data: only their owner can open them, from their first moment on."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from io import BufferedWriter, FileIO
from pathlib import Path
from typing import BinaryIO

PRIVATE_MODE = 0o600


def create_private(path: Path) -> FileIO:
    """Create the file with mode 0600 and open it for writing, unbuffered. No link is followed, none is overwritten.

    Raises:
        FileExistsError: a file or a link of this name exists.
    """
    return FileIO(path, "x", opener=lambda name, flags: os.open(name, flags, PRIVATE_MODE))


@contextmanager
def private_file(path: Path) -> Iterator[BinaryIO]:
    """Write a file of mode 0600, whole or not at all: under a name of its own beside `path`, then renamed.

    A file of that name is replaced, with its mode; so is a link, whose target stays as it is.
    """
    unfinished = path.with_name(f"{path.name}.{secrets.token_hex(8)}.part")
    try:
        with BufferedWriter(create_private(unfinished)) as file:
            yield file
        unfinished.replace(path)
    finally:
        with suppress(FileNotFoundError):
            unfinished.unlink()
