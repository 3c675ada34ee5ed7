"""Files that commands write."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

import click

from effects.process.private_files import private_file


@contextmanager
def output_file(path: Path) -> Iterator[BinaryIO]:
    """A file that an option names, written whole or not at all, with mode 0600: as `effects.process.private_files`.

    Raises:
        click.FileError: it cannot be written.
    """
    try:
        with private_file(path) as file:
            yield file
    except OSError as error:
        raise click.FileError(str(path), error.strerror) from None
