"""What every storage promises, on each of them."""

from __future__ import annotations

import hashlib
import random
from contextlib import suppress
from datetime import UTC, datetime, timedelta

import pytest

from effects import ObjectMissing, StorageRefused
from effects.kit.files import Storage, Stored

MIB = 1024 * 1024


def put(storage: Storage, name: str, data: bytes) -> Stored:
    with storage.writer(name) as writer:
        for start in range(0, len(data), 700_001):
            writer.write(data[start : start + 700_001])
        return writer.finish()


@pytest.mark.parametrize("size", [0, 1, MIB, 20 * MIB + 3])
def test_written_bytes_are_read_back(storage: Storage, size: int) -> None:
    data = random.Random(size).randbytes(size)
    stored = put(storage, "run/part", data)
    assert stored == Stored("run/part", size, hashlib.sha256(data).hexdigest())
    assert storage.size("run/part") == size
    pieces = list(storage.read("run/part"))
    assert b"".join(pieces) == data
    assert all(0 < len(piece) <= MIB for piece in pieces)


def test_any_range_is_read(storage: Storage) -> None:
    data = random.Random(1).randbytes(3 * MIB)
    put(storage, "part", data)
    for start, stop in [(0, 1), (5, 5), (MIB - 1, 2 * MIB + 1), (3 * MIB - 2, None), (7, 10 * MIB), (3 * MIB, None)]:
        assert b"".join(storage.read("part", start, stop)) == data[start:stop]


def test_an_object_exists_only_once_it_is_finished(storage: Storage) -> None:
    with storage.writer("run/part") as writer:
        writer.write(bytes(MIB))
        assert storage.size("run/part") is None
    assert storage.size("run/part") is None
    with suppress(LookupError), storage.writer("run/part") as writer:
        writer.write(bytes(9 * MIB))
        raise LookupError
    assert list(storage.list("")) == []


def test_a_second_write_replaces_the_object_atomically(storage: Storage) -> None:
    put(storage, "part", b"old")
    with storage.writer("part") as writer:
        writer.write(b"newer")
        assert b"".join(storage.read("part")) == b"old"
        writer.finish()
    assert b"".join(storage.read("part")) == b"newer"


def test_a_listing_is_by_prefix_and_sorted_by_full_name(storage: Storage) -> None:
    names = ["a", "b.csv", "b/1", "b/10", "b/2", "b/c/d", "b0", "é"]
    for name in reversed(names):
        put(storage, name, name.encode())
    assert [stored.name for stored in storage.list("")] == names
    assert [stored.name for stored in storage.list("b/")] == ["b/1", "b/10", "b/2", "b/c/d"]
    assert [stored.name for stored in storage.list("b/1")] == ["b/1", "b/10"]
    assert [stored.name for stored in storage.list("b/c/")] == ["b/c/d"]
    assert [stored.name for stored in storage.list("none/of/it")] == []
    [listed] = storage.list("é")
    assert listed.size_bytes == 2
    assert abs(listed.modified_at - datetime.now(UTC)) < timedelta(minutes=5)


def test_what_is_listed_can_be_deleted_while_it_is_written(storage: Storage) -> None:
    """A killed writer leaves such a file, of as long a name as an object may have."""
    with storage.writer(f"a/{'x' * 200}") as writer:
        writer.write(b"x")
        storage.delete([stored.name for stored in storage.list("a/")])
        assert list(storage.list("")) == []


def test_deleting_ignores_missing_objects(storage: Storage) -> None:
    for name in ("a/b/1", "a/b/2", "a/c"):
        put(storage, name, b"x")
    storage.delete(["a/b/1", "a/none", "a/b/2", "z/z"])
    assert [stored.name for stored in storage.list("")] == ["a/c"]
    storage.delete(stored.name for stored in storage.list(""))
    assert list(storage.list("")) == []


def test_a_missing_object_is_reported(storage: Storage) -> None:
    put(storage, "a/b", b"x")
    for name in ("none", "a", "a/c"):
        assert storage.size(name) is None
        with pytest.raises(ObjectMissing, match=repr(name)) as caught:
            list(storage.read(name))
        assert caught.value.code == "storage_missing"


@pytest.mark.parametrize(
    "name",
    ["", "/etc/passwd", "../x", "a/../../x", "a//b", "a/", "./a", "a\0b", "a\nb", "a\\b", "x" * 201, "a/" * 600 + "a",
     "a.unfinished"],
)  # fmt: skip
def test_a_name_stays_inside(storage: Storage, name: str) -> None:
    with pytest.raises(StorageRefused, match="cannot be the name"), storage.writer(name):
        pass
    with pytest.raises(StorageRefused, match="cannot be the name"):
        list(storage.read(name))
    with pytest.raises(StorageRefused, match="cannot be the name"):
        storage.size(name)


def test_a_check_leaves_nothing(storage: Storage) -> None:
    storage.check()
    assert list(storage.list("")) == []
