"""The files of a SQLite database: private from their first moment on, and still those that were opened."""

from __future__ import annotations

import stat
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

from sqlalchemy import Engine

from effects.errors import WorkerCannotContinue
from effects.process.private_files import PRIVATE_MODE, create_private

_COMPANIONS = ("", "-wal", "-shm", "-journal")


def create_database_file(dialect: Any, record: Any, arguments: list[Any], options: dict[str, Any]) -> None:
    """Create the file of a new database with mode 0600, before SQLite would with the umask's.

    The write-ahead log and its index get the mode of the file from SQLite. A file that exists is left as it is; of a
    link, the target is created. For SQLAlchemy's event `do_connect`.
    """
    file = _file_of(str(arguments[0]), is_uri=bool(options.get("uri")))
    if file is not None:
        with suppress(OSError):  # it exists, or cannot be created: SQLite reports that
            create_private(file.resolve()).close()


def _file_of(name: str, *, is_uri: bool) -> Path | None:
    """The file that this name opens; None for a database in memory, and for one that is opened to be read."""
    if is_uri and name.startswith("file:"):
        url = urlsplit(name)
        if parse_qs(url.query).get("mode", ["rwc"])[-1] != "rwc":  # the others create no file
            return None
        name = unquote(url.path)
    return None if name in ("", ":memory:") or name.startswith(":") else Path(name)


def wide_files(database: Path) -> dict[Path, int]:
    """The database's file and companions that others than the owner may open, with their modes."""
    modes: dict[Path, int] = {}
    for suffix in _COMPANIONS:
        file = database.with_name(database.name + suffix)
        with suppress(OSError):
            modes[file] = stat.S_IMODE(file.stat().st_mode)
    return {file: mode for file, mode in modes.items() if mode & ~PRIVATE_MODE & 0o777}


class DatabaseFile:
    """The file as it is when this is made; it must exist by then.

    A process that has a file open continues with it after it was deleted or replaced: alive, and
    alone with it. PostgreSQL has no such file.
    """

    def __init__(self, engine: Engine) -> None:
        self._path = _path_of(engine)
        self._identity = self._look()

    def check(self) -> None:
        """Compare it with the file at its path now.

        Raises:
            WorkerCannotContinue: it was deleted or replaced.
        """
        if self._path is None or (now := self._look()) == self._identity:
            return
        fate = "deleted" if now is None else "replaced by another"
        raise WorkerCannotContinue(
            f"the database file {self._path} was {fate} while this process had it open: what it reads and writes is "
            "the old one; start a fresh process"
        )

    def _look(self) -> tuple[int, int] | None:
        try:
            status = self._path.stat() if self._path is not None else None
        except FileNotFoundError:
            return None
        return (status.st_dev, status.st_ino) if status is not None else None


def _path_of(engine: Engine) -> Path | None:
    """Absolute, since a process may change its directory; None where the database is in memory, or on a server."""
    name = engine.url.database
    if engine.dialect.name != "sqlite" or not name or name == ":memory:" or name.startswith("file:"):
        return None
    return Path(name).absolute()
