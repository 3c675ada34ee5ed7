"""The files that we create hold addresses, mail and payloads: whoever is not their owner reads none of them."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from effects import Effects, enqueue
from effects.kit.process import create_private, private_file
from effects.model.advice import DoctorFinding
from effects.operate.doctor import examine
from effects.store.db.engine import create_database_file
from effects.store.migrations import migrate
from effects.worker import Worker
from effects_email import send_templated_email


@pytest.fixture(params=[0o000, 0o022, 0o077])
def _umask(request: pytest.FixtureRequest) -> Iterator[None]:
    before = os.umask(request.param)
    yield
    os.umask(before)


def modes(folder: Path) -> dict[str, int]:
    return {file.name: stat.S_IMODE(file.stat().st_mode) for file in folder.iterdir() if file.is_file()}


@pytest.mark.usefixtures("_umask")
@pytest.mark.parametrize("form", ["sqlite:///{file}", "sqlite:///file:{file}?uri=true"], ids=["path", "uri"])
def test_a_new_database_and_its_companions_are_its_owners_alone(tmp_path: Path, form: str) -> None:
    app = Effects(form.format(file=tmp_path / "new.db"))
    migrate.init(app.store)
    enqueue("effects.prune", {}, effects=app)
    actual = modes(tmp_path)
    app.dispose()
    assert actual == {"new.db": 0o600, "new.db-wal": 0o600, "new.db-shm": 0o600}


def test_an_existing_file_is_left_as_it_is(tmp_path: Path) -> None:
    file = tmp_path / "old.db"
    file.touch()
    file.chmod(0o640)
    app = Effects(f"sqlite:///{file}")
    migrate.init(app.store)
    app.dispose()
    assert modes(tmp_path)["old.db"] == 0o640


@pytest.mark.parametrize(("name", "uri", "makes"), [
    (":memory:", False, False), ("", False, False), ("file:x?mode=memory&cache=shared", True, False),
    ("file:x?mode=ro", True, False), ("file:x?mode=rw", True, False), ("file:x?mode=rwc", True, True),
    ("file:x", True, True), ("x", False, True),
])  # fmt: skip
def test_a_file_is_made_where_sqlite_would_make_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, uri: bool, makes: bool
) -> None:
    monkeypatch.chdir(tmp_path)
    create_database_file(None, None, [name], {"uri": uri})
    assert [file.name for file in tmp_path.iterdir()] == ["x"] * makes


def test_a_database_behind_a_link_is_private_too(tmp_path: Path) -> None:
    (tmp_path / "disk").mkdir()
    (tmp_path / "link.db").symlink_to(tmp_path / "disk" / "real.db")
    app = Effects(f"sqlite:///{tmp_path / 'link.db'}")
    migrate.init(app.store)
    app.dispose()
    assert modes(tmp_path / "disk")["real.db"] == 0o600


@pytest.mark.usefixtures("_umask")
def test_a_private_file_is_private_before_its_first_byte_and_when_it_is_whole(tmp_path: Path) -> None:
    with private_file(tmp_path / "out.csv") as file:
        assert list(modes(tmp_path).values()) == [0o600]
        assert not (tmp_path / "out.csv").exists()
        file.write(b"ann@example.com\n")
    assert modes(tmp_path) == {"out.csv": 0o600}
    assert (tmp_path / "out.csv").read_bytes() == b"ann@example.com\n"


def test_a_file_that_was_there_gets_the_mode_with_the_content(tmp_path: Path) -> None:
    (tmp_path / "out.csv").write_text("old")
    (tmp_path / "out.csv").chmod(0o644)
    with private_file(tmp_path / "out.csv") as file:
        file.write(b"new")
    assert modes(tmp_path) == {"out.csv": 0o600}


@pytest.mark.parametrize("exists", [True, False], ids=["target", "dangling"])
def test_a_planted_link_is_replaced_and_its_target_untouched(tmp_path: Path, *, exists: bool) -> None:
    target = tmp_path / "elsewhere" / "target"
    target.parent.mkdir()
    if exists:
        target.write_text("theirs")
    (tmp_path / "out.eml").symlink_to(target)
    with private_file(tmp_path / "out.eml") as file:
        file.write(b"ours")
    assert not (tmp_path / "out.eml").is_symlink()
    assert (tmp_path / "out.eml").read_bytes() == b"ours"
    assert ([target.read_text()] if target.exists() else []) == ["theirs"] * exists


@pytest.mark.parametrize("planted", ["file", "link", "dangling"])
def test_nothing_that_exists_is_opened_as_new(tmp_path: Path, planted: str) -> None:
    target, path = tmp_path / "target", tmp_path / "path"
    if planted != "dangling":
        target.write_text("theirs")
    if planted == "file":
        path.write_text("theirs")
    else:
        path.symlink_to(target)
    with pytest.raises(FileExistsError):
        create_private(path)
    assert target.exists() == (planted != "dangling")


def test_a_file_that_is_not_finished_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / "out.csv").write_text("old")

    def fail_midway() -> None:
        with private_file(tmp_path / "out.csv") as file:
            file.write(b"new")
            raise RuntimeError("the source failed")

    with pytest.raises(RuntimeError):
        fail_midway()
    assert {file.name: file.read_text() for file in tmp_path.iterdir()} == {"out.csv": "old"}


def file_modes(app: Effects) -> DoctorFinding:
    [finding] = [finding for finding in examine(app) if finding.check == "file modes"]
    return finding


@pytest.mark.parametrize("suffix", ["", "-wal", "-shm"])
def test_doctor_names_a_file_that_others_may_open(tmp_path: Path, suffix: str) -> None:
    app = Effects(f"sqlite:///{tmp_path / 'my effects.db'}")
    migrate.init(app.store)
    assert file_modes(app).level == "ok"
    wide = tmp_path / f"my effects.db{suffix}"
    wide.chmod(0o644)
    finding = file_modes(app)
    app.dispose()
    assert finding.level == "warning"
    assert f"{wide.name} 0644" in finding.text
    assert finding.advice == f"run `chmod 600 '{wide}'`"


@pytest.mark.usefixtures("_umask")
def test_a_maildir_is_its_owners_alone(tmp_path: Path) -> None:
    template = tmp_path / "emails" / "hello"
    template.mkdir(parents=True)
    (template / "subject.txt").write_text("Hello")
    (template / "body.txt").write_text("Hello\n")
    app = Effects(
        f"sqlite:///{tmp_path / 'effects.db'}", templates=tmp_path / "emails", email_from="shop@shop.example",
        smtp_url=f"maildir:{tmp_path}/mail",
    )  # fmt: skip
    migrate.init(app.store)
    send_templated_email("hello", to="ann@example.com", context={}, effects=app)
    assert Worker(app).drain(30).counts == {"succeeded": 1}
    app.dispose()
    assert list(modes(tmp_path / "mail" / "new").values()) == [0o600]
    assert {stat.S_IMODE((tmp_path / "mail" / name).stat().st_mode) for name in ("tmp", "new", "cur")} == {0o700}
