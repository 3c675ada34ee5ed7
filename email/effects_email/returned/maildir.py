"""Reports in a maildir: taken from `new/`, and moved to `cur/` when they are on record."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from effects import ConfigurationError
from effects_email.returned.parts import BYTES_MAX


class ReportMaildir:
    """
    Args:
        folder: a maildir, with `new` and `cur` in it.

    Raises:
        ConfigurationError: it is not a maildir.
    """

    def __init__(self, folder: Path) -> None:
        self._new, self._cur = folder / "new", folder / "cur"
        if not self._new.is_dir() or not self._cur.is_dir():
            raise ConfigurationError(f"{folder} is no maildir: it has no folders new and cur")

    def unread(self) -> Iterator[tuple[Path, bytes | None]]:
        """Each unread message, oldest first, with its first MiB; None where it cannot be read, such as a file of
        another user. One that is gone meanwhile is skipped.
        """
        for file in sorted(self._new.iterdir()):
            try:
                with file.open("rb") as stream:
                    data: bytes | None = stream.read(BYTES_MAX)
            except FileNotFoundError:
                continue
            except OSError:
                data = None
            yield file, data

    def mark_read(self, file: Path) -> None:
        """Move it to `cur/` with the flag S, unless another run has. After a crash before that it is taken again, which
        changes nothing.
        """
        with suppress(FileNotFoundError):
            file.replace(self._cur / f"{file.name.partition(':')[0]}:2,S")
