"""Several folders of templates as one, as the apps of a project bring them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from importlib.resources.abc import Traversable
from itertools import chain
from typing import Any


class MergedFolder(Traversable):
    """The union of folders, which may be in packages: of two files with one name the first counts."""

    def __init__(self, folders: Sequence[Traversable]) -> None:
        self._folders = folders

    @property
    def name(self) -> str:
        return self._folders[0].name

    def is_dir(self) -> bool:
        return True

    def is_file(self) -> bool:
        return False

    def open(self, *_: Any, **__: Any) -> Any:
        raise IsADirectoryError(self.name)

    def read_bytes(self) -> bytes:
        raise IsADirectoryError(self.name)

    def read_text(self, encoding: str | None = None) -> str:
        raise IsADirectoryError(self.name)

    def iterdir(self) -> Iterator[Traversable]:
        """Each name once."""
        names = dict.fromkeys(child.name for child in chain.from_iterable(folder.iterdir() for folder in self._folders))
        return (self.joinpath(name) for name in names)

    def joinpath(self, *parts: Any) -> Traversable:
        """A file of the first folder that has it, or the union of all folders of this name."""
        candidates = [folder.joinpath(*parts) for folder in self._folders]
        if files := [child for child in candidates if child.is_file()]:
            return files[0]
        if len(folders := [child for child in candidates if child.is_dir()]) > 1:
            return MergedFolder(folders)
        return folders[0] if folders else candidates[0]
