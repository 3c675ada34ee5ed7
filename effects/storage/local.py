"""Files in a local folder, or one that a network file system brings."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from io import FileIO
from pathlib import Path

from effects.moments import moment
from effects.storage.base import PIECE_BYTES, StoredObject
from effects.storage.errors import ObjectMissing
from effects.storage.names import check_listed, check_name, check_prefix, is_listed
from effects.storage.os_errors import fate, named_errors
from effects.storage.probe import probe
from effects.storage.unfinished import UnfinishedFile, sync_folder

TRIES = 100  # of making an object's folders; each that fails, another writer's or deleter's step succeeded


class LocalStorage:
    """Objects as files below `folder`, which is made when it is first written to.

    A file is written next to its final place under a name that ends in `.unfinished`, synced, renamed, and the folder
    synced: after a power cut the name holds the whole object or does not exist. Others are not synced. A killed
    writer leaves its unfinished file; `list` shows it and `delete` takes its name. Folders and files get the
    permissions of `folder` (2770: the group reads and writes them too); where that is made by us, they are its owner's
    alone.

    Args:
        folder: absolute.
        url: how the setting names it.
    """

    def __init__(self, folder: Path, *, url: str | None = None) -> None:
        self.folder = folder
        self.url = url or f"file:{folder}"

    @contextmanager
    def writer(self, name: str, *, filename: str | None = None, durable: bool = True) -> Iterator[UnfinishedFile]:
        """As `Storage.writer`; `filename` is not kept."""
        path = self.folder / check_name(name)
        try:
            writing = self._create(name, path, durable=durable)
        except OSError as error:
            raise fate(error, name) from error
        try:
            yield writing
        finally:
            writing.close()
            if not path.exists():
                self._remove_empty(path.parent)

    def read(self, name: str, start: int = 0, stop: int | None = None) -> Iterator[bytes]:
        """As `Storage.read`."""
        with self._open_named(name) as file:
            file.seek(start)
            while stop is None or start < stop:
                with named_errors(name):
                    piece = file.read(PIECE_BYTES if stop is None else min(PIECE_BYTES, stop - start))
                if not piece:
                    return
                start += len(piece)
                yield piece

    def size(self, name: str) -> int | None:
        """As `Storage.size`."""
        try:
            with named_errors(name), self._open(name) as file:
                return os.fstat(file.fileno()).st_size
        except ObjectMissing:
            return None

    def delete(self, names: Iterable[str]) -> None:
        """As `Storage.delete`. Folders that become empty go as well."""
        for name in names:
            path = self.folder / check_listed(name)
            with named_errors(name):
                path.unlink(missing_ok=True)
                self._remove_empty(path.parent)

    def list(self, prefix: str) -> Iterator[StoredObject]:
        """As `Storage.list`, unfinished files too."""
        inside = check_prefix(prefix).rpartition("/")[0]
        with named_errors(prefix):
            yield from _walk(self.folder / inside, f"{inside}/" if inside else "", prefix)

    def check(self) -> None:
        """As `Storage.check`."""
        probe(self)

    def link(self, name: str, *, seconds: float) -> str | None:
        """None: a folder has no address."""
        return None

    def _open_named(self, name: str) -> FileIO:
        with named_errors(name):
            return self._open(name)

    def _open(self, name: str) -> FileIO:
        try:
            return (self.folder / check_name(name)).open("rb", buffering=0)
        except (NotADirectoryError, IsADirectoryError):  # names of this kind are other objects' folders
            raise FileNotFoundError from None

    def _create(self, name: str, path: Path, *, durable: bool) -> UnfinishedFile:
        """Create the file's folders, again if they vanish meanwhile because the last other file there was deleted.

        `FileExistsError` too: `mkdir` met a folder that was gone when it looked what that was.
        """
        for _ in range(TRIES - 1):
            with suppress(FileNotFoundError, FileExistsError):
                return self._unfinished(name, path, durable)
        return self._unfinished(name, path, durable)

    def _unfinished(self, name: str, path: Path, durable: bool) -> UnfinishedFile:
        mode = self._make_folders(path.parent) & 0o666
        return UnfinishedFile(name, path, mode=mode, durable=durable, open_object=self._open_named)

    def _make_folders(self, parent: Path) -> int:
        """Make the folder of an object, durably; the permissions of the storage's own."""
        if not self.folder.is_dir():
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            sync_folder(self.folder.parent)
        mode = self.folder.stat().st_mode & 0o2777
        inside = [
            folder
            for folder in (parent, *parent.parents)
            if folder != self.folder and folder.is_relative_to(self.folder)
        ]
        for folder in reversed(inside):
            if not folder.is_dir():
                folder.mkdir(exist_ok=True)
                folder.chmod(mode)
                sync_folder(folder.parent)
        return mode

    def _remove_empty(self, folder: Path) -> None:
        while folder != self.folder:
            try:
                folder.rmdir()
            except OSError:  # not empty, or gone, or not ours to remove
                return
            folder = folder.parent


def _walk(folder: Path, inside: str, prefix: str) -> Iterator[StoredObject]:
    """In the order of whole names: a folder's slash counts, so that `a.csv` comes before `a/b.csv`.

    A stranger's file whose name no object can have is left out: nothing could be done with it. So is a link, under
    whose name an object would be another one, and be deleted as such.
    """
    try:
        with os.scandir(folder) as scan:
            own = [entry for entry in scan if not entry.is_symlink()]
    except FileNotFoundError:
        return
    for entry in sorted(own, key=lambda entry: f"{entry.name}/" if entry.is_dir() else entry.name):
        name = inside + entry.name
        if entry.is_dir():
            if f"{name}/".startswith(prefix) or prefix.startswith(f"{name}/"):
                yield from _walk(folder / entry.name, f"{name}/", prefix)
        elif name.startswith(prefix) and is_listed(name):
            with suppress(FileNotFoundError):  # deleted or renamed since
                facts = entry.stat()
                yield StoredObject(name, facts.st_size, moment(facts.st_mtime))
