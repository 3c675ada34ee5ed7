"""The files that we create hold addresses, mail and payloads: whoever is not their owner reads none of them."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from effects import Effects, enqueue
from effects.doctor import examine
from effects.store.db import migrate
from effects.store.db.files import create_private
from effects.store.operator.database_checks import DoctorFinding
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
    found = modes(tmp_path)
    app.dispose()
    assert found == {"new.db": 0o600, "new.db-wal": 0o600, "new.db-shm": 0o600}


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
    create_private(None, None, [name], {"uri": uri})
    assert [file.name for file in tmp_path.iterdir()] == ["x"] * makes


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
