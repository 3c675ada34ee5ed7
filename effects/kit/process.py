"""What effects asks of its own process: forks, threads for long calls, files, and bounds of what it keeps."""

from __future__ import annotations

import asyncio
import os
import resource
import secrets
from collections import OrderedDict
from collections.abc import Callable, Iterator
from concurrent.futures import Executor
from contextlib import contextmanager, suppress
from contextvars import ContextVar, copy_context
from io import BufferedWriter, FileIO
from pathlib import Path
from typing import Any, BinaryIO, TypeVar
from weakref import WeakKeyDictionary

Owner = TypeVar("Owner")
_owners: WeakKeyDictionary[Any, Callable[[Any], object]] = WeakKeyDictionary()
Answer = TypeVar("Answer")
_executor: ContextVar[Executor | None] = ContextVar("effects_long_calls", default=None)
Key = TypeVar("Key")
Value = TypeVar("Value")
FILES_BESIDES = 1_152  # what a process opens for the database, logs, libraries, and connections that are kept idle
PRIVATE_MODE = 0o600


def after_fork_in_child(owner: Owner, act: Callable[[Owner], object]) -> None:
    """Call `act(owner)` in each child, for as long as the owner lives.

    Args:
        act: holds no reference to the owner.
    """
    _owners[owner] = act


def _tell_owners() -> None:
    for owner, act in list(_owners.items()):
        act(owner)


os.register_at_fork(after_in_child=_tell_owners)


async def long_call(function: Callable[[], Answer]) -> Answer:
    """Call what may block for minutes in a thread that is not one of the 32 of `asyncio.to_thread`.

    Brief calls of other attempts would wait for those. Threads are started as they are needed, at most 512. As with
    `to_thread`, a call goes on when its task is cancelled, and keeps its attempt's place until it ends. Outside a
    worker it is `asyncio.to_thread`.
    """
    return await asyncio.get_running_loop().run_in_executor(_executor.get(), copy_context().run, function)


def use_for_long_calls(executor: Executor) -> None:
    """Have this executor carry out the long calls of the present context."""
    _executor.set(executor)


class Newest(OrderedDict[Key, Value]):
    """A dict of at most so many entries: those that were set longest ago leave. May be used by many threads.

    Args:
        most: so many are kept.
    """

    def __init__(self, most: int) -> None:
        super().__init__()
        self.most = most

    def __setitem__(self, key: Key, value: Value) -> None:
        super().__setitem__(key, value)
        with suppress(KeyError):  # another thread has taken it out meanwhile
            self.move_to_end(key)
            while len(self) > self.most:
                self.popitem(last=False)


def raise_open_files_limit() -> None:
    """Raise the soft limit to the hard one, where the system lets us."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        except (ValueError, OSError):  # macOS reports no hard limit, and refuses to have none
            return


def open_files_max() -> int:
    """As many as `raise_open_files_limit` can reach."""
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    return 2**31 if hard == resource.RLIM_INFINITY else hard


def create_private(path: Path) -> FileIO:
    """Create the file with mode 0600 and open it for writing, unbuffered. No link is followed, none is overwritten.

    Raises:
        FileExistsError: a file or a link of this name exists.
    """
    return FileIO(path, "x", opener=lambda name, flags: os.open(name, flags, PRIVATE_MODE))


@contextmanager
def private_file(path: Path) -> Iterator[BinaryIO]:
    """Write a file of mode 0600, whole or not at all: under its own name beside `path`, then renamed.

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
