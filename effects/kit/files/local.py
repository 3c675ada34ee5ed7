"""Files in a local folder, or one that a network file system brings.

One in the making is written under its own name, then renamed; another file appended to it is copied by the kernel
where it can, and hashed meanwhile.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
import secrets
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import cache
from io import FileIO
from pathlib import Path
from tempfile import TemporaryFile

from effects.kit.files.base import PIECE_BYTES, ObjectMissing, Stored, StoredObject, fate, named_errors, probe
from effects.kit.files.names import UNFINISHED, check_listed, check_name, check_prefix, is_listed
from effects.kit.moments import moment
from effects.kit.process import create_private

TRIES = 100  # of making an object's folders; each that fails, another writer's or deleter's step succeeded
STEP_BYTES = 8 * 1024 * 1024
FILES_MAX = 4  # whose hashing may be behind
# What it answers where it cannot: other file systems, no such call (or forbidden to a container), not for such files.
_NOT_BY_KERNEL = {errno.EXDEV, errno.ENOSYS, errno.EPERM, errno.EINVAL, errno.EOPNOTSUPP, errno.EBADF, errno.ETXTBSY}
_CLONE = 0x40049409  # FICLONE
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
WRITEBACK_BYTES = 8 * 1024 * 1024


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

    def has_room(self, size_bytes: int) -> bool:
        """As `Storage.has_room`: by the space that is free to this user, unless copies share their blocks."""
        folder = next(folder for folder in (self.folder, *self.folder.parents) if folder.is_dir())
        free = os.statvfs(folder)
        return free.f_bavail * free.f_frsize >= size_bytes or _shares_blocks(folder)

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


def _shares_blocks(folder: Path) -> bool:
    """Whether a file system, such as Btrfs or XFS, makes a copy without writing its bytes again."""
    with TemporaryFile(dir=folder) as source, TemporaryFile(dir=folder) as target, suppress(OSError):
        fcntl.ioctl(target, _CLONE, source.fileno())
        return True
    return False


def append_file(source: FileIO, target: FileIO) -> Iterator[int]:
    """Append the whole of `source` to `target`: the bytes of each step. The position in `source` stays.

    A copy by the kernel moves no byte through this process, and shares blocks where the file system can. Where it
    refuses, or stops early, the rest is read and written.

    Raises:
        OSError: of either file.
    """
    offset, by_kernel = 0, hasattr(os, "copy_file_range")
    while True:
        count = _copied(source, target, offset) if by_kernel else 0
        if not count:
            by_kernel = False  # the end, or it cannot: reading shows which
            count = write_whole(target, os.pread(source.fileno(), PIECE_BYTES, offset))
            if not count:
                return
        offset += count
        yield count


def _copied(source: FileIO, target: FileIO, offset: int) -> int:
    """How many bytes the kernel has copied; 0 where it did not."""
    try:
        return os.copy_file_range(source.fileno(), target.fileno(), STEP_BYTES, offset_src=offset)
    except OSError as error:
        if error.errno in _NOT_BY_KERNEL:
            return 0
        raise


def write_whole(target: FileIO, data: bytes | memoryview) -> int:
    """Write all of it, in as many calls as it takes; how many bytes that were."""
    left = memoryview(data)
    while left:
        left = left[target.write(left) :]
    return len(data)


class RunningDigest:
    """SHA-256 of bytes and files in the order in which they come; files are read by a separate thread.

    So a file is hashed while it is copied, and while the disk takes what was copied.
    """

    def __init__(self) -> None:
        self._digest = hashlib.sha256()
        self._thread: ThreadPoolExecutor | None = None
        self._behind: deque[tuple[FileIO, Future[None]]] = deque()

    def update(self, data: bytes | memoryview) -> None:
        self._wait(0)
        self._digest.update(data)

    def add_file(self, file: FileIO) -> None:
        """Take all of a file, from its position on; it is closed by `hexdigest` or `close` at the latest."""
        self._wait(FILES_MAX - 1)
        if self._thread is None:
            self._thread = ThreadPoolExecutor(1, "effects-digest")
        self._behind.append((file, self._thread.submit(self._read, file)))

    def hexdigest(self) -> str:
        """The digest of all.

        Raises:
            OSError: a file could not be read.
        """
        self._wait(0)
        return self._digest.hexdigest()

    def close(self) -> None:
        """End the thread, and close the files."""
        if self._thread is not None:
            self._thread.shutdown(cancel_futures=True)
        while self._behind:
            self._behind.popleft()[0].close()

    def _wait(self, files: int) -> None:
        """Until no more than so many files are behind."""
        while len(self._behind) > files:
            file, reading = self._behind.popleft()
            with file:
                reading.result()

    def _read(self, file: FileIO) -> None:
        buffer = memoryview(bytearray(PIECE_BYTES))
        while count := file.readinto(buffer):
            self._digest.update(buffer[:count])


@cache
def boot_id() -> str | None:
    """A text that is another after each boot of this machine, and on each machine; None where the system has none."""
    try:
        return _BOOT_ID.read_text(encoding="ascii").strip() or None
    except OSError:  # not Linux
        return None


class UnfinishedFile:
    """The writer of one local object; `path` is its final place.

    Args:
        mode: permissions of the file.
        durable: whether `finish` waits for the disk.
        open_object: opens another object of the storage.
    """

    def __init__(
        self, name: str, path: Path, *, mode: int, durable: bool, open_object: Callable[[str], FileIO]
    ) -> None:
        self._name, self._path, self._durable = name, path, durable
        self._open_object = open_object
        self._unfinished = path.with_name(f"{path.name}.{secrets.token_hex(8)}{UNFINISHED}")
        self._digest = RunningDigest()
        self._size = self._flushed = 0
        self._finished = False
        self._file = create_private(self._unfinished)
        os.fchmod(self._file.fileno(), mode)

    def write(self, data: bytes | memoryview) -> None:
        """Append. Unbuffered: pieces of 64 KiB and more are quick."""
        try:
            self._digest.update(data)
            self._add(write_whole(self._file, data))
        except OSError as error:
            raise fate(error, self._name) from error

    def append(self, name: str) -> int:
        """As `Writer.append`: the kernel copies where it can, and another thread reads the bytes for the digest."""
        before = self._size
        file = self._open_object(name)
        try:
            self._digest.add_file(file)
            for count in append_file(file, self._file):
                self._add(count)
        except OSError as error:
            raise fate(error, self._name) from error
        return self._size - before

    def _add(self, count: int) -> None:
        self._size += count
        if self._durable and self._size - self._flushed >= WRITEBACK_BYTES:
            self._begin_writeback()

    def _begin_writeback(self) -> None:
        """Let the disk begin now: what is dirty is written and not waited for, and `finish` finds little left."""
        if hasattr(os, "posix_fadvise"):
            os.posix_fadvise(self._file.fileno(), self._flushed, self._size - self._flushed, os.POSIX_FADV_DONTNEED)
        self._flushed = self._size

    def finish(self) -> Stored:
        """Sync, rename, sync the folder; or rename alone."""
        try:
            if self._durable:
                os.fsync(self._file.fileno())
            digest = self._digest.hexdigest()
            self._file.close()
            self._unfinished.replace(self._path)
            self._finished = True
            if self._durable:
                sync_folder(self._path.parent)
        except OSError as error:
            raise fate(error, self._name) from error
        return Stored(self._name, self._size, digest, None if self._durable else boot_id())

    def close(self) -> None:
        """Discard an unfinished file completely."""
        self._digest.close()
        self._file.close()
        if not self._finished:
            with suppress(OSError):  # what is left then shows in `list`
                self._unfinished.unlink()


def sync_folder(folder: Path) -> None:
    """Make the names in it durable."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
