"""A folder as a storage: whole files or none, whoever dies when."""

from __future__ import annotations

import errno
import os
import signal
import stat
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from effects import ConfigurationError, Effects, ObjectMissing, StorageRefused, StorageUnavailable
from effects.kit.files import open_storage
from effects.kit.files.base import fate
from effects.kit.files.local import LocalStorage
from effects.kit.files.names import UNFINISHED


def test_a_setting_names_a_folder_relative_to_the_working_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for url, folder in [
        ("files", tmp_path / "files"),
        ("file:files/a%20b", tmp_path / "files/a b"),
        (f"file://{tmp_path}/there", tmp_path / "there"),
        (str(tmp_path / "plain"), tmp_path / "plain"),
    ]:
        storage = open_storage(url)
        assert isinstance(storage, LocalStorage)
        assert storage.folder == folder
        storage.check()
        assert list(folder.iterdir()) == []


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("", "names no folder"),
        ("~/files", "begins with ~"),
        ("file:", "names no folder"),
        ("file://server/share", "has a host"),
        ("ftp://host/x", "begins with 'ftp'"),
        ("s3://key:secret@bucket/x", "AWS_ACCESS_KEY_ID"),
        ("s3:///x", "bucket"),
        ("s3://B_ucket", "bucket"),
        ("s3://bucket?colour=red", "option 'colour'"),
        ("s3://bucket?endpoint=gopher://x", "endpoint"),
        ("s3://bucket?endpoint=https://key:secret@host", "AWS_ACCESS_KEY_ID"),
        ("s3://bucket?endpoint=https://[secret", "brackets"),
        ("s3://[secret", "brackets"),
        ("s3://bucket/../x", "not . or .."),
    ],
)
def test_the_error_of_a_wrong_setting_does_not_quote_it(url: str, says: str) -> None:
    with pytest.raises(ConfigurationError, match="EFFECTS_STORAGE_URL") as caught:
        Effects("sqlite:///x.db", storage_url=url)
    assert says in str(caught.value)
    assert "secret" not in str(caught.value)


def test_the_app_opens_its_storage_once(tmp_path: Path) -> None:
    app = Effects(f"sqlite:///{tmp_path / 'x.db'}", storage_url=f"{tmp_path}/files")
    assert app.storage is app.storage
    assert app.storage.url == f"file:{tmp_path}/files"
    app.dispose()


def test_permissions_follow_the_folder(tmp_path: Path) -> None:
    for mode, file_mode in [(None, 0o600), (0o2770, 0o660), (0o755, 0o644)]:
        folder = tmp_path / f"files-{mode}"
        if mode is not None:
            folder.mkdir()
            folder.chmod(mode)
        storage = LocalStorage(folder)
        with storage.writer("a/b/c") as writer:
            writer.finish()
        assert stat.S_IMODE((folder / "a/b/c").stat().st_mode) == file_mode
        assert stat.S_IMODE((folder / "a/b").stat().st_mode) == (mode or 0o700)


def test_a_folder_and_a_file_of_one_name_are_refused(tmp_path: Path) -> None:
    storage = LocalStorage(tmp_path)
    with storage.writer("a") as writer:
        writer.finish()
    with pytest.raises(StorageRefused, match="a file is where a folder should be"), storage.writer("a/b"):
        pass
    with storage.writer("d/e") as writer:
        writer.finish()
    with pytest.raises(StorageRefused, match="a folder is where a file should be"), storage.writer("d") as writer:
        writer.finish()
    assert [stored.name for stored in storage.list("")] == ["a", "d/e"]


_KILLED = """
import os, signal, sys
from pathlib import Path
from effects.kit.files.local import LocalStorage
with LocalStorage(Path(sys.argv[1])).writer("run/part") as writer:
    writer.write(b"half")
    os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.slow
def test_a_killed_writer_leaves_nothing_under_the_name_and_can_be_cleaned_up(tmp_path: Path) -> None:
    killed = subprocess.run([sys.executable, "-c", _KILLED, str(tmp_path)], timeout=60, check=False)
    assert killed.returncode == -signal.SIGKILL
    storage = LocalStorage(tmp_path)
    assert storage.size("run/part") is None
    [left] = storage.list("run/")
    assert left.name.startswith("run/part.")
    assert left.name.endswith(UNFINISHED)
    assert left.size_bytes == 4
    storage.delete([left.name])
    assert list(tmp_path.iterdir()) == []


def test_files_that_no_object_could_be_and_links_are_not_listed(tmp_path: Path) -> None:
    """By the name of a link, such as `latest`, an object would look like one that no row names."""
    storage = LocalStorage(tmp_path / "files")
    (storage.folder / "run").mkdir(parents=True)
    for name in (r"a\b", "x" * 201, "part", "run/part"):
        (storage.folder / name).touch()
    (storage.folder / "latest").symlink_to("run")
    (storage.folder / "latest.csv").symlink_to("run/part")
    assert [stored.name for stored in storage.list("")] == ["part", "run/part"]
    moved = tmp_path / "moved"
    (storage.folder / "run").rename(moved)
    (storage.folder / "run").symlink_to(moved)
    assert [stored.name for stored in storage.list("run/")] == ["run/part"]


_LIMITED = """
import resource, sys
from pathlib import Path
from effects import StorageRefused
from effects.kit.files.local import LocalStorage
resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
storage = LocalStorage(Path(sys.argv[1]))
try:
    with storage.writer("part") as writer:
        for _ in range(3):
            writer.write(bytes(65_536))
        writer.finish()
except StorageRefused as error:
    print(error.code, error)
print(list(storage.list("")))
"""


@pytest.mark.slow
def test_a_file_that_may_not_grow_is_refused_and_leaves_nothing(tmp_path: Path) -> None:
    said = subprocess.run(
        [sys.executable, "-c", _LIMITED, str(tmp_path)], capture_output=True, text=True, timeout=60, check=True
    ).stdout.splitlines()
    assert said[0].startswith("storage_full 'part' cannot be kept or read: a file may not become so large here")
    assert said[1] == "[]"


def test_a_full_disk_is_refused(tmp_path: Path) -> None:
    """`/dev/full` is a disk without space that everybody has."""
    storage = LocalStorage(tmp_path)
    with storage.writer("part") as writer:
        os.dup2(os.open("/dev/full", os.O_WRONLY), writer._file.fileno())
        with pytest.raises(StorageRefused, match="no space is left") as caught:
            writer.write(b"x")
    assert caught.value.code == "storage_full"
    assert list(storage.list("")) == []


@pytest.mark.parametrize("number", ["EIO", "ESTALE", "ENOTCONN", "ETIMEDOUT", "EMFILE"])
def test_a_transient_error_is_retried(number: str) -> None:
    error = fate(OSError(getattr(errno, number), "x"), "part")
    assert isinstance(error, StorageUnavailable)
    assert number in str(error)


def test_an_unfinished_file_that_was_removed_is_written_again(tmp_path: Path) -> None:
    storage = LocalStorage(tmp_path)
    with storage.writer("a/part") as writer:
        writer.write(b"x")
        storage.delete([stored.name for stored in storage.list("a/")])
        with pytest.raises(StorageUnavailable):
            writer.finish()
    assert storage.size("a/part") is None
    with pytest.raises(ObjectMissing):
        list(storage.read("a/part"))


@pytest.mark.parametrize(("durable", "synced"), [(True, 2), (False, 0)])
def test_a_durable_file_is_synced_with_its_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, durable: bool, synced: int
) -> None:
    storage, real, synced_inodes = LocalStorage(tmp_path), os.fsync, []
    monkeypatch.setattr(
        os, "fsync", lambda descriptor: (synced_inodes.append(os.fstat(descriptor).st_ino), real(descriptor))
    )
    with storage.writer("part", durable=durable) as writer:
        writer.write(b"x")
        writer.finish()
    assert synced_inodes == [(tmp_path / "part").stat().st_ino, tmp_path.stat().st_ino][:synced]


@pytest.mark.parametrize(("step", "error"), [("chmod", FileNotFoundError), ("mkdir", FileExistsError)])
def test_a_folder_that_goes_while_it_is_made_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str, error: type[OSError]
) -> None:
    """The moments just after `mkdir` found nothing, and just after it found what is gone by now."""
    gone: list[Path] = []
    real = getattr(Path, step)

    def first_of_all(path: Path, *args: Any, **named: Any) -> None:
        if path.name == "a" and not gone:
            gone.append(path)
            raise error(path)
        real(path, *args, **named)

    monkeypatch.setattr(Path, step, first_of_all)
    storage = LocalStorage(tmp_path)
    with storage.writer("a/part") as writer:
        writer.finish()
    assert (gone, storage.size("a/part")) == ([tmp_path / "a"], 0)


@pytest.mark.slow
def test_checks_at_the_same_time_do_not_take_each_others_folder_away(tmp_path: Path) -> None:
    storage = LocalStorage(tmp_path / "files")
    with ThreadPoolExecutor(4) as threads:
        for check in [threads.submit(storage.check) for _ in range(800)]:
            check.result()
    assert list(storage.list("")) == []
