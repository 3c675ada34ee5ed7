"""Objects appended to another: by the kernel, by what replaces it, and hashed meanwhile."""

from __future__ import annotations

import errno
import hashlib
import os
import random
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from effects import ObjectMissing, StorageRefused, StorageUnavailable
from effects.kit.files import Storage, Stored, local
from effects.kit.files.local import LocalStorage, boot_id

MIB = 1024 * 1024
SIZES = (0, 1, 3 * MIB + 7, 9 * MIB)
linux = pytest.mark.skipif(sys.platform != "linux", reason="copy_file_range is Linux's")


def put(storage: Storage, name: str, data: bytes) -> None:
    with storage.writer(name) as out:
        out.write(data)
        out.finish()


def _joined(storage: Storage, sizes: tuple[int, ...] = SIZES) -> tuple[Stored, bytes]:
    """A head, objects of these sizes, and a tail."""
    parts = [random.Random(size).randbytes(size) for size in sizes]
    for number, part in enumerate(parts):
        put(storage, f"parts/{number}", part)
    with storage.writer("whole") as out:
        out.write(b"head")
        assert [out.append(f"parts/{number}") for number in range(len(parts))] == list(sizes)
        out.write(b"tail")
        stored = out.finish()
    return stored, b"".join([b"head", *parts, b"tail"])


def _assert_whole(storage: Storage, stored: Stored, expected: bytes) -> None:
    assert stored == Stored("whole", len(expected), hashlib.sha256(expected).hexdigest())
    assert b"".join(storage.read("whole")) == expected


def test_appended_objects_are_there_with_their_digest(storage: Storage) -> None:
    _assert_whole(storage, *_joined(storage))


def test_many_objects_are_appended_with_few_open_at_once(tmp_path: Path) -> None:
    storage = LocalStorage(tmp_path)
    sizes = tuple(range(100))
    files: list[Any] = []
    real = storage._open_named
    storage._open_named = lambda name: files.append(real(name)) or files[-1]  # type: ignore[method-assign, func-returns-value]
    with storage.writer("whole") as out:
        for size in sizes:
            put(storage, "part", bytes(size))
            out.append("part")
            assert sum(not file.closed for file in files) <= local.FILES_MAX
        assert out.finish() == Stored("whole", sum(sizes), hashlib.sha256(bytes(sum(sizes))).hexdigest())
    assert all(file.closed for file in files)


Copy = Callable[..., int]


def _refusing(number: int, after: int = 0) -> Callable[[Copy], Copy]:
    """Fails like this once so many calls have succeeded."""

    def broken(real: Copy) -> Copy:
        calls = iter(range(1_000_000))

        def copy(*args: Any, **options: Any) -> int:
            if next(calls) >= after:
                raise OSError(number, os.strerror(number))
            return real(*args, **options)

        return copy

    return broken


def _short(real: Copy) -> Copy:
    """Copies a little at a time, as a signal or a file system may have it."""
    return lambda source, target, count, **options: real(source, target, min(count, 100_003), **options)


def _nothing(real: Copy) -> Copy:
    """Says that it is at the end, as some file systems do of files that they make up."""
    return lambda *args, **options: 0


@linux
@pytest.mark.parametrize(
    "broken",
    [*(_refusing(number) for number in sorted(local._NOT_BY_KERNEL)), _refusing(errno.EXDEV, 1), _short, _nothing],
    ids=[*(errno.errorcode[number] for number in sorted(local._NOT_BY_KERNEL)), "EXDEV later", "short", "nothing"],
)
def test_what_the_kernel_does_not_copy_is_read_and_written(
    broken: Callable[[Copy], Copy], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "copy_file_range", broken(os.copy_file_range))
    storage = LocalStorage(tmp_path)
    _assert_whole(storage, *_joined(storage, (9 * MIB, 0, 5)))


def test_a_system_without_that_call_reads_and_writes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "copy_file_range", raising=False)
    storage = LocalStorage(tmp_path)
    _assert_whole(storage, *_joined(storage, (MIB + 1, 5)))


@linux
@pytest.mark.parametrize(("number", "error"), [(errno.ENOSPC, StorageRefused), (errno.EIO, StorageUnavailable)])
def test_an_error_of_the_disk_is_no_reason_to_read_and_write(
    number: int, error: type[Exception], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    storage = LocalStorage(tmp_path)
    put(storage, "part", bytes(MIB))
    monkeypatch.setattr(os, "copy_file_range", _refusing(number)(os.copy_file_range))
    with storage.writer("whole") as out, pytest.raises(error):
        out.append("part")
    assert [stored.name for stored in storage.list("")] == ["part"]


def test_a_missing_object_is_not_appended(storage: Storage) -> None:
    with storage.writer("whole") as out, pytest.raises(ObjectMissing, match="'none'"):
        out.append("none")


def test_only_what_is_not_synced_names_the_boot(tmp_path: Path) -> None:
    storage = LocalStorage(tmp_path)
    for durable, boot in [(True, None), (False, boot_id())]:
        with storage.writer("part", durable=durable) as out:
            assert out.finish().boot == boot
